"""Requests with every kind of token to every route of every server: each is answered as the access table says.

`tests/support/access_table.py` is the table. The attacker holds the token of an attempt, of an ended one, of another
run, a part of one, or none, has it in every place of a request, and sends bodies that name other attempts, hold the
record of model calls or rewards, or are none. The servers run in process, on a store that notes every call that could
change it.
"""

import hmac
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from access_bodies import Names, body_of, span_for
from access_cells import (
    GARBAGE,
    Answer,
    Cell,
    Write,
    altered,
    any_cell,
    ask,
    effects,
    main_cells,
    request_of,
    routes_of,
)
from access_table import AGENTS, KINDS, KNOWN, TABLE
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from leyden.core.algorithm.external_loop import RunEndpoint
from leyden.core.data.identity import mint, new_key
from leyden.core.data.production import PRODUCTION
from leyden.core.data.rollout import FINISHED_ATTEMPT
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.production.captures import PATH, capture_app
from leyden.core.store.http.access import Access, worker_token
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import methods
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedEngine
from leyden.core.trainer.agents.runner_api import TOKEN, RunnerEndpoint
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.serving.address import open_gateway
from leyden.core.trainer.serving.external_replicas import ExternalReplicas

if TYPE_CHECKING:
    from leyden.core.engine.vllm.replicas import ReplicaEngine

CODEC = ByteCodec()
SECRET = "known-to-another-attempt"
CAPTURE, STORE, LOOP, RUN = "capture-token-9", "store-token-9", "loop-token-9", "run-token-9"
ROUND = 2_000
"""Cells between two looks at all attempts; then all begins anew."""
MORE_ROUNDS = 50


class WatchedStore(MemoryStore):
    """Notes every call that could change it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Write] = []


def _watch(name: str) -> None:
    plain, signature = getattr(MemoryStore, name), methods()[name].signature

    async def noted(self: WatchedStore, *arguments: Any, **named: Any) -> Any:
        self.writes.append(Write(name, signature.bind(*arguments, **named).arguments))
        return await plain(self, *arguments, **named)

    setattr(WatchedStore, name, noted)


for _method in methods().values():
    if _method.writes and _method.name != "find_attempt":
        _watch(_method.name)


@dataclass
class World:
    """Three servers of one store, the attempts in it, and what signs their tokens."""

    store: WatchedStore
    apps: dict[str, Any] = field(default_factory=dict[str, Any])
    keys: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Of the gateways, by site."""
    access: dict[str, Access] = field(default_factory=dict[str, Access])
    """Of the stores, by site."""
    store_tokens: dict[str, str] = field(default_factory=dict[str, str])
    attempts: dict[str, Names] = field(default_factory=dict[str, Names])
    """`own`, `capture`, `ended`, `ended capture`, `scratch` (a trainer's to change), `other` and `finished`."""

    async def begin(self, name: str, metadata: dict[str, Any] | None = None) -> None:
        """Open an attempt that has called the model, and has stored a reward."""
        secret = SECRET if name in ("other", "finished") else "hello"
        rollout = await self.store.start_rollout({"question": secret}, mode="train", metadata=metadata)
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        call = msgspec.json.encode({"model": "m", "input": secret, "user": secret})
        headers = [("authorization", f"Bearer {mint(self.keys['run'], *ids)}")]
        answer = await ask(self.apps["run"], "POST", "/v1/responses", "", headers, call)
        assert answer.status == 200, answer
        self.attempts[name] = Names(*ids, msgspec.json.decode(answer.body)["id"])
        await self.store.add_span(span_for(self.attempts[name], "reward", random.Random(0)))

    async def renew(self) -> None:
        """Open attempts again that their own agents have ended."""
        for name, metadata in (("own", None), ("capture", PRODUCTION)):
            ids = self.attempts[name]
            found = await self.store.find_attempt(ids.rollout_id, ids.attempt_id)
            assert found is not None
            if found[1].status in FINISHED_ATTEMPT:
                await self.begin(name, metadata)

    def of(self, kind: str) -> Names:
        """The attempt that a token is of, or that its holder may change."""
        if kind in KNOWN["gateway"] | KNOWN["store"] | {"capture"}:
            name = {
                "attempt": "own",
                "capture's attempt": "capture",
                "ended attempt": "ended",
                "ended agent": "ended",
                "ended capture": "ended capture",
                "store": "scratch",
            }.get(kind, "own")
            return Names("nowhere", "nothing", "resp_x") if kind.startswith("unknown") else self.attempts[name]
        return self.attempts["other"]

    def token(self, site: str, kind: str, rng: random.Random) -> str:
        """A token of a kind, for a site."""
        if kind == "garbage":
            return rng.choice(GARBAGE)
        if kind == "altered":
            known = [name for name in KINDS if name not in ("none", "garbage", "altered")]
            return altered(self.token(site, rng.choice(known), rng), rng)
        ids = self.of(kind)[:2]
        if kind == "of another run":
            return rng.choice([mint(b"another key", *ids), Access("another").agent_token(*ids), "another"])
        if kind in KNOWN["gateway"]:
            return mint(self.keys.get(site, b"none"), *ids)
        access = self.access.get(site, Access("none"))
        if kind == "agent of an unknown scope":
            return _of_scope("unheard-of", self.store_tokens.get(site, "none"), ids)
        if kind in AGENTS or kind.endswith(" agent"):
            return access.agent_token(*ids, rewards=kind == "agent-reward")
        if kind == "worker":
            return worker_token(access.machine_token("machine-"), "machine-1")
        fixed = {"store": self.store_tokens.get(site, "none"), "run": RUN, "capture": CAPTURE, "loop": LOOP}
        return fixed.get(kind, "")

    async def state(self) -> list[Any]:
        """All there is of the attempts that no token of the attacker, and no trainer of the table, may change."""
        kept: list[Any] = []
        for name in ("other", "finished", "ended", "ended capture"):
            rollout_id = self.attempts[name].rollout_id
            rollouts = await self.store.query_rollouts(rollout_id_in=[rollout_id])
            attempts, spans = await self.store.query_attempts(rollout_id), await self.store.query_spans(rollout_id)
            kept.append(msgspec.to_builtins([rollouts.items, attempts.items, spans.items]))
        return kept

    async def check_numbers(self) -> None:
        """Nobody has taken a number of another rollout: the next follows its last span."""
        for name in ("other", "finished"):
            ids = self.attempts[name][:2]
            spans = (await self.store.query_spans(ids[0])).items
            assert await self.store.get_next_span_sequence_id(*ids) == len(spans) + 1

    async def answer(self, cell: Cell, rng: random.Random) -> tuple[Answer, list[str]]:
        """Send a cell's request; returns its answer, and what it did that it should not."""
        own = self.of(cell.kind)
        about = own
        if cell.variant == "other":
            about = self.attempts["scratch" if cell.kind == "store" else "other"]
        body = body_of(cell.row.body, cell.row.path.rpartition("/")[2], about, cell.variant, rng)
        token = self.token(cell.row.site, cell.kind, rng)
        path, query, headers = request_of(cell, token, body, about)
        self.store.writes.clear()
        answer = await ask(self.apps[cell.row.site], cell.method, path, query, headers, body.content)
        wrong = effects(cell, self.store.writes, own[:2])
        if answer.status not in cell.statuses():
            wrong.append(f"{answer.status} in place of {sorted(cell.statuses())}: {answer.body[:200]!r}")
        if cell.seen not in ("store", "run", "loop") and SECRET.encode() in answer.body:
            wrong.append("the answer holds what belongs to another attempt")
        return answer, wrong


def _of_scope(scope: str, token: str, ids: tuple[str, ...]) -> str:
    """A token that is signed as it should be, for a scope that there is not."""
    return f"{scope}.{mint(hmac.digest(token.encode(), b'leyden store ' + scope.encode(), 'sha256'), *ids)}"


async def _hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@asynccontextmanager
async def opened() -> AsyncGenerator[World]:
    """All servers, and an attempt of each kind."""
    engine = ScriptedEngine(lambda _: CODEC.answer("hi"))
    policy = ServedPolicy(name="policy", engine=engine, codec=CODEC)
    loop = ExternalReplicas(cast("ReplicaEngine", None))
    loop.endpoint = RunEndpoint(url="", token=LOOP)
    loop.open(Starlette(routes=[Route("/hello", _hello)]))
    endpoint = RunnerEndpoint(RunConfig(name="run", policy="p", agent="a.py:a"))
    async with AsyncExitStack() as closing:
        world = World(WatchedStore())
        closing.push_async_callback(world.store.close)
        closing.push_async_callback(engine.close)
        opening = open_gateway(world.store, policy, mounts={"/loop": loop}, endpoint=endpoint)
        address, gateway = await closing.enter_async_context(opening)
        captures_key = new_key()
        captures = capture_app(world.store, captures_key, authorize=lambda given: given == CAPTURE)
        capturing = Gateway(world.store, policy, captures_key, mounts={PATH: captures})
        closing.push_async_callback(capturing.span_writer.aclose)
        access = Access(STORE)
        alone = store_app(world.store, authorize=access.is_trainer, agents=access.holder)
        world.apps = {"run": gateway.app, "captures": capturing.app, "store": alone}
        world.keys = {"run": address.key, "captures": captures_key}
        world.access = {"run": Access(address.token), "store": access}
        world.store_tokens = {"run": address.token, "store": STORE}
        for name in ("own", "ended", "scratch", "other", "finished"):
            await world.begin(name)
        for name in ("capture", "ended capture"):
            await world.begin(name, PRODUCTION)
        for name, metadata in (("ended", {}), ("ended capture", {"capture": "complete"}), ("finished", {})):
            ids = world.attempts[name]
            await world.store.update_attempt(ids.rollout_id, ids.attempt_id, "succeeded", metadata=metadata)
        yield world


@pytest.fixture(autouse=True)
def run_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, RUN)


async def disagreements(cells: Sequence[Cell], seed: int) -> list[str]:
    """Send the cells to servers of their own; returns where they were answered otherwise than the table says."""
    rng, found = random.Random(seed), list[str]()
    async with opened() as world:
        before = await world.state()
        for cell in cells:
            _, wrong = await world.answer(cell, rng)
            shown = (cell.row.site, cell.method, cell.row.path, cell.kind, cell.place, cell.variant)
            found += [f"{' · '.join(shown)}: {what}" for what in wrong]
            if cell.may_write:
                await world.renew()
        if await world.state() != before:
            found.append("an attempt that was nobody's to change is not what it was")
        await world.check_numbers()
    return found


@pytest.mark.integration
async def test_the_table_has_every_route_of_every_server() -> None:
    """The attacker finds a route that nobody has thought of."""
    async with opened() as world:
        there = {(site, path) for site, app in world.apps.items() for path in routes_of(app)}
    assert there == {(row.site, row.path) for row in TABLE}


@pytest.mark.integration
async def test_every_route_with_every_token() -> None:
    """The attacker sends each token that there is to each route, about its own attempt and about another."""
    assert await disagreements(list(main_cells()), 0) == []


@pytest.mark.integration
async def test_random_cells() -> None:
    """The attacker varies tokens, their places, methods and bodies."""
    rng = random.Random(1)
    assert await disagreements([any_cell(rng) for _ in range(ROUND)], 1) == []


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(1800)
async def test_a_hundred_thousand_random_cells() -> None:
    """The same for as long as the attacker likes."""
    rng = random.Random(16)
    for number in range(MORE_ROUNDS):
        assert await disagreements([any_cell(rng) for _ in range(ROUND)], number) == []
