"""What server and client promise beyond the contract: refusals, lost answers, callers that have gone."""

import asyncio
import inspect
import time
from abc import ABC
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.data.resources import LLM
from leyden.core.data.rollout import AttemptedRollout, EnqueueRollout
from leyden.core.errors import NotFound, StoreError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.http.admission import ServerLimits
from leyden.core.store.http.client import HttpStore, UnansweredClaims
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import Method, methods
from leyden.core.store.sql.store import SqlStore
from leyden.core.testing.servers.store_server import TOKEN, LosesAnswers, StoreServer, accepts
from leyden.core.testing.store_contract.shared import MISSING, claimed, counts_of, queue_length, span_of


@asynccontextmanager
async def through(url: str, token: str = TOKEN, patience: float = 5.0) -> AsyncGenerator[HttpStore]:
    store = HttpStore(url, token, patience)
    yield store
    await store.close()


async def post(url: str, body: bytes, token: str = TOKEN) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers={"authorization": f"Bearer {token}"}) as response,
    ):
        return response.status, (await response.read()).decode("utf-8", "replace")


def test_every_method_can_be_called() -> None:
    public = {name for name in set(dir(LightningStore)) - set(dir(ABC)) if not name.startswith("_")}
    assert public - set(methods()) == {"capabilities", "close", "otlp_traces_endpoint", "add_otel_span"}


@pytest.mark.parametrize("name", [*methods(), "add_otel_span"])
def test_the_clients_methods_are_called_as_those_of_the_interface(name: str) -> None:
    own, interface = (inspect.signature(getattr(kind, name)).parameters for kind in (HttpStore, LightningStore))
    assert [(p.name, p.kind, p.default) for p in own.values()] == [
        (p.name, p.kind, p.default) for p in interface.values()
    ]
    assert inspect.iscoroutinefunction(getattr(HttpStore, name))


async def test_wrong_arguments_are_refused_before_anything_is_sent(unused_tcp_port: int) -> None:
    async with through(f"http://127.0.0.1:{unused_tcp_port}") as store:
        calls: Any = store
        for call, said in (
            (calls.get_rollout_by_id("a", "b"), "get_rollout_by_id: too many positional arguments"),
            (calls.get_rollout_by_id(), "get_rollout_by_id: missing a required argument: 'rollout_id'"),
            (calls.statistics(of="all"), "statistics: got an unexpected keyword argument 'of'"),
            (calls.query_rollouts(["running"]), "query_rollouts: too many positional arguments"),
            (calls.get_worker_by_id(1), "worker_id is 1, a int; it must be text"),
        ):
            with pytest.raises(TypeError) as raised:
                await call
            assert str(raised.value) == said


async def test_a_call_gets_a_request_id_unless_it_has_one(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = MemoryStore()
    sent: list[str | None] = []
    start = behind.start_rollout

    async def start_rollout(request_id: str | None, **named: Any) -> AttemptedRollout:
        sent.append(request_id)
        return await start(request_id=request_id, **named)

    monkeypatch.setattr(behind, "start_rollout", start_rollout)
    async with through(server.add(behind)) as store:
        await store.start_rollout("task", request_id="own")
        await store.start_rollout("task", None, None, None, None, None, "own too")
        await store.start_rollout("task")
        await store.start_rollout("task")
    assert sent[:2] == ["own", "own too"]
    assert all(sent) and len(set(sent)) == 4


async def test_a_claim_whose_answer_was_lost_is_repeated_in_its_own_queue_only() -> None:
    claims = UnansweredClaims()
    with pytest.raises(StoreError), claims.named(("w", "a"), 1, None) as lost:
        raise StoreError("no answer")
    with claims.named(("w", "b"), 1, None) as of_b, claims.named(("w", ""), 1, None) as usual:
        assert lost not in (of_b, usual)
    with claims.named(("w", "a"), 1, None) as repeated:
        assert repeated == lost


async def test_a_caller_that_names_no_queue_uses_the_usual_one(server: StoreServer) -> None:
    """Clients of earlier versions know of none."""
    behind = MemoryStore()
    url = server.add(behind)
    await behind.enqueue_rollout(1, rollout_id="other", queue="run")
    for method, call in (
        ("enqueue_rollout", {"input": 1, "rollout_id": "r1"}),
        ("enqueue_many_rollouts", {"rollouts": [{"input": 1, "rollout_id": "r2"}]}),
        ("start_rollout", {"input": 1}),
    ):
        status, _ = await post(f"{url}/{method}", msgspec.msgpack.encode(call))
        assert status == 200
    status, _ = await post(f"{url}/dequeue_many_rollouts", msgspec.msgpack.encode({"limit": 9}))
    assert status == 200
    claimed = await behind.query_rollouts(status_in=["preparing"], queue="")
    assert [rollout.rollout_id for rollout in claimed][:2] == ["r1", "r2"] and claimed.total == 3
    assert await queue_length(behind) == 1


async def test_a_client_names_the_usual_queue_to_no_server(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of an earlier version refuses arguments that it does not know."""
    sent: list[dict[str, Any]] = []
    decode = Method.decode_call

    def noting(self: Method, data: bytes, *, json: bool = False) -> dict[str, Any]:
        sent.append(msgspec.msgpack.decode(data))
        return decode(self, data, json=json)

    monkeypatch.setattr(Method, "decode_call", noting)
    async with through(server.add(MemoryStore())) as store:
        await store.dequeue_rollout("w")
        await store.start_rollout(1)
        await store.query_rollouts()
        assert not any("queue" in call for call in sent)
        await store.dequeue_rollout("w", queue="run")
    assert sent[-1]["queue"] == "run"


def test_which_methods_write() -> None:
    reads = {name for name, method in methods().items() if not method.writes}
    assert reads == {
        "statistics",
        "query_rollouts",
        "query_attempts",
        "query_spans",
        "query_resources",
        "query_workers",
        "query_runs",
        "query_metrics",
        "query_policy_versions",
        "get_run_by_id",
        "get_rollout_by_id",
        "get_latest_attempt",
        "get_resources_by_id",
        "get_latest_resources",
        "get_worker_by_id",
        "wait_for_rollouts",
    }


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
async def test_a_wrong_token_is_refused(server: StoreServer, token: str) -> None:
    behind = MemoryStore()
    url = server.add(behind)
    status, line = await post(f"{url}/enqueue_rollout", msgspec.msgpack.encode({"input": 1}), token)
    assert (status, line) == (401, "the store needs a valid bearer token")
    async with through(url, token) as store:
        with pytest.raises(StoreError, match="bearer token"):
            await store.enqueue_rollout(1)
    assert await queue_length(behind) == 0


@pytest.mark.parametrize(
    ("method", "body", "status", "line"),
    [
        ("drop_everything", b"\x80", 404, "the store has no method 'drop_everything'"),
        ("close", b"\x80", 404, "no method"),
        ("__init__", b"\x80", 404, "no method"),
        ("enqueue_rollout", b"", 400, "not a call of enqueue_rollout: Input data was truncated"),
        ("enqueue_rollout", b"\x80", 400, "missing required field `input`"),
        ("enqueue_rollout", b"\x91\x01", 400, "Expected `object`"),
        ("get_rollout_by_id", msgspec.msgpack.encode({"rollout_id": 7}), 400, "Expected `str`"),
        ("get_rollout_by_id", msgspec.msgpack.encode({"rollout_id": "a", "more": 1}), 400, "unknown field `more`"),
        ("add_span", msgspec.msgpack.encode({"span": {"name": "x"}}), 400, "missing required field"),
    ],
)
async def test_malformed_calls_get_one_line(
    server: StoreServer, method: str, body: bytes, status: int, line: str
) -> None:
    got, text = await post(f"{server.add(MemoryStore())}/{method}", body)
    assert got == status
    assert line in text and "\n" not in text


async def test_a_request_that_is_too_large_is_refused(server: StoreServer) -> None:
    assert ServerLimits().max_body == 64 * 1024 * 1024
    async with through(server.add(MemoryStore(), limits=ServerLimits(max_body=10_000))) as store:
        await store.enqueue_rollout("x" * 9_000)
        with pytest.raises(StoreError, match="10000 bytes"):
            await store.enqueue_rollout("x" * 10_000)


async def test_errors_are_raised_again_as_what_they_were(server: StoreServer) -> None:
    async with through(server.add(MemoryStore())) as store:
        with pytest.raises(NotFound, match=f"there is no rollout {MISSING}"):
            await store.start_attempt(MISSING)
        with pytest.raises(ValueError, match="cannot sort by 'x'"):
            await store.query_rollouts(sort_by="x")
        with pytest.raises(UsageError, match="cannot be stored"):
            await store.enqueue_rollout(1, rollout_id="a\0")


@pytest.mark.parametrize("path", ["add_span", "start_rollout", "together"])
@pytest.mark.parametrize("json", [True, False])
async def test_what_is_nested_too_deep_is_no_call(server: StoreServer, path: str, json: bool) -> None:
    deep = b"[" * 100_000 if json else b"\x91" * 100_000
    body = b'{"input": ' + deep if json else b"\x81\xa5input" + deep
    kind = "application/json" if json else "application/msgpack"
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": kind}
    async with httpx.AsyncClient(headers=headers) as client:
        answer = await client.post(f"{server.add(MemoryStore())}/{path}", content=body)
    assert answer.status_code == (415 if json and path == "together" else 400), answer.text


async def test_a_failing_store_says_so_without_its_secrets(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    behind = MemoryStore()

    async def broken() -> dict[str, int]:
        raise RuntimeError("postgresql://user:secret@host")

    monkeypatch.setattr(behind, "statistics", broken)
    async with through(server.add(behind)) as store:
        with pytest.raises(StoreError, match="the store failed; its log has the reason"):
            await store.statistics()
    assert "RuntimeError: postgresql://***@host" in caplog.text
    assert "secret" not in caplog.text


async def test_a_lost_answer_changes_nothing(server: StoreServer) -> None:
    behind = MemoryStore()
    flaky = LosesAnswers(store_app(behind, authorize=accepts))
    async with through(server.add_app(flaky)) as store:
        await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(3)])
        flaky.lose = 2
        got = await store.dequeue_rollout("w")
        assert got is not None and got.attempt.sequence_id == 1
        assert flaky.calls == 4
        assert await queue_length(behind) == 2
        flaky.lose = 1
        stored = await store.add_span(span_of(got.attempt))
        assert stored is not None and stored.sequence_id == 1
        flaky.lose = 1
        assert await store.get_next_span_sequence_id(got.rollout_id, "latest") == 2
        flaky.lose = 1
        assert (await store.enqueue_rollout("once")).status == "queuing"
        assert await queue_length(behind) == 3
        flaky.lose = 1
        assert (await store.query_spans(got.rollout_id)).items == [stored]


async def test_a_server_that_was_killed_before_it_answered_has_made_everything_once(
    server: StoreServer, tmp_path: Path
) -> None:
    behind = await SqlStore.open(tmp_path / "store.db")

    async def remembers_nothing(scope: Scope, receive: Receive, send: Send) -> None:
        await store_app(behind, authorize=accepts)(scope, receive, send)  # as one that was started anew

    flaky = LosesAnswers(remembers_nothing)
    async with through(server.add_app(flaky)) as store:
        await store.enqueue_rollout("queued before")
        flaky.lose = 1
        started = await store.start_rollout("started")
        flaky.lose = 1
        claim = await store.dequeue_rollout("w")
        assert claim is not None and claim.attempt.sequence_id == 1
        flaky.lose = 1
        resources = await store.add_resources({"main_llm": LLM(endpoint="http://127.0.0.1:1", model="m")})
        flaky.lose = 1
        stored = await store.add_span(span_of(started.attempt))
        flaky.lose = 1
        await store.enqueue_rollout("queued after")
    assert stored is not None and stored.sequence_id == 1
    assert resources.version == 1
    counts = await counts_of(behind)
    assert {name: counts[name] for name in ("total_rollouts", "total_attempts", "total_spans", "total_resources")} == {
        "total_rollouts": 3,
        "total_attempts": 2,
        "total_spans": 1,
        "total_resources": 1,
    }
    await behind.close()


async def test_a_caller_that_has_gone_takes_no_work(server: StoreServer) -> None:
    behind = MemoryStore()
    url = server.add(behind)
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {TOKEN}"}) as session:
        call = msgspec.msgpack.encode({"timeout": 20.0})
        waiting = asyncio.create_task(session.post(f"{url}/dequeue_many_rollouts", data=call))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.2)
    await behind.enqueue_rollout(1)
    await asyncio.sleep(0.1)
    assert await queue_length(behind) == 1


async def test_a_server_that_is_not_there(unused_tcp_port: int) -> None:
    async with through(f"http://127.0.0.1:{unused_tcp_port}", patience=0.3) as store:
        with pytest.raises(StoreError, match=f"http://127.0.0.1:{unused_tcp_port} does not answer"):
            await store.statistics()
        with pytest.raises(StoreError, match="does not answer") as nothing_sent:
            await store.enqueue_rollout(1)
        assert "unknown whether" not in str(nothing_sent.value)
        assert TOKEN not in repr(vars(store))


async def test_who_waited_for_the_answer_to_a_write_in_vain_is_told_that_it_may_have_been_made(
    server: StoreServer,
) -> None:
    behind = MemoryStore()
    flaky = LosesAnswers(store_app(behind, authorize=accepts))
    async with through(server.add_app(flaky), patience=0.3) as store:
        got = await claimed(store)
        flaky.lose = 1_000
        calls = [store.enqueue_rollout(1), store.add_span(span_of(got.attempt)), store.update_worker("w")]
        for call in calls:
            with pytest.raises(StoreError, match=r"does not answer: .*; it is unknown whether the data was stored"):
                await call
        with pytest.raises(StoreError, match="does not answer") as reading:
            await store.query_rollouts()
        assert "unknown whether" not in str(reading.value)
    assert (await behind.statistics())["total_spans"] == 1


async def test_a_server_that_comes_late_is_waited_for() -> None:
    late = StoreServer()
    async with through(late.add(MemoryStore()), patience=10.0) as store:
        call = asyncio.create_task(store.enqueue_rollout(1))
        await asyncio.sleep(0.2)
        with late:
            assert (await call).status == "queuing"
            await store.close()


async def test_a_blocked_event_loop_is_no_silence_of_the_server(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent blocks the loop for longer than the client waits for a connection, and for all its patience."""
    monkeypatch.setattr("leyden.core.store.http.connection.CONNECT_SECONDS", 0.1)
    monkeypatch.setattr("leyden.core.store.http.connection.TICK_SECONDS", 0.01)
    async with through(server.add(MemoryStore()), patience=1.5) as store:
        call = asyncio.create_task(store.enqueue_rollout(1))
        for _ in range(20):
            await asyncio.sleep(0)
            time.sleep(0.15)
        assert (await call).status == "queuing"


async def test_long_waits_are_cut_into_short_requests(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("client", "server"):
        monkeypatch.setattr(f"leyden.core.store.http.{module}.LONGEST_WAIT", 0.1)
    behind = MemoryStore()
    counting = LosesAnswers(store_app(behind, authorize=accepts))
    async with through(server.add_app(counting)) as store:
        assert await store.dequeue_many_rollouts(timeout=0.3) == []
        waiting, before = asyncio.create_task(store.dequeue_many_rollouts(timeout=60)), counting.calls
        async with asyncio.timeout(20):
            while counting.calls < before + 3:
                await asyncio.sleep(0.01)
        await behind.enqueue_rollout(1)
        assert len(await waiting) == 1
        got = await claimed(store)
        waiter = asyncio.create_task(store.wait_for_rollouts(rollout_ids=[got.rollout_id, MISSING]))
        await asyncio.sleep(0.35)
        assert not waiter.done()
        await behind.update_attempt(got.rollout_id, "latest", status="succeeded")
        async with asyncio.timeout(20):
            assert [rollout.status for rollout in await waiter] == ["succeeded"]
            assert await store.wait_for_rollouts(rollout_ids=[MISSING]) == []


async def test_capabilities_are_those_of_the_store_behind(server: StoreServer) -> None:
    async with through(server.add(MemoryStore())) as store:
        assert store.otlp_traces_endpoint() is None
        await store.statistics()
        assert store.capabilities == {"durable": False, "multi_process": True, "otlp_traces": True}
        assert (store.otlp_traces_endpoint() or "").endswith("/v1/traces")


async def test_a_closed_client_says_so(server: StoreServer) -> None:
    async with through(server.add(MemoryStore())) as store:
        await store.statistics()
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.statistics()


def test_a_loop_that_ends_takes_its_connections_along(server: StoreServer) -> None:
    store = HttpStore(server.add(MemoryStore()), TOKEN)
    for n in range(3):
        assert asyncio.run(store.enqueue_rollout(n)).input == n
    assert asyncio.run(store.statistics())["queue_length"] == 3
