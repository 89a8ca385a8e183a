"""An endpoint with several replicas: calls of one rollout stay on one, and go to another one if it fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.engine import load_balancer
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.asgi import EVENTS, send_json
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.engine_contract import until
from leyden.core.testing.servers.ports import free_port

pytestmark = pytest.mark.integration

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}\n\n'


class Replica:
    """A server that answers with its own name, or fails in the way that `fails` names."""

    def __init__(self, name: str) -> None:
        self.name, self.url, self.fails = name, "", ""
        self.seen: list[str] = []
        self.server: GatewayServer | None = None

    async def start(self, port: int = 0) -> None:
        self.server = GatewayServer(self.answer, port=port)
        self.url = f"{await self.server.start()}/v1"

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body: dict[str, Any] = {}
        if scope["method"] == "POST":
            self.seen.append(scope["path"])
            body = json.loads(await read_body(scope, receive, BodyLimits()))
        if self.fails.isdecimal():
            return await send_json(send, int(self.fails), b'{"error": {"message": "%s"}}' % self.name.encode())
        if self.fails == "body":  # the connection breaks in the middle of a plain response
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
            return
        if body.get("stream"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]})
            if self.fails != "headers":
                await send({"type": "http.response.body", "body": EVENT, "more_body": True})
            if self.fails:
                return  # the connection breaks after the headers, or after the first event
            return await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        await send_json(send, 200, json.dumps({"id": self.name, "choices": []}).encode())


class Agents:
    """A gateway in front of the replicas, whose rollouts each have a name."""

    def __init__(self, url: str, key: bytes, store: MemoryStore) -> None:
        self._url, self._key, self.store = url, key, store
        self._rollouts: dict[str, tuple[str, str]] = {}

    async def post(self, rollout: str = "a", path: str = "/chat/completions", **fields: Any) -> httpx.Response:
        if rollout not in self._rollouts:
            started = await self.store.start_rollout("task")
            self._rollouts[rollout] = started.rollout_id, started.attempt.attempt_id
        url = f"{self._url}/a/{mint(self._key, *self._rollouts[rollout])}/v1{path}"
        async with httpx.AsyncClient(timeout=30) as http:
            return await http.post(url, json={"model": "m", "messages": [], **fields})

    async def calls(self, rollout: str = "a") -> list[Span]:
        spans = (await self.store.query_spans(self._rollouts[rollout][0])).items
        return [span for span in spans if semconv.CALL_ID in span.attributes]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_balancer, "FIRST_PROBE", 0.05)


@pytest.fixture
async def replicas() -> AsyncIterator[list[Replica]]:
    replicas = [Replica("first"), Replica("second")]
    for replica in replicas:
        await replica.start()
    yield replicas
    for replica in replicas:
        await replica.stop()


@asynccontextmanager
async def agents(*urls: str) -> AsyncGenerator[Agents]:
    async with AsyncExitStack() as closing:
        store, key = MemoryStore(), new_key()
        server = GatewayServer(Gateway(store, Upstream(urls[0], None, replicas=urls[1:]), key).app)
        url = await server.start()
        closing.push_async_callback(server.stop)
        yield Agents(url, key, store)


async def test_a_rollout_stays_on_its_replica_and_rollouts_are_spread(replicas: list[Replica]) -> None:
    async with agents(*(replica.url for replica in replicas)) as run:
        answers = {name: [(await run.post(name)).json()["id"] for _ in range(3)] for name in map(str, range(20))}
    assert all(len(set(names)) == 1 for names in answers.values())
    assert {names[0] for names in answers.values()} == {"first", "second"}


@pytest.mark.parametrize("fails", ["502", "503", "body", "gone"])
async def test_a_call_whose_replica_fails_is_answered_by_another_and_recorded_once(
    fails: str, replicas: list[Replica]
) -> None:
    async with agents(*(replica.url for replica in replicas)) as run:
        own = (await run.post()).json()["id"]
        failing, other = sorted(replicas, key=lambda replica: replica.name != own)
        if fails == "gone":
            await failing.stop()
        failing.fails = fails
        answer = await run.post()
        assert (answer.status_code, answer.json()["id"]) == (200, other.name)
        asked = len(failing.seen)
        assert (await run.post()).json()["id"] == other.name
        assert len(failing.seen) == asked, "it is not asked again"
        calls = await run.calls()
    assert [span.attributes[semconv.RESPONSE_ID] for span in calls] == [own, other.name, other.name]
    assert {span.status.code for span in calls} == {"ok"}


async def test_a_stream_that_breaks_before_its_first_byte_is_answered_by_another(replicas: list[Replica]) -> None:
    async with agents(*(replica.url for replica in replicas)) as run:
        own = (await run.post()).json()["id"]
        next(replica for replica in replicas if replica.name == own).fails = "headers"
        answer = await run.post(stream=True)
        assert answer.text == EVENT.decode() + "data: [DONE]\n\n"
        assert [span.status.code for span in await run.calls()] == ["ok", "ok"]


async def test_a_stream_that_breaks_after_its_first_byte_is_the_agents_error(replicas: list[Replica]) -> None:
    async with agents(*(replica.url for replica in replicas)) as run:
        own = (await run.post()).json()["id"]
        failing, other = sorted(replicas, key=lambda replica: replica.name != own)
        failing.fails = "event"
        answer = await run.post(stream=True)
        assert answer.text.startswith(EVENT.decode())
        assert "could not be reached" in answer.text
        assert not other.seen
        assert [span.status.code for span in await run.calls()] == ["ok", "error"]


async def test_if_all_replicas_are_unavailable_the_agent_gets_the_error_of_one(replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.fails = "503"
    async with agents(*(replica.url for replica in replicas)) as run:
        for n in (1, 2):
            answer = await run.post()
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] in ("first", "second")
            assert [len(replica.seen) for replica in replicas] == [n, n]
        assert [span.attributes[semconv.ERROR_TYPE] for span in await run.calls()] == ["503", "503"]


async def test_if_no_replica_can_be_reached_the_agent_gets_502() -> None:
    urls = [f"http://127.0.0.1:{free_port()}/v1" for _ in range(2)]
    async with agents(*urls) as run:
        answer = await run.post()
        assert answer.status_code == 502
        assert f"the endpoint {urls[0]} or {urls[1]} could not be reached (ClientConnectorError)" in answer.text
        assert len(await run.calls()) == 1


async def test_a_replica_is_used_again_once_it_answers(replicas: list[Replica]) -> None:
    replicas[0].fails = "503"
    async with agents(*(replica.url for replica in replicas)) as run:
        for name in map(str, range(10)):
            assert (await run.post(name)).json()["id"] == "second"
        replicas[0].fails = ""
        names = iter(range(10, 10000))

        async def comes_back() -> None:
            while (await run.post(str(next(names)))).json()["id"] != "first":
                await asyncio.sleep(0.01)

        await asyncio.wait_for(comes_back(), 10)


async def test_a_request_besides_model_calls_goes_to_a_replica_that_can_be_reached(replicas: list[Replica]) -> None:
    await replicas[0].stop()
    async with agents(*(replica.url for replica in replicas)) as run:
        for name in map(str, range(10)):
            assert (await run.post(name, "/embeddings", input="x")).json()["id"] == "second"
        await replicas[1].stop()
        await until(lambda: replicas[1].seen == ["/v1/embeddings"] * 10)
        assert (await run.post("a", "/embeddings", input="x")).status_code == 502
