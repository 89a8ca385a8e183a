"""Streams of events: how often a page gets one."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from leyden.console.http import events
from leyden.console.http.events import LONGEST_SECONDS, Pace, event_stream


def test_pages_share_the_pace_and_none_waits_too_long() -> None:
    pace = Pace(0.5)
    assert pace.seconds() == 0.5
    with pace.page(), pace.page(), pace.page():
        assert pace.seconds() == 1.5
        with pytest.raises(KeyError), pace.page():
            raise KeyError
        assert pace.seconds() == 1.5
    assert pace.seconds() == 0.5
    assert Pace(2 * LONGEST_SECONDS).seconds() == LONGEST_SECONDS


async def test_a_page_that_is_left_counts_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()

    async def pause(seconds: float, is_stopping: Any) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(events, "_pause", pause)

    async def nothing() -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {}

    numbers = iter(range(100))

    async def number() -> int:
        return next(numbers)

    request = Request({"type": "http"}, nothing)
    pace = Pace()
    first, second = (event_stream(request, number, lambda: False, pace=pace).body_iterator for _ in range(2))
    for stream in (first, second, first, second):
        assert b"event: change" in bytes(await anext(aiter(stream)))  # pyright: ignore[reportArgumentType]
    assert waits == [2.0, 2.0]
    await first.aclose()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    await anext(aiter(second))
    assert waits[-1] == 1.0
