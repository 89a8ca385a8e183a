"""What a server does when more comes than it can take, and what its clients do then."""

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.http.admission import ServerLimits
from leyden.core.store.http.client import HttpStore
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.servers.store_server import TOKEN, StoreServer
from leyden.core.testing.store_contract.shared import claimed, span_of
from leyden.core.tracing.spans.export import Recorder


class Slow(MemoryStore):
    """Writes spans when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.writing = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        if self.loop is not asyncio.get_running_loop():  # the server's
            self.loop.call_soon_threadsafe(self.writing.set)
            waiting = asyncio.run_coroutine_threadsafe(self.may_write.wait(), self.loop)
            await asyncio.wrap_future(waiting)
        return await super().add_many_spans(spans)


def spans_of(attempt: Attempt, first: int, count: int) -> list[Span]:
    return [span_of(attempt, f"{n:x}") for n in range(first, first + count)]


async def metrics(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.integration
async def test_spans_that_wait_are_counted_and_further_ones_come_again(server: StoreServer) -> None:
    behind = Slow()
    url = server.add(behind, limits=ServerLimits(max_waiting_spans=10, scale_at=10))
    attempt = (await claimed(behind)).attempt
    store = HttpStore(url, TOKEN, 10.0)
    first = asyncio.create_task(store.add_many_spans(spans_of(attempt, 1, 12)))
    await behind.writing.wait()
    seen = await metrics(url)
    assert (seen["span_queue_length"], seen["leyden_store_span_queue_threshold"]) == (12, 10)
    assert seen["leyden_store_scale_out"] == 1

    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {TOKEN}"}) as session:
        call = msgspec.msgpack.encode({"span": span_of(attempt, "ff")})
        async with session.post(f"{url}/add_span", data=call) as answer:
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert "12 spans are waiting" in await answer.text()
        async with session.post(f"{url}/v1/traces", headers={"content-type": "application/json"}) as answer:
            assert answer.status == 429
    other = HttpStore(url, TOKEN, 10.0)
    second = asyncio.create_task(other.add_span(span_of(attempt, "ff")))
    async with asyncio.timeout(10):
        while (await metrics(url))["leyden_store_refused_total 429"] < 3:
            assert (await store.statistics())["total_spans"] == 0  # what stores nothing is still answered
    behind.may_write.set()
    assert len(await first) == 12
    stored = await second  # the client has come again
    assert stored is not None and stored.sequence_id == 13
    after = await metrics(url)
    assert (after["span_queue_length"], after["leyden_store_spans_total"]) == (0, 13)
    await store.close()
    await other.close()


async def test_a_client_that_is_always_told_to_come_again_gives_up(server: StoreServer) -> None:
    behind = MemoryStore()
    url = server.add(behind, limits=ServerLimits(max_waiting_spans=0))
    attempt = (await claimed(behind)).attempt
    store = HttpStore(url, TOKEN, 0.5)
    with pytest.raises(StoreError, match="spans are waiting to be written"):
        await store.add_span(span_of(attempt))
    await store.close()


async def test_requests_together_hold_a_bounded_number_of_bytes(server: StoreServer) -> None:
    behind = Slow()
    url = server.add(behind, limits=ServerLimits(max_held=2_000))
    attempt = (await claimed(behind)).attempt
    store = HttpStore(url, TOKEN, 10.0)
    large = asyncio.create_task(store.add_many_spans(spans_of(attempt, 1, 50)))  # alone, more than the limit is taken
    await behind.writing.wait()
    assert (await metrics(url))["leyden_store_held_bytes"] > 2_000
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {TOKEN}"}) as session,
        session.post(f"{url}/statistics", data=b"\x80") as answer,
    ):
        assert answer.status == 429
    behind.may_write.set()
    assert len(await large) == 50
    assert (await store.statistics())["total_spans"] == 50
    assert (await metrics(url))["leyden_store_held_bytes"] == 0
    await store.close()


async def test_a_span_that_is_too_large_holds_nobody_up(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    behind = MemoryStore()
    store = HttpStore(server.add(behind, limits=ServerLimits(max_body=5_000)), TOKEN, 5.0)
    attempt = (await claimed(behind)).attempt
    recorder = Recorder(store.add_many_spans)
    spans = [span_of(attempt, f"{n:x}") for n in range(1, 6)]
    spans[2] = msgspec.structs.replace(spans[2], attributes={"text": "x" * 6_000})
    for span in spans:
        recorder.take(span)
    await recorder.flush()
    kept = await behind.query_spans(attempt.rollout_id)
    assert [span.span_id for span in kept] == [span.span_id for span in spans if not span.attributes]
    assert ": add_many_spans: a request to the store may have at most 5000 bytes" in caplog.text
    await store.close()


async def test_a_body_that_never_ends_is_given_up(server: StoreServer) -> None:
    url = server.add(MemoryStore(), limits=ServerLimits(body_seconds=0.1))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].partition("/")[0]))
    path = "/" + url.rpartition("/")[2]
    head = f"POST {path}/statistics HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 9\r\n\r\n"
    writer.write(head.encode() + b"\x80")
    async with asyncio.timeout(10):
        assert b"408" in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_what_is_counted(server: StoreServer) -> None:
    behind = MemoryStore()
    url = server.add(behind)
    store = HttpStore(url, TOKEN, 5.0)
    await store.enqueue_rollout(1)
    await store.enqueue_rollout(2)
    got = await store.dequeue_rollout()
    assert got is not None and await store.dequeue_many_rollouts(limit=0) == []
    await store.add_many_spans([span_of(got.attempt), span_of(got.attempt)])
    with pytest.raises(ValueError, match="cannot sort"):
        await store.query_spans(got.rollout_id, sort_by="x")
    await store.query_spans(got.rollout_id)
    seen = await metrics(url)
    assert seen["leyden_store_calls_total query_spans 422"] == 1
    assert seen["leyden_store_calls_total query_spans 200"] == 1
    assert seen["leyden_store_claims_total"] == 1
    assert seen["leyden_store_claim_age_seconds_count"] == 1
    assert seen["leyden_store_spans_total"] == 1
    assert seen["leyden_store_queue_length"] == 1
    assert seen["leyden_store_calls_total enqueue_many_rollouts 200"] == 2
    assert seen["leyden_store_call_seconds_count dequeue_many_rollouts"] == 2
    assert seen["leyden_store_stored rollouts"] == 2
    assert 0 < seen["leyden_store_oldest_rollout_seconds queued"] < 60
    assert 0 < seen["leyden_store_oldest_rollout_seconds running"] < 60
    await store.close()
