"""`Gateway`: the ASGI application that agents call instead of their model provider.

It finds the attempt of a call, checks that the attempt may still make calls, and passes the call to a policy or an
upstream server. Other requests below `/v1` go to an upstream server if one is named, and never to an engine. All other
paths get status 404, so clients cannot reach the engine or its weights.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from leyden.core.data.prompts.edits import PromptEdits
from leyden.core.engine.base import Engine
from leyden.core.gateway.anthropic.dialect import CountDialect, MessagesDialect
from leyden.core.gateway.anthropic.format import anthropic_models, count_answer
from leyden.core.gateway.call_identity import Origin, attempt_tokens, open_origin, private_headers, verified
from leyden.core.gateway.calls.prompts import read_prompts
from leyden.core.gateway.calls.retry_cache import RetryCache
from leyden.core.gateway.calls.serve import read_request, serve_call
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.calls.span_writer import SpanWriter, SpanWriterLimits
from leyden.core.gateway.chat.dialect import ChatDialect
from leyden.core.gateway.completions.dialect import CompletionsDialect
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.endpoint import Endpoint, ObservedSend, not_allowed, not_served, unknown_path
from leyden.core.gateway.http.asgi import ClientWatch, send_json, start_message
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.metrics import CONTENT_TYPE, GatewayMetrics
from leyden.core.gateway.http.metrics_page import Measure, MetricsPage
from leyden.core.gateway.limits.admission import AdmissionControl, AdmissionLimits, CallSlot
from leyden.core.gateway.limits.connections import accept
from leyden.core.gateway.limits.held_bytes import HeldBytes
from leyden.core.gateway.limits.long_work import LongWork, RequestWork, WorkLimits
from leyden.core.gateway.message_images import image_urls
from leyden.core.gateway.openapi import page
from leyden.core.gateway.prompts.active import ActiveEdits
from leyden.core.gateway.prompts.request import edit_call, edited_body
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, openai_error
from leyden.core.gateway.responses.dialect import ResponsesDialect
from leyden.core.gateway.responses.state import Conversations
from leyden.core.gateway.responses.stored import Read, StoredResponses
from leyden.core.gateway.shared.folder import SharedFolder
from leyden.core.gateway.upstream.backend import UpstreamBackend
from leyden.core.gateway.upstream.forwarding import BrokenOff, forward, forwarded, is_forwardable
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.base import LightningStore
from leyden.core.store.outage import through_outage

CLIENT_CLOSED_REQUEST = 499
"""Status in the metrics for a call whose client disconnected before its response was complete."""

BAD_GATEWAY = 502
"""Status in the metrics for a response of an upstream endpoint that broke off."""

COUNTED_CONTEXTS = 4
"""The token count endpoint takes prompts of up to this many times the model's context length."""

TokenCountFormat: TypeAlias = Callable[[int], tuple[bytes, Mapping[str, str]]]
"""Function of a number of tokens; it returns the JSON and the headers of the response that has it."""

Backend: TypeAlias = ServedPolicy | UpstreamBackend
"""Backend that answers a call: a served policy or an upstream server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of request bodies, concurrent calls and long work, and of the delay before records are stored."""

    body: BodyLimits = field(default_factory=BodyLimits)
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    records: SpanWriterLimits = field(default_factory=SpanWriterLimits)
    work: WorkLimits = field(default_factory=WorkLimits)


class Gateway:
    """Answers model calls of open attempts with `policy`, and records each in `store`.

    Without a policy, calls wait until `answer_with` sets one. `others` are further policies by name, for calls that a
    route sends to them. `key` is the key that signs attempt tokens. `mounts` are further applications by path, such as
    the store's server. `other_metrics` are functions by name; each returns metrics that `/metrics` shows with the
    gateway's own. `provider` is the endpoint that answers requests besides model calls, such as those for embeddings.
    Without it, an endpoint among the policies answers them.
    """

    def __init__(
        self,
        store: LightningStore,
        policy: Backend | None,
        key: bytes,
        *,
        others: Mapping[str, Backend] | None = None,
        mounts: Mapping[str, ASGIApp] | None = None,
        other_metrics: Mapping[str, Measure] | None = None,
        provider: Upstream | None = None,
        limits: GatewayLimits | None = None,
    ) -> None:
        self._store, self._key, self._provider = store, key, provider
        self._edits = ActiveEdits(store)
        self._backends: dict[str, Backend] = {}
        """Backends by name; the first answers calls that no route sends to another."""
        self._has_policy = asyncio.Event()
        limits = limits or GatewayLimits()
        self._body = limits.body
        self._held = HeldBytes(limits.body.max_bytes_per_attempt)
        self._long_work = LongWork(limits.work)
        self.admission = admission = AdmissionControl(limits.admission)
        """Admission control; it can pause and drain calls, for a weight update that must not overlap with them."""
        self.span_writer = SpanWriter(store.add_many_spans, limits.records)
        """Span writer; if it delays writes, flush it before reading records from the store."""
        self.metrics = GatewayMetrics(
            running=lambda: admission.running, waiting=lambda: admission.waiting, paused=lambda: float(admission.paused)
        )
        self._engines: dict[str, Engine] = {}
        self._other_metrics = other_metrics
        self._metrics_page = MetricsPage(self.metrics, self._engines, other_metrics)
        if policy is not None:
            self.answer_with(policy, others)
        self._retry_cache = RetryCache(store, self.span_writer, self.metrics)
        self._conversations = conversations = Conversations(self._retry_cache)
        responses = ResponsesDialect(conversations)
        dialects: tuple[Dialect, ...] = (ChatDialect(), CompletionsDialect(), responses, MessagesDialect())
        counts: dict[str, tuple[Dialect, TokenCountFormat]] = {
            "/responses/input_tokens": (responses, _responses_count),
            "/messages/count_tokens": (CountDialect(), count_answer),
        }
        stored = StoredResponses(conversations).paths
        routes: list[BaseRoute] = [Mount(path, app) for path, app in (mounts or {}).items()]
        for prefix in ("/a/{token}/v1", "/v1"):  # matched in this order, so the prefix of agents' calls comes first
            routes += [
                self._route(prefix + dialect.path, self._call_endpoint(dialect), "POST", dialect.error_answer)
                for dialect in dialects
            ]
            routes += [
                self._route(prefix + path, self._count_endpoint(path, dialect, format), "POST", dialect.error_answer)
                for path, (dialect, format) in counts.items()
            ]
            routes += [self._route(prefix + path, self._stored_endpoint(methods)) for path, methods in stored.items()]
            routes += [
                self._route(prefix + path, self._send_models, "GET") for path in ("/models", "/models/{name:path}")
            ]
        routes += [self._route(f"{prefix}/{{path:path}}", self._forward) for prefix in ("/a/{token}/v1", "/v1")]
        routes += [
            self._route("/healthz", self._send_health, "GET"),
            self._route("/metrics", self._send_metrics, "GET"),
            self._route(page.PATH, self._send_openapi_page, "GET"),
            self._route("/{path:path}", unknown_path),
        ]
        # No Starlette application is needed around the router, because an endpoint sends its own error responses. The
        # default endpoint answers paths that do not begin with a slash.
        default = Endpoint(unknown_path, on_refused=self.metrics.refused)
        self.app: ASGIApp = Router(routes, default=default, lifespan=self._lifespan)

    def answer_with(self, policy: Backend, others: Mapping[str, Backend] | None = None) -> None:
        """Set the policies that answer calls, and release waiting calls.

        Call it once, and only if the constructor got no policy.
        """
        self._backends.update({_name(policy): policy})
        self._backends.update({name: other for name, other in (others or {}).items() if name not in self._backends})
        for name, backend in self._backends.items():
            if isinstance(backend, ServedPolicy):
                self.metrics.serves(name, _version_of(backend))
                self._engines[name] = backend.engine
        self._has_policy.set()

    def edit_prompts(self, edits: PromptEdits) -> None:
        """Set the prompt edits of attempts whose resources have none. Call it once, before the gateway serves."""
        self._edits = ActiveEdits(self._store, edits)

    def join_workers(self, shared: SharedFolder) -> None:
        """Share requests and metrics with the other workers of the gateway, of which this process is one.

        Call it once, before the gateway serves.
        """
        self._retry_cache.shared = shared.requests
        self._conversations.alone = False
        all_metrics = shared.metrics("gateway", self.metrics)
        self._metrics_page = MetricsPage(all_metrics, self._engines, self._other_metrics)

    def _route(
        self,
        path: str,
        answer: ASGIApp,
        method: str | None = None,
        error_answer: Callable[[Refusal], ErrorAnswer] = openai_error,
    ) -> Route:
        return Route(path, Endpoint(answer, method, on_refused=self.metrics.refused, error_answer=error_answer))

    def _call_endpoint(self, dialect: Dialect) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            headers, rollout_id, attempt_id = self._caller(scope)
            seen = ObservedSend(send)
            with self._held.request(attempt_id) as held, self._long_work.request(attempt_id) as work:
                body = await read_body(scope, receive, self._body, held.add, work.run_and_free)
                with ClientWatch(scope, receive) as watch:
                    with watch.cancelling():
                        slot = await self._admit(attempt_id, len(body), work)
                    with slot:
                        # Checked only now, because the attempt may have ended while its call was waiting.
                        origin = await self._origin(rollout_id, attempt_id, headers)
                        await self._serve(dialect, origin, body, watch, seen, work)

        return serve

    async def _origin(self, rollout_id: str, attempt_id: str, headers: Mapping[str, str]) -> Origin:
        """Return the origin of a model call, with the prompt edits of its attempt's resources.

        The call waits while the store fails. Raises Refusal with status 403 if the attempt is unknown or has ended.
        """
        origin = await through_outage(lambda: open_origin(self._store, rollout_id, attempt_id, headers))
        edits = await through_outage(lambda: self._edits.of(origin.rollout))
        if edits is None or (of_caller := edits.of(origin.agent, origin.node)) is None:
            return origin
        return msgspec.structs.replace(origin, edits=of_caller)

    async def _admit(self, attempt_id: str, size: int, work: RequestWork) -> CallSlot:
        """Wait for a policy, for the attempt's lock if the request is long, and then for a slot; return the slot.

        The lock comes first, so at most one long request of an attempt has a slot. A weight update, which waits for
        all slots, then waits for only one of them.
        """
        if not self._has_policy.is_set():
            await self._has_policy.wait()
        await work.take(size)
        return await self.admission.acquire(attempt_id)

    async def _serve(
        self, dialect: Dialect, origin: Origin, body: bytes, watch: ClientWatch, seen: ObservedSend, work: RequestWork
    ) -> None:
        """Answer a call with its policy, and count it in the metrics."""
        policy = self._policy_named(origin.policy)
        try:
            if isinstance(policy, UpstreamBackend):
                await policy.serve(dialect, origin, body, self._retry_cache, watch, seen, work)
            else:
                await serve_call(policy, dialect, origin, body, self._retry_cache, watch, seen, work)
        except Refusal as refusal:
            seen.status = refusal.status
            raise
        finally:
            status = CLIENT_CLOSED_REQUEST if watch.gone else seen.status or 500
            self.metrics.call(dialect.name, _name(policy), status, seen.seconds, first_chunk=seen.first_event)

    def _count_endpoint(self, path: str, dialect: Dialect, format: TokenCountFormat) -> ASGIApp:
        """Return the endpoint that sends the number of prompt tokens of a request; it samples and records nothing.

        If an upstream server answers the calls, it also counts their tokens, at its own endpoint of the same `path`.
        """

        async def count(scope: Scope, receive: Receive, send: Send) -> None:
            headers, rollout_id, attempt_id = self._caller(scope)
            with self._held.request(attempt_id) as held, self._long_work.request(attempt_id) as work:
                body = await read_body(scope, receive, self._body, held.add, work.run_and_free)
                with (
                    ClientWatch(scope, receive) as watch,
                    watch.cancelling(),
                    await self._admit(attempt_id, len(body), work),
                ):
                    origin = await self._origin(rollout_id, attempt_id, headers)
                    policy = self._policy_named(origin.policy)
                    if isinstance(policy, UpstreamBackend):
                        if (edits := origin.edits) is not None:
                            body, _ = await work.run(len(body), lambda: edited_body(edits, dialect.name, body))
                        status, answer, more = await policy.count(path, body, origin.api_headers)
                    else:
                        status, (answer, more) = 200, format(await _count(policy, dialect, origin, body, work))
                await send_json(send, status, answer, more)

        return count

    def _stored_endpoint(self, methods: Mapping[str, Read]) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            headers, rollout_id, attempt_id = self._caller(scope)
            if scope["method"] not in methods:
                raise not_allowed(scope["method"], *methods)
            origin = await open_origin(self._store, rollout_id, attempt_id, headers)
            await send_json(send, 200, await methods[scope["method"]](scope, origin))

        return serve

    def _caller(self, scope: Scope) -> tuple[dict[str, str], str, str]:
        """Return the private headers, the rollout id and the attempt id of a request.

        Raises Refusal with status 401 if the request has no valid attempt token. Raises Refusal with status 429 if the
        attempt has too many busy connections.
        """
        headers = private_headers(scope["headers"])
        rollout_id, attempt_id = verified(self._key, scope["path_params"].get("token"), headers)
        accept(scope, attempt_id)
        return headers, rollout_id, attempt_id

    def _policy_named(self, name: str | None) -> Backend:
        """Return the policy of that name, or the first for None; raises Refusal with status 404 for an unknown name."""
        if name is None:
            return next(iter(self._backends.values()))
        if name not in self._backends:
            raise Refusal(404, f"There is no policy '{name}' here.", code="model_not_found")
        return self._backends[name]

    def _provider_of(self, origin: Origin) -> Upstream | None:
        """Return the endpoint that answers an attempt's requests besides model calls; None if none is named.

        It is the gateway's `provider`, else the endpoint that answers the attempt's model calls, else the first
        endpoint among the policies. A provider's model that is called through LiteLLM answers model calls only.
        """
        chosen = self._policy_named(origin.policy)
        candidates = (self._provider, chosen, *self._backends.values())
        return next((one for one in candidates if isinstance(one, Upstream)), None)

    async def _send_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, rollout_id, attempt_id = self._caller(scope)
        await self._has_policy.wait()
        origin = await open_origin(self._store, rollout_id, attempt_id, headers)
        status, body = await self._models(scope["path_params"].get("name"), origin)
        self.metrics.other_request("models", status)
        if status == 200 and "anthropic-version" in headers:
            body = anthropic_models(body)
        await send_json(send, status, body)

    async def _models(self, wanted: str | None, origin: Origin) -> tuple[int, bytes]:
        """Return status and JSON of the list of models, or of the model `wanted`.

        An endpoint that answers the model calls under the agents' own model names lists its own models.
        """
        models = {name: {"id": name, "object": "model", "created": 0, "owned_by": "system"} for name in self._backends}
        chosen = self._policy_named(origin.policy)
        upstream = chosen if isinstance(chosen, UpstreamBackend) else None
        if upstream is not None and not upstream.model and (listed := await upstream.models(wanted)) is not None:
            return listed
        if wanted is None:
            return 200, msgspec.json.encode({"object": "list", "data": [*models.values()]})
        model = models.get(wanted)
        if model is None and upstream is not None:
            model = {"id": wanted, "object": "model", "created": 0, "owned_by": "system"}
        provider = self._provider_of(origin)
        if model is None and provider is not None and (described := await provider.models(wanted)) is not None:
            return described
        if model is None:
            self.metrics.other_request("models", 404)
            raise Refusal(404, f"The model '{wanted}' does not exist", param="model", code="model_not_found")
        return 200, msgspec.json.encode(model)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a request that no other endpoint of the gateway answers to the attempt's provider, if one is named."""
        headers, rollout_id, attempt_id = self._caller(scope)
        await self._has_policy.wait()
        origin = await open_origin(self._store, rollout_id, attempt_id, headers)
        method, path, provider = scope["method"], scope["path_params"]["path"], self._provider_of(origin)
        if provider is None or not is_forwardable(method, path):
            raise not_served(method, path, has_provider=provider is not None)
        with self._held.request(attempt_id) as held, self._long_work.request(attempt_id) as work:
            body = await read_body(scope, receive, self._body, held.add, work.run_and_free)
            tokens = attempt_tokens(scope["path_params"].get("token"), headers)
            request = forwarded(scope, path, body, tokens)
            with ClientWatch(scope, receive) as watch:
                status = CLIENT_CLOSED_REQUEST
                try:
                    status = await forward(provider, request, watch, send, rollout_id)
                except Refusal as refusal:
                    status = refusal.status
                    raise
                except BrokenOff:  # the response is incomplete, so the server closes the connection
                    status = BAD_GATEWAY
                finally:
                    self.metrics.other_request("forwarded", status)

    async def _send_openapi_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, page.openapi_document())

    async def _send_health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, b'{"status":"ok"}')

    async def _send_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._metrics_page.render()
        await send(start_message(200, CONTENT_TYPE.encode(), len(body)))
        await send({"type": "http.response.body", "body": body})

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncGenerator[None]:
        yield
        await self._long_work.aclose()
        await self.span_writer.aclose()
        for backend in (*self._backends.values(), self._provider):
            if isinstance(backend, UpstreamBackend):
                await backend.close()


async def _count(policy: ServedPolicy, dialect: Dialect, origin: Origin, body: bytes, work: RequestWork) -> int:
    request = (await read_request(policy, dialect, origin, body, work)).request
    if origin.edits is not None:
        request, _ = await edit_call(origin.edits, request, len(body), work)
    room = COUNTED_CONTEXTS * policy.engine.model.context_length
    prompts = await read_prompts(policy, dialect, request, image_urls(request.messages), work, room)
    return sum(len(prompt.ids) for prompt in prompts)


def _responses_count(tokens: int) -> tuple[bytes, Mapping[str, str]]:
    return b'{"object":"response.input_tokens","input_tokens":%d}' % tokens, {}


def _name(policy: Backend) -> str:
    return policy.name


def _version_of(policy: ServedPolicy) -> Callable[[], float]:
    return lambda: policy.engine.version
