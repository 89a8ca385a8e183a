"""Lanes: what is sent arrives, connections are used again, and room is given back however an answer ends."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from leyden.core.tracing.wire.connection_pool import SingleConnectionPools


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __iter__(self) -> Iterator[bytes]:
        yield b"answer"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"answer"


class Pool(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Answers at once; counts its requests and its closings."""

    def __init__(self) -> None:
        self.requests = self.closed = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if request.url.path == "/gone":
            raise httpx.ConnectError("gone", request=request)
        return httpx.Response(200, stream=Body())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def pools() -> list[Pool]:
    return []


@pytest.fixture
def lanes(pools: list[Pool]) -> SingleConnectionPools:
    def make() -> Pool:
        pools.append(Pool())
        return pools[-1]

    return SingleConnectionPools(make)


def request(path: str = "/v1") -> httpx.Request:
    return httpx.Request("POST", f"http://gateway{path}")


def test_one_call_at_a_time_uses_one_pool(lanes: SingleConnectionPools, pools: list[Pool]) -> None:
    for _ in range(9):
        answer = lanes.handle_request(request())
        assert answer.read() == b"answer"
        answer.close()
    assert [pool.requests for pool in pools] == [9]


def test_an_open_answer_has_a_lane_to_itself(lanes: SingleConnectionPools, pools: list[Pool]) -> None:
    answers = [lanes.handle_request(request()) for _ in range(3)]
    assert [pool.requests for pool in pools] == [1, 1, 1]
    answers[1].close()
    answers[1].close()  # a second time makes no more room
    for _ in range(2):
        lanes.handle_request(request())
    assert [pool.requests for pool in pools] == [1, 2, 1, 1]


def test_the_lane_that_was_left_last_is_taken_first(lanes: SingleConnectionPools, pools: list[Pool]) -> None:
    for answer in [lanes.handle_request(request()) for _ in range(3)]:
        answer.close()
    for _ in range(4):
        lanes.handle_request(request()).close()
    assert [pool.requests for pool in pools] == [1, 1, 5]


def test_a_call_that_fails_leaves_its_lane(lanes: SingleConnectionPools, pools: list[Pool]) -> None:
    for _ in range(9):
        with pytest.raises(httpx.ConnectError):
            lanes.handle_request(request("/gone"))
    assert len(pools) == 1


async def test_async_answers_fill_lanes_and_leave_them(lanes: SingleConnectionPools, pools: list[Pool]) -> None:
    answers: list[Any] = await asyncio.gather(*(lanes.handle_async_request(request()) for _ in range(3)))
    assert [pool.requests for pool in pools] == [1, 1, 1]
    for answer in answers:
        assert await answer.aread() == b"answer"
        await answer.aclose()
    with pytest.raises(httpx.ConnectError):
        await lanes.handle_async_request(request("/gone"))
    await (await lanes.handle_async_request(request())).aclose()
    assert [pool.requests for pool in pools] == [1, 1, 3]
    await lanes.aclose()
    assert [pool.closed for pool in pools] == [1, 1, 1]


def test_closing_closes_every_pool(lanes: SingleConnectionPools, pools: list[Pool]) -> None:
    for answer in [lanes.handle_request(request()) for _ in range(2)]:
        answer.close()
    lanes.handle_request(request())
    lanes.close()
    assert [pool.closed for pool in pools] == [1, 1]
