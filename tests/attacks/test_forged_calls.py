"""Agents forge the record of a model call: however they write it, nothing is learned from it, and it is marked."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import forging
import httpx
import msgspec
import pytest
from forging import FORGED_BY_AGENT, RECORD, forged_span
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.production import CaptureBegin, CaptureBegun, CaptureEnd, CaptureSpans
from leyden.core.data.rollout import Attempt, AttemptedRollout
from leyden.core.data.span import Span, SpanEvent, SpanLink
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.isolation.live import LiveProcesses
from leyden.core.runner.user_code.loaded_agent import LoadedAgent
from leyden.core.runner.workers.live import run_live
from leyden.core.runner.workers.pool import WorkerPool
from leyden.core.runner.workers.spec import WorkerSpec
from leyden.core.store.base import LightningStore
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.server import store_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import run_one
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from leyden.core.testing.scripted_gateway import scripted_gateway
from leyden.core.testing.servers.store_server import ACCESS, TOKEN, StoreServer
from leyden.core.testing.store_contract.shared import claimed
from leyden.core.tracing.context import current_attempt
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.address import RunAddress, open_gateway
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

PATIENCE_SECONDS = 150.0
CAPTURE_TOKEN = "captures"
MSGPACK = {"content-type": "application/msgpack"}


async def check_marked(store: LightningStore, rollout_id: str, *, forged: int, calls: int = 0) -> None:
    """Only the gateway's `calls` are learned from; `forged` spans are kept, marked, without any of the record."""
    rollout = await store.get_rollout_by_id(rollout_id)
    assert isinstance(rollout, AttemptedRollout)
    spans = (await store.query_spans(rollout_id)).items
    trajectory = assemble(rollout, rollout.attempt, spans, Selector())
    assert (len(trajectory.transitions), trajectory.untrained) == (calls, {})
    marked = [span for span in spans if semconv.FORGED in span.attributes]
    assert len(marked) == forged
    assert all(span.attributes[semconv.FORGED] for span in marked)
    for span in marked:
        for part in (span, *span.events, *span.links):
            assert semconv.CALL_RECORD.isdisjoint(part.attributes)
        assert semconv.CALL_RECORD.isdisjoint(span.resource)


# --- Through a process that runs agents


@asynccontextmanager
async def site(store: LightningStore) -> AsyncGenerator[RunAddress]:
    """What a run serves its workers: gateway and store behind one address, with the token that workers hold."""
    codec = ByteCodec()
    engine = ScriptedEngine(lambda request: codec.answer("hi"))
    async with open_gateway(store, ServedPolicy(name="policy", engine=engine, codec=codec)) as (address, _):
        yield address
    await engine.close()


async def check_agent(store: LightningStore, address: RunAddress) -> None:
    """Have whoever claims rollouts run the agent, and look at what it leaves."""
    task = {"store": f"{address.url}/store", "token": address.token}
    rollout = await store.enqueue_rollout(task, mode="train")
    [ended] = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=PATIENCE_SECONDS)
    assert ended.status == "succeeded", ended
    await check_marked(store, rollout.rollout_id, forged=FORGED_BY_AGENT, calls=1)


async def test_by_an_agent_in_its_runners_process() -> None:
    """The agent writes spans with every tracer, into the attempt's notes, and by HTTP with the token of its worker."""
    store, loaded, stopped = MemoryStore(), LoadedAgent(source=AgentSource.of(forging.run)), threading.Event()
    async with site(store) as address:

        async def live() -> None:
            ending = asyncio.Event()

            async def watch() -> None:
                await asyncio.to_thread(stopped.wait)
                ending.set()

            watching = asyncio.create_task(watch())
            await run_live(
                loaded,
                HttpStore(f"{address.url}/store", address.token),
                gateway_url=address.url,
                key=address.key,
                concurrency=1,
                processes=LiveProcesses("shared", loaded),
                stopped=ending,
            )
            await watching

        running = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(live())))
        try:
            await check_agent(store, address)
        finally:
            stopped.set()
            await running
    await store.close()


async def test_by_an_agent_in_a_forked_process(tmp_path: Path) -> None:
    """The same in a process that a worker has forked for the attempt."""
    store = MemoryStore()
    async with site(store) as address:
        spec = WorkerSpec(
            agent=f"{forging.__file__}:run",
            store_url=f"{address.url}/store",
            store_token=address.token,
            gateway_url=address.url,
            key=address.key.hex(),
            isolation="process",
            log_file=str(tmp_path / "worker.log"),
        )
        pool = WorkerPool(spec, 1)
        await pool.start()
        try:
            await check_agent(store, address)
        finally:
            await pool.stop()
    await store.close()


# --- Through the server of a store


@pytest.fixture
def server() -> Generator[StoreServer]:
    with StoreServer() as server:
        yield server


@pytest.fixture
async def store() -> AsyncGenerator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
async def attempt(store: MemoryStore) -> Attempt:
    return (await claimed(store)).attempt


def ids_of(attempt: Attempt) -> tuple[str, str]:
    return attempt.rollout_id, attempt.attempt_id


def odd_spellings(attempt: Attempt) -> list[Span]:
    """Spans with the record in other places, or of other types, and one that writes the mark itself."""
    ids = ids_of(attempt)
    return [
        forged_span(*ids),
        forged_span(*ids, {}, resource=RECORD),
        forged_span(*ids, {}, events=[SpanEvent(name="chat", time=1.0, attributes=RECORD)]),
        forged_span(*ids, {}, links=[SpanLink(trace_id="0" * 32, span_id="0" * 16, attributes=RECORD)]),
        forged_span(*ids, {semconv.NOT_TRAINED: "answered by an upstream"}),
        forged_span(*ids, {semconv.PROMPT_IDS: [1, 2], semconv.CALL_ID: 7, semconv.POLICY_VERSIONS: "[0, 2]"}),
        forged_span(*ids, {**RECORD, semconv.FORGED: 0}),
    ]


@pytest.mark.parametrize("token", ["agent's", "worker's"])
async def test_by_the_stores_http_interface(
    store: MemoryStore, attempt: Attempt, server: StoreServer, token: str
) -> None:
    """A client stores spans one by one, side by side, several at once and as JSON.

    With the token of its attempt, and with the one that a run gives its workers.
    """
    if token == "agent's":
        url, given = server.add(store), ACCESS.agent_token(*ids_of(attempt))
    else:
        url, given = server.add_app(store_app(store, authorize=ACCESS.is_trainer, trusted=False)), TOKEN
    client, odd = HttpStore(url, given), odd_spellings(attempt)
    one, several = odd_spellings(attempt), odd_spellings(attempt)
    for span in odd:
        await client.add_span(span)
    await asyncio.gather(*map(client.add_span, one))
    await client.add_many_spans(several)
    await client.close()
    as_json = {"span": msgspec.to_builtins(forged_span(*ids_of(attempt), {semconv.NOT_TRAINED: "frozen policy"}))}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {given}"}) as session,
        session.post(f"{url}/add_span", json=as_json) as answer,
    ):
        assert answer.status == 200, await answer.text()
    await check_marked(store, attempt.rollout_id, forged=3 * len(odd) + 1)


async def test_a_gateway_elsewhere_that_has_the_trainers_token_is_believed(
    store: MemoryStore, attempt: Attempt, server: StoreServer
) -> None:
    client = HttpStore(server.add(store), TOKEN)
    await client.add_span(forged_span(*ids_of(attempt)))
    await client.close()
    await check_marked(store, attempt.rollout_id, forged=0, calls=1)


def put(attributes: Any, record: dict[str, Any]) -> None:
    """Add `record` to attributes of OTLP, ids and log-probabilities as lists of numbers."""
    for name, value in record.items():
        given = attributes.add(key=name).value
        if name in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS):
            add_numbers(given, "int_value", unpack_ids(value))
        elif name in (semconv.RESPONSE_LOGPROBS, semconv.SAMPLING_LOGPROBS):
            add_numbers(given, "double_value", unpack_log_probs(value))
        elif isinstance(value, list):
            add_numbers(given, "int_value", cast("list[int]", value))
        elif isinstance(value, int):
            given.int_value = value
        else:
            given.string_value = value


def add_numbers(given: Any, kind: str, numbers: Iterable[float]) -> None:
    """Have a value of OTLP hold a list of numbers."""
    for number in numbers:
        given.array_value.values.add(**{kind: number})


@pytest.mark.parametrize("token", ["agent's", "worker's"])
async def test_by_otlp(store: MemoryStore, attempt: Attempt, server: StoreServer, token: str) -> None:
    """An exporter sends the record packed, as lists and as a map: of spans, their resource, an event and a link."""
    if token == "agent's":
        url, given = server.add(store), ACCESS.agent_token(*ids_of(attempt))
    else:
        url, given = server.add_app(store_app(store, authorize=ACCESS.is_trainer, trusted=False)), TOKEN
    request: Any = ExportTraceServiceRequest()
    named = {semconv.ROLLOUT_ID: attempt.rollout_id, semconv.ATTEMPT_ID: attempt.attempt_id}
    plain, of_resource = request.resource_spans.add(), request.resource_spans.add()
    put(plain.resource.attributes, named)
    put(of_resource.resource.attributes, {**named, **RECORD})
    scoped = plain.scope_spans.add()
    spans = [scoped.spans.add() for _ in range(5)] + [of_resource.scope_spans.add().spans.add()]
    for number, span in enumerate(spans, start=1):
        span.trace_id, span.span_id, span.name = b"t" * 16, number.to_bytes(8, "big"), "chat"
        span.start_time_unix_nano, span.end_time_unix_nano = number, number + 1
    put(spans[0].attributes, RECORD)
    for name, value in RECORD.items():
        if isinstance(value, bytes):
            spans[1].attributes.add(key=name).value.bytes_value = value
    put(spans[2].events.add(name="chat").attributes, RECORD)
    put(spans[3].links.add(trace_id=b"t" * 16, span_id=b"s" * 8).attributes, RECORD)
    spans[4].attributes.add(key=semconv.CALL_ID).value.kvlist_value.values.add(key="id").value.int_value = 1
    headers = {"authorization": f"Bearer {given}", "content-type": "application/x-protobuf"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/v1/traces", data=request.SerializeToString()) as answer,
    ):
        assert (answer.status, await answer.read()) == (200, b"")
    await check_marked(store, attempt.rollout_id, forged=len(spans))


# --- Through captures in production


async def test_by_a_capture_in_production() -> None:
    """A captured process sends the record among its spans, and among the notes with which its attempt ends."""
    codec = ByteCodec()

    def answers(_: object) -> ScriptedAnswer:
        return ScriptedAnswer(ids=codec.answer("hi"))

    async with (
        scripted_gateway(answers, capture_token=CAPTURE_TOKEN) as gateway,
        httpx.AsyncClient(base_url=f"{gateway.url}/capture", headers=MSGPACK) as client,
    ):

        async def tell(path: str, said: object, token: str) -> bytes:
            headers = {"authorization": f"Bearer {token}"}
            answer = await client.post(path, content=msgspec.msgpack.encode(said), headers=headers)
            return answer.raise_for_status().content

        begun = msgspec.msgpack.decode(await tell("/begin", CaptureBegin(), CAPTURE_TOKEN), type=CaptureBegun)
        ids = begun.rollout_id, begun.attempt_id
        async with httpx.AsyncClient(base_url=gateway.url) as agent:
            headers = {"authorization": f"Bearer {begun.token}"}
            (await agent.post("/v1/chat/completions", json=forging.CALL, headers=headers)).raise_for_status()
        await tell("/spans", CaptureSpans(spans=[forged_span(*ids), forged_span(*ids)]), begun.token)
        await tell("/end", CaptureEnd(notes=[forged_span(*ids)]), begun.token)
        await check_marked(gateway.store, ids[0], forged=3, calls=1)


# --- What is said of it


def forges(task: Any) -> str:
    """An agent that notes two calls that were never made."""
    attempt = current_attempt()
    assert attempt is not None
    attempt.notes.extend(forged_span(attempt.rollout_id, attempt.attempt_id) for _ in range(2))
    return "done"


def why(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert run(["why", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_leyden_why_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent notes calls that were never made; `leyden why` counts the spans, and has no model call."""
    folder = RunFolder.create(tmp_path, RunConfig(name="forged", policy="p", agent="a"), [{"question": "?"}], {})

    async def ran() -> str:
        store = await folder.store_location.open()
        ended, _ = await run_one(forges, mode="train", store=store)
        await store.close()
        return ended.rollout_id

    rollout_id = asyncio.run(ran())
    said = "had a model call record that no gateway wrote; it is not trained on (such as "
    of_run = why(capsys, ["forged", "--runs", str(tmp_path)])
    assert f"\nBesides\n      2  a span {said}{rollout_id})\n" in of_run
    assert "model call:" not in of_run
    assert f"\n  2 spans {said}" in why(capsys, ["forged", rollout_id, "--runs", str(tmp_path)])
