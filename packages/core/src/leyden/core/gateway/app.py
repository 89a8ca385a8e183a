"""`Gateway`: the ASGI application that agents call in their provider's place.

It decides whose call it is, whether the attempt may still make one, and hands the call to what answers it. Paths
outside the list do not exist; the engine and its weights are not reachable from here.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.engine.base import Engine
from leyden.core.gateway import openapi
from leyden.core.gateway.body import BodyLimits, read_body
from leyden.core.gateway.call import read_prompt, read_request, serve_call
from leyden.core.gateway.chat.dialect import ChatDialect
from leyden.core.gateway.connections import accept
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.endpoint import Endpoint, ObservedSend, not_allowed, unknown_path
from leyden.core.gateway.gate import Gate, GateLimits, Place
from leyden.core.gateway.held_bytes import HeldBytes
from leyden.core.gateway.http import ClientWatch, send_json, start_message
from leyden.core.gateway.keeper import Keeper, KeeperLimits
from leyden.core.gateway.ledger import Ledger
from leyden.core.gateway.long_work import LongWork, Slot, WorkLimits
from leyden.core.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from leyden.core.gateway.metrics_page import Measure, MetricsPage
from leyden.core.gateway.origin import Origin, open_origin, private_headers, verified
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.responses.dialect import ResponsesDialect
from leyden.core.gateway.responses.state import Conversations
from leyden.core.gateway.responses.stored import Read, StoredResponses
from leyden.core.gateway.serving import ServedPolicy
from leyden.core.gateway.upstream import Upstream
from leyden.core.store.base import LightningStore

HUNG_UP = 499
"""Status that metrics count where the client left before its answer was complete."""

COUNTED_CONTEXTS = 4
"""Tokens are counted of prompts up to so many times what the model can read."""

Answerer: TypeAlias = ServedPolicy | Upstream
"""What answers a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """What the gateway takes, how much of it at once, and when its records are stored."""

    body: BodyLimits = field(default_factory=BodyLimits)
    gate: GateLimits = field(default_factory=GateLimits)
    records: KeeperLimits = field(default_factory=KeeperLimits)
    work: WorkLimits = field(default_factory=WorkLimits)


class Gateway:
    """Answers model calls of open attempts with `policy`, and records each in `store`.

    Without a policy, calls wait until `answer_with` gives one. `others` are further policies by name, for calls that a
    route sends to them. `key` is what attempt tokens are signed with. `mounts` are further applications by path, such
    as the store's server. `beside` measures what `/metrics` shows beside the gateway's own numbers, by name.
    """

    def __init__(
        self,
        store: LightningStore,
        policy: Answerer | None,
        key: bytes,
        *,
        others: Mapping[str, Answerer] | None = None,
        mounts: Mapping[str, ASGIApp] | None = None,
        beside: Mapping[str, Measure] | None = None,
        limits: GatewayLimits | None = None,
    ) -> None:
        self._store, self._key = store, key
        self._answerers: dict[str, Answerer] = {}
        """By name; the first answers calls that no route sends elsewhere."""
        self._can_answer = asyncio.Event()
        limits = limits or GatewayLimits()
        self._body = limits.body
        self._held = HeldBytes(limits.body.max_bytes_per_attempt)
        self._work = LongWork(limits.work)
        self.gate = gate = Gate(limits.gate)
        """Pauses and drains calls, for an update that must not happen under them."""
        self.keeper = Keeper(store.add_many_spans, limits.records)
        """Flush it before reading records that are not stored at once."""
        self.metrics = GatewayMetrics(
            running=lambda: gate.running, waiting=lambda: gate.waiting, paused=lambda: float(gate.paused)
        )
        self._engines: dict[str, Engine] = {}
        self._metrics_page = MetricsPage(self.metrics, self._engines, beside)
        if policy is not None:
            self.answer_with(policy, others)
        self._ledger = Ledger(store, self.keeper, self.metrics)
        conversations = Conversations(self._ledger)
        responses = ResponsesDialect(conversations)
        dialects: tuple[Dialect, ...] = (ChatDialect(), responses)
        stored = StoredResponses(conversations).paths
        routes: list[BaseRoute] = [Mount(path, app) for path, app in (mounts or {}).items()]
        for prefix in ("/a/{token}/v1", "/v1"):  # looked through in this order: that of an agent's calls first
            routes += [self._route(prefix + dialect.path, self._serving(dialect), "POST") for dialect in dialects]
            routes.append(self._route(f"{prefix}{responses.path}/input_tokens", self._counting(responses), "POST"))
            routes += [self._route(prefix + path, self._reading(methods)) for path, methods in stored.items()]
            routes += [self._route(prefix + path, self._models, "GET") for path in ("/models", "/models/{name:path}")]
        routes += [
            self._route("/healthz", self._health, "GET"),
            self._route("/metrics", self._measures, "GET"),
            self._route(openapi.PATH, self._page, "GET"),
            self._route("/{path:path}", unknown_path),
        ]
        # No Starlette application around it: an endpoint says itself what goes wrong in it. The default is for what
        # does not even begin with a slash.
        default = Endpoint(unknown_path, refused=self.metrics.refused)
        self.app: ASGIApp = Router(routes, default=default, lifespan=self._lifespan)

    def answer_with(self, policy: Answerer, others: Mapping[str, Answerer] | None = None) -> None:
        """Answer with these from now on, calls that have waited for them first; once, where none was given before."""
        self._answerers.update({_name(policy): policy})
        self._answerers.update({name: other for name, other in (others or {}).items() if name not in self._answerers})
        for name, answerer in self._answerers.items():
            if isinstance(answerer, ServedPolicy):
                self.metrics.serves(name, _version_of(answerer))
                self._engines[name] = answerer.engine
        self._can_answer.set()

    def _route(self, path: str, answer: ASGIApp, method: str | None = None) -> Route:
        return Route(path, Endpoint(answer, method, refused=self.metrics.refused))

    def _serving(self, dialect: Dialect) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            headers, rollout_id, attempt_id = self._caller(scope)
            seen = ObservedSend(send)
            with self._held.request(attempt_id) as held, self._work.slot(attempt_id) as slot:
                body = await read_body(scope, receive, self._body, held.add, slot.run_and_free)
                with ClientWatch(receive) as watch:
                    with watch.cancelling():
                        place = await self._place(attempt_id, len(body), slot)
                    with place:
                        # Only now: the attempt may have ended while its call was waiting.
                        origin = await open_origin(self._store, rollout_id, attempt_id, headers)
                        await self._serve(dialect, origin, body, watch, seen, slot)

        return serve

    async def _place(self, attempt_id: str, size: int, slot: Slot) -> Place:
        """Wait for a place; for the turn of a long request before it, so that an update waits for one of them only."""
        await self._can_answer.wait()
        await slot.take(size)
        return await self.gate.place(attempt_id)

    async def _serve(
        self, dialect: Dialect, origin: Origin, body: bytes, watch: ClientWatch, seen: ObservedSend, slot: Slot
    ) -> None:
        """Have a call answered by its policy, and count it."""
        policy = self._named(origin.policy)
        try:
            if isinstance(policy, Upstream):
                await policy.serve(dialect, origin, body, self._ledger, watch, seen, slot)
            else:
                await serve_call(policy, dialect, origin, body, self._ledger, watch, seen, slot)
        except Refusal as refusal:
            seen.status = refusal.status
            raise
        finally:
            status = HUNG_UP if watch.gone else seen.status or 500
            self.metrics.call(dialect.name, _name(policy), status, seen.seconds, first_chunk=seen.first_event)

    def _counting(self, dialect: Dialect) -> ASGIApp:
        """Say how many tokens a request would have the policy read; nothing is drawn or recorded."""

        async def count(scope: Scope, receive: Receive, send: Send) -> None:
            headers, rollout_id, attempt_id = self._caller(scope)
            with self._held.request(attempt_id) as held, self._work.slot(attempt_id) as slot:
                body = await read_body(scope, receive, self._body, held.add, slot.run_and_free)
                with (
                    ClientWatch(receive) as watch,
                    watch.cancelling(),
                    await self._place(attempt_id, len(body), slot),
                ):
                    origin = await open_origin(self._store, rollout_id, attempt_id, headers)
                    tokens = await self._count(dialect, origin, body, slot)
                await send_json(send, 200, b'{"object":"response.input_tokens","input_tokens":%d}' % tokens)

        return count

    async def _count(self, dialect: Dialect, origin: Origin, body: bytes, slot: Slot) -> int:
        policy = self._named(origin.policy)
        if isinstance(policy, Upstream):
            raise Refusal(404, "The upstream's tokens cannot be counted here.", code="unknown_url")
        exchange = await read_request(policy, dialect, origin, body, slot)
        room = COUNTED_CONTEXTS * policy.engine.model.context_length
        return len(await read_prompt(policy, dialect, exchange.request, slot, room))

    def _reading(self, methods: Mapping[str, Read]) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            headers, rollout_id, attempt_id = self._caller(scope)
            if scope["method"] not in methods:
                raise not_allowed(scope["method"], *methods)
            origin = await open_origin(self._store, rollout_id, attempt_id, headers)
            await send_json(send, 200, await methods[scope["method"]](scope, origin))

        return serve

    def _caller(self, scope: Scope) -> tuple[dict[str, str], str, str]:
        """Return private headers, rollout and attempt of a request.

        Raises Refusal where it proves no attempt, or one that has too many connections at work.
        """
        headers = private_headers(scope["headers"])
        rollout_id, attempt_id = verified(self._key, scope["path_params"].get("token"), headers)
        accept(scope, attempt_id)
        return headers, rollout_id, attempt_id

    def _named(self, name: str | None) -> Answerer:
        """Return the policy that a route chose; raises Refusal for one that was not configured."""
        if name is None:
            return next(iter(self._answerers.values()))
        if name not in self._answerers:
            raise Refusal(404, f"There is no policy '{name}' here.", code="model_not_found")
        return self._answerers[name]

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, rollout_id, attempt_id = self._caller(scope)
        await self._can_answer.wait()
        await open_origin(self._store, rollout_id, attempt_id, headers)
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "system"} for name in self._answerers]
        wanted = scope["path_params"].get("name")
        first = self._named(None)
        upstream = first if isinstance(first, Upstream) and not first.model else None
        if wanted is None:
            if upstream is not None and (own := await upstream.models()) is not None:
                return await send_json(send, 200, own)
            answer: object = {"object": "list", "data": models}
        else:
            answer = next((model for model in models if model["id"] == wanted), None)
            if upstream is not None:
                answer = {"id": wanted, "object": "model", "created": 0, "owned_by": "system"}
            if answer is None:
                raise Refusal(404, f"The model '{wanted}' does not exist", param="model", code="model_not_found")
        await send_json(send, 200, msgspec.json.encode(answer))

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, openapi.openapi_document())

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, b'{"status":"ok"}')

    async def _measures(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._metrics_page.render()
        await send(start_message(200, CONTENT_TYPE.encode(), len(body)))
        await send({"type": "http.response.body", "body": body})

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncGenerator[None]:
        yield
        await self._work.aclose()
        await self.keeper.aclose()
        for policy in self._answerers.values():
            if isinstance(policy, Upstream):
                await policy.close()


def _name(policy: Answerer) -> str:
    return policy.name


def _version_of(policy: ServedPolicy) -> Callable[[], float]:
    return lambda: policy.engine.version
