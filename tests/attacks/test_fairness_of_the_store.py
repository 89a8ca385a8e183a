"""One attempt sends what keeps a store's server busy: it is refused or waits, and all others are answered."""

import asyncio
import gzip
import io
import threading
import zlib
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from leyden.core.data.encoding.decompression import Inflater
from leyden.core.data.production import CaptureBegin, CaptureBegun, CaptureEnd, CaptureSpans
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Span
from leyden.core.gateway.production import captures
from leyden.core.store.http import server
from leyden.core.store.http.admission import SMALL_PIECE, AgentLimits, ServerLimits
from leyden.core.store.http.client import HttpStore
from leyden.core.store.http.long_work import LARGE
from leyden.core.store.http.otlp import reading
from leyden.core.store.memory import MemoryStore
from leyden.core.store.rpc import BatchPart, methods
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import scripted_gateway
from leyden.core.testing.servers.store_server import ACCESS, TOKEN, StoreServer
from leyden.core.testing.store_contract.shared import claimed, span_of

PATIENCE_SECONDS = 150.0
PROTOBUF, JSON, MSGPACK = "application/x-protobuf", "application/json", "application/msgpack"


class Held(MemoryStore):
    """Writes spans of the attempts in `held` only once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()
        self.may_write = threading.Event()

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        if not self.held.isdisjoint(span.attempt_id for span in spans):
            await asyncio.to_thread(self.may_write.wait, PATIENCE_SECONDS)
        return await super().add_many_spans(spans)


@pytest.fixture
def http() -> Generator[StoreServer]:
    with StoreServer() as server:
        yield server


@pytest.fixture
async def store() -> AsyncGenerator[Held]:
    store = Held()
    yield store
    store.may_write.set()
    await store.close()


@pytest.fixture
async def own(store: Held) -> Attempt:
    """The attempt that attacks."""
    return (await claimed(store)).attempt


@pytest.fixture
async def other(store: Held) -> Attempt:
    """One that does not."""
    return (await claimed(store)).attempt


def token_of(attempt: Attempt) -> str:
    return ACCESS.agent_token(attempt.rollout_id, attempt.attempt_id)


async def post(
    url: str, body: bytes, token: str, kind: str = MSGPACK, encoding: str | None = None
) -> tuple[int, str, str | None]:
    """Send a request; returns status, text and when to come again."""
    headers = {"authorization": f"Bearer {token}", "content-type": kind}
    if encoding is not None:
        headers["content-encoding"] = encoding
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, data=io.BytesIO(body)) as answer,
    ):
        text = (await answer.read()).decode("utf-8", "replace")
        return answer.status, text, answer.headers.get("retry-after")


async def check_others_are_served(url: str, other: Attempt) -> None:
    """A trainer's call, another agent's span and the health page are answered."""
    for token, span_id in ((TOKEN, "a"), (token_of(other), "b")):
        client = HttpStore(url, token, PATIENCE_SECONDS)
        assert await client.add_span(span_of(other, span_id)) is not None
        await client.close()
    async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz") as answer:
        assert answer.status == 200


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Have every call of a function noted, with the name of its thread."""
    calls: list[str] = []
    function = getattr(owner, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        calls.append(threading.current_thread().name)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, noted)
    return calls


class Parts:
    """Decodes parts, and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def decode(self, body: bytes) -> list[BatchPart]:
        parts = msgspec.msgpack.decode(body, type=list[BatchPart])
        self.made += len(parts)
        return parts


# --- Many small things in one body


@pytest.mark.parametrize("who", ["agent", "trainer"])
async def test_two_million_calls_in_one_request(
    http: StoreServer, store: Held, own: Attempt, other: Attempt, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """A few kilobytes of gzip hold two million calls: refused before any of them is made."""
    parts = Parts()
    monkeypatch.setattr(server, "_PARTS", parts)
    url, count = http.add(store), 2_000_000
    one = msgspec.msgpack.encode(BatchPart("x", "", b""))
    body = gzip.compress(b"\xdd" + count.to_bytes(4, "big") + one * count, 1)
    assert len(body) < 100_000
    status, said, _ = await post(f"{url}/together", body, token_of(own) if who == "agent" else TOKEN, encoding="gzip")
    assert (status, parts.made) == (413, 0)
    assert said.startswith("a request to the store may hold") and "calls, not 2000000" in said
    await check_others_are_served(url, other)


async def test_how_many_calls_one_request_may_have(http: StoreServer, store: Held, own: Attempt) -> None:
    """An agent sends as many calls as it may and one more, and a trainer as many as that and more than it may."""
    url = http.add(store, limits=ServerLimits(max_parts=3, agent=AgentLimits(max_parts=2)))
    calls = [BatchPart("add_span", "", methods()["add_span"].encode_call(span_of(own, f"{n:x}"))) for n in range(1, 5)]
    taken = [
        (await post(f"{url}/together", msgspec.msgpack.encode(calls[:count]), token))[0]
        for token, count in ((token_of(own), 2), (token_of(own), 3), (TOKEN, 3), (TOKEN, 4))
    ]
    assert taken == [200, 413, 200, 413]


async def test_a_call_that_is_longer_than_calls_are(http: StoreServer, store: Held, own: Attempt) -> None:
    """An agent hides millions of values behind those that a call has."""
    body = msgspec.msgpack.encode([["add_span", "", b"", *[None] * 1000]])
    status, said, _ = await post(f"{http.add(store)}/together", body, token_of(own))
    assert (status, said.startswith("not a list of calls")) == (400, True)


def otlp_spans(count: int) -> bytes:
    """As many spans without anything in them, in the protobuf of OTLP."""
    scope = b"\x12\x00" * count
    resource = b"\x12" + varint(len(scope)) + scope
    return b"\x0a" + varint(len(resource)) + resource


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("who", ["agent", "trainer"])
async def test_five_million_empty_spans_by_otlp(
    http: StoreServer, store: Held, own: Attempt, other: Attempt, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Ten kilobytes of gzip hold five million spans without anything in them: refused before any of them is made."""
    made = counting(monkeypatch, reading, "_decoded")
    url = http.add(store)
    token = token_of(own) if who == "agent" else TOKEN
    status, said, _ = await post(
        f"{url}/v1/traces", gzip.compress(otlp_spans(5_000_000), 1), token, PROTOBUF, encoding="gzip"
    )
    assert (status, made) == (413, [])
    assert "spans, not more" in said
    await check_others_are_served(url, other)


async def test_how_many_spans_an_otlp_request_may_have(http: StoreServer, store: Held, own: Attempt) -> None:
    """An agent and a trainer send as many spans as they may and one more, in protobuf and in JSON."""
    url = http.add(store, limits=ServerLimits(max_spans=5, agent=AgentLimits(max_spans=3)))
    found: list[int] = []
    for token, count in ((token_of(own), 3), (token_of(own), 4), (TOKEN, 5), (TOKEN, 6)):
        as_json = b'{"resourceSpans": [{"scopeSpans": [{"spans": [%s]}]}]}' % b",".join([b"{}"] * count)
        for body, kind in ((otlp_spans(count), PROTOBUF), (as_json, JSON)):
            found.append((await post(f"{url}/v1/traces", body, token, kind))[0])
    assert found == [200, 200, 413, 413] * 2


async def test_one_span_with_a_million_attributes_by_otlp(
    http: StoreServer, store: Held, own: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent sends one span whose attributes, or one of them, are a million values: refused before they are made."""
    made = counting(monkeypatch, reading, "_decoded")
    request: Any = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    spans.add().attributes.add(key="x").value.array_value.values.add()
    values = b"\x0a\x00" * 1_000_000  # of an array
    many = b"\x2a" + varint(len(values)) + values
    value = b"\x12" + varint(len(many)) + many
    attribute = b"\x4a" + varint(len(value)) + value
    span = b"\x12" + varint(len(attribute)) + attribute
    scope = b"\x12" + varint(len(span)) + span
    as_json = b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": [%s{}]}]}]}]}' % (b"{}," * 1_000_000)
    for body, kind in ((b"\x0a" + varint(len(scope)) + scope, PROTOBUF), (as_json, JSON)):
        status, said, _ = await post(f"{http.add(store)}/v1/traces", body, token_of(own), kind)
        assert (status, made) == (413, []), said
        assert "may hold at most 500000 values" in said


def values_of(attempt: Attempt, values: int) -> bytes:
    """A call that stores a span with as many values in one attribute as make `values` in all."""
    span = msgspec.structs.replace(span_of(attempt, "1"), attributes={"x": []})
    around = count_of(msgspec.msgpack.decode(methods()["add_span"].encode_call(span)))
    span = msgspec.structs.replace(span, attributes={"x": [1] * (values - around)})
    return methods()["add_span"].encode_call(span)


def count_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(count_of(key) + count_of(item) for key, item in value.items())  # pyright: ignore[reportUnknownVariableType]
    return 1 + sum(map(count_of, value)) if isinstance(value, list) else 1  # pyright: ignore[reportUnknownArgumentType]


async def test_how_many_values_a_call_may_have(http: StoreServer, store: Held, own: Attempt) -> None:
    """An agent stores a span with as many values as it may, and one with one more, alone and together with others."""
    url = http.add(store, limits=ServerLimits(agent=AgentLimits(max_values=500)))
    found: list[int] = []
    for values in (500, 501):
        call = values_of(own, values)
        found.append((await post(f"{url}/add_span", call, token_of(own)))[0])
        together = msgspec.msgpack.encode([BatchPart("add_span", "", call)])
        found.append((await post(f"{url}/together", together, token_of(own)))[0])
    assert found == [200, 200, 413, 413]


async def test_how_many_spans_a_call_may_have(http: StoreServer, store: Held, own: Attempt) -> None:
    """An agent stores as many spans as it may and one more, and asks for more numbers."""
    url = http.add(store, limits=ServerLimits(agent=AgentLimits(max_spans=3)))
    spans = [span_of(own, f"{n:x}") for n in range(1, 5)]
    numbers = [(own.rollout_id, own.attempt_id)] * 4
    calls = {
        "add_many_spans": [methods()["add_many_spans"].encode_call(spans[:n]) for n in (3, 4)],
        "get_many_span_sequence_ids": [
            methods()["get_many_span_sequence_ids"].encode_call(numbers[:n]) for n in (3, 4)
        ],
    }
    for name, sent in calls.items():
        assert [(await post(f"{url}/{name}", call, token_of(own)))[0] for call in sent] == [200, 413]


# --- Where large bodies are read


async def test_large_bodies_are_not_read_where_all_requests_are_answered(
    http: StoreServer, store: Held, own: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent sends bodies that take long to decompress and to decode: neither is done on the event loop."""
    loop = next(thread.name for thread in threading.enumerate() if "leyden test server" in thread.name)
    decoded, read = counting(monkeypatch, server, "_decoded"), counting(monkeypatch, reading, "read_request")
    inflated: list[str] = []
    push = Inflater.push

    def noted(inflater: Inflater, data: bytes) -> bytes:
        if len(data) > SMALL_PIECE:
            inflated.append(threading.current_thread().name)
        return push(inflater, data)

    monkeypatch.setattr(Inflater, "push", noted)
    url, large = http.add(store), msgspec.structs.replace(span_of(own, "1"), attributes={"x": "x" * LARGE})
    small = span_of(own, "2")
    threads: list[str] = []
    for span in (large, small):
        body = zlib.compress(methods()["add_span"].encode_call(span), 0)  # as long as what it stands for
        assert (await post(f"{url}/add_span", body, token_of(own), encoding="deflate"))[0] == 200
        threads.append(decoded.pop())
    assert [name == loop for name in threads] == [False, True]
    assert inflated and loop not in inflated
    for count in (4000, 1):
        assert (await post(f"{url}/v1/traces", otlp_spans(count), token_of(own), PROTOBUF))[0] == 200
    assert [name == loop for name in read] == [False, True]


# --- Requests that stay


@asynccontextmanager
async def stalled(url: str, token: str, body: bytes, count: int) -> AsyncGenerator[list[asyncio.StreamReader]]:
    """Requests that send the beginning of a body and no more."""
    _, _, rest = url.partition("://")
    where, _, path = rest.partition("/")
    host, _, port = where.partition(":")
    head = (
        f"POST /{path}/add_span HTTP/1.1\r\nhost: {where}\r\nauthorization: Bearer {token}\r\n"
        f"content-encoding: gzip\r\ncontent-length: {len(body) + 1000}\r\n\r\n"
    )
    connections = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    for _, writer in connections:
        writer.write(head.encode() + body)
    try:
        yield [reader for reader, _ in connections]
    finally:
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()


def beginning(size: int) -> bytes:
    """Of a body that stands for at least `size` bytes, more than half of which it gives away at once."""
    compress = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return compress.compress(b"\x00" * size) + compress.flush(zlib.Z_SYNC_FLUSH)


async def held_bytes(url: str) -> float:
    return await metric(url, "leyden_store_held_bytes")


async def metric(url: str, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_bodies_that_stall_take_no_others_room(
    http: StoreServer, store: Held, own: Attempt, other: Attempt
) -> None:
    """An agent begins eight compressed bodies that fill the server, and sends no more of them."""
    limits = ServerLimits(max_held=50_000, max_held_by_agents=40_000, agent=AgentLimits(max_held=20_000))
    url = http.add(store, limits=limits)
    async with stalled(url, token_of(own), beginning(15_000), 8) as readers, asyncio.timeout(PATIENCE_SECONDS):
        while await held_bytes(url) < 15_000:
            await asyncio.sleep(0)
        answers = [asyncio.ensure_future(reader.readline()) for reader in readers]
        while sum(answer.done() for answer in answers) < 7:  # one of them has the agent's share
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        assert all(b" 429 " in answer.result() for answer in answers if answer.done())
        assert await held_bytes(url) == 15_000
        await check_others_are_served(url, other)
        for answer in answers:
            answer.cancel()


async def test_agents_together_leave_a_trainers_room(http: StoreServer, store: Held, own: Attempt) -> None:
    """Agents fill with stalled bodies all that agents may: a trainer has as much room as before."""
    limits = ServerLimits(max_held=50_000, max_held_by_agents=20_000, agent=AgentLimits(max_held=20_000))
    url = http.add(store, limits=limits)
    second = (await claimed(store)).attempt
    async with (
        stalled(url, token_of(own), beginning(12_000), 1),
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        while await held_bytes(url) < 12_000:
            await asyncio.sleep(0)
        large = msgspec.structs.replace(span_of(second, "1"), attributes={"x": "x" * 12_000})
        call = methods()["add_span"].encode_call(large)
        status, said, again = await post(f"{url}/add_span", call, token_of(second))
        assert (status, again) == (429, "1") and "holds too many requests" in said
        larger = msgspec.structs.replace(large, attributes={"x": "x" * 45_000})
        assert (await post(f"{url}/add_span", methods()["add_span"].encode_call(larger), TOKEN))[0] == 200


@pytest.mark.parametrize("who", ["agent", "trainer"])
async def test_a_body_that_drips_is_ended(http: StoreServer, store: Held, own: Attempt, who: str) -> None:
    """A client sends byte after byte, never long after one another, for ever."""
    url = http.add(store, limits=ServerLimits(gap_seconds=0.3, min_rate=1 << 30, body_seconds=1e6))
    where = url.partition("://")[2].partition("/")[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", int(where.partition(":")[2]))
    token = token_of(own) if who == "agent" else TOKEN
    path = url.rpartition("/")[2]
    head = f"POST /{path}/add_span HTTP/1.1\r\nhost: {where}\r\nauthorization: Bearer {token}\r\n"
    writer.write(f"{head}content-length: 60000000\r\n\r\n".encode())
    answer = asyncio.ensure_future(reader.readline())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not answer.done():
            writer.write(b"\x80")
            await asyncio.wait([answer], timeout=0.01)
    assert b" 408 " in answer.result()
    writer.close()
    await writer.wait_closed()


async def test_requests_at_once(http: StoreServer, store: Held, own: Attempt, other: Attempt) -> None:
    """An agent has as many requests at once as it may: the next comes again, others' do not, and later it is taken."""
    store.held.add(own.attempt_id)
    url = http.add(store, limits=ServerLimits(agent=AgentLimits(max_requests=2, wait_seconds=0.1)))
    call = [methods()["add_many_spans"].encode_call([span_of(own, f"{n:x}")]) for n in range(1, 4)]
    first = [asyncio.create_task(post(f"{url}/add_many_spans", body, token_of(own))) for body in call[:2]]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await held_bytes(url) < len(call[0]) + len(call[1]):
            await asyncio.sleep(0)
        status, said, again = await post(f"{url}/add_many_spans", call[2], token_of(own))
        assert (status, said, again) == (429, "an agent may make 2 requests at once; send this again later", "1")
        await check_others_are_served(url, other)
        store.may_write.set()
        assert [(await answer)[0] for answer in first] == [200, 200]
        assert (await post(f"{url}/add_many_spans", call[2], token_of(own)))[0] == 200


async def test_large_requests_of_one_agent_wait_for_one_another(
    http: StoreServer, store: Held, own: Attempt, other: Attempt
) -> None:
    """An agent sends eight large requests at once: one is worked on; its small ones and others' large ones go on."""
    store.held.add(own.attempt_id)
    url = http.add(store)
    add = methods()["add_many_spans"]
    large = {"x": "x" * LARGE}
    spans = [msgspec.structs.replace(span_of(own, f"{n:x}"), attributes=large) for n in range(1, 9)]
    calls = [add.encode_call([span]) for span in spans]
    sent = [asyncio.create_task(post(f"{url}/add_many_spans", call, token_of(own))) for call in calls]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await held_bytes(url) < 8 * LARGE:
            await asyncio.sleep(0)
        while await metric(url, "span_queue_length") < 1:
            await asyncio.sleep(0)
        assert await metric(url, "span_queue_length") == 1
        others = msgspec.structs.replace(span_of(other, "f"), attributes=large)
        assert (await post(f"{url}/add_many_spans", add.encode_call([others]), token_of(other)))[0] == 200
        number = methods()["get_next_span_sequence_id"].encode_call(own.rollout_id, own.attempt_id)
        assert (await post(f"{url}/get_next_span_sequence_id", number, token_of(own)))[0] == 200
        store.may_write.set()
        assert [(await answer)[0] for answer in sent] == [200] * 8


# --- By captures in production


def spans_message(attempt: tuple[str, str], spans: int, values: int = 0) -> bytes:
    kept = [
        span_of(
            Attempt(rollout_id=attempt[0], attempt_id=attempt[1], sequence_id=1, start_time=0.0, status="running"),
            f"{n:x}",
        )
        for n in range(1, spans + 1)
    ]
    kept[0] = msgspec.structs.replace(kept[0], attributes={"x": [1] * values})
    return msgspec.msgpack.encode(CaptureSpans(spans=kept))


async def test_captures_with_too_much_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured process sends millions of values in a message, or more spans than it may; large ones off the loop."""
    loop, read = threading.current_thread().name, counting(monkeypatch, captures, "_decoded")
    async with (
        scripted_gateway(lambda _: ScriptedAnswer(ids=[1]), capture_token="captures") as gateway,
        httpx.AsyncClient(base_url=f"{gateway.url}/capture", headers={"content-type": MSGPACK}) as client,
    ):

        async def send(path: str, body: bytes, token: str) -> httpx.Response:
            return await client.post(path, content=body, headers={"authorization": f"Bearer {token}"})

        begun = (await send("/begin", msgspec.msgpack.encode(CaptureBegin()), "captures")).raise_for_status()
        own = msgspec.msgpack.decode(begun.content, type=CaptureBegun)
        ids = own.rollout_id, own.attempt_id
        found = [
            (await send("/spans", body, own.token)).status_code
            for body in (
                spans_message(ids, 1),
                spans_message(ids, 2, LARGE),
                spans_message(ids, 1, 600_000),
                spans_message(ids, 4096),
                spans_message(ids, 4097),
            )
        ]
        notes = CaptureEnd(notes=msgspec.msgpack.decode(spans_message(ids, 4097), type=CaptureSpans).spans)
        found.append((await send("/end", msgspec.msgpack.encode(notes), own.token)).status_code)
    assert found == [200, 200, 413, 200, 413, 413]
    # The beginning, one small and one large message; what holds too many values is not read; then three large ones.
    assert [name == loop for name in read] == [True, True, False, False, False, False]
