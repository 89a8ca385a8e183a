"""Streams of server-sent events: one at the beginning, and one at each change."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from leyden.console.plain import one_line
from leyden.core.errors import LeydenError

EVENT_SECONDS = 1.0
"""Least time between two events of one page."""
AGAIN = 2.0
"""Seconds after which what could not be read is read again."""
SILENCE = 15.0
"""Seconds after which an event stream sends a comment, so that a connection that is gone is noticed."""


def event_stream(
    request: Request,
    read: Callable[[], Awaitable[Any]],
    is_stopping: Callable[[], bool],
    *,
    seconds: float = EVENT_SECONDS,
    is_last: Callable[[Any], bool] = lambda _: False,
) -> StreamingResponse:
    """Return a response that sends what `read` returns each time it has changed.

    It ends when the reader leaves, the server stops, or `is_last` returns True for what was sent.
    """
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    events = _changes(request, read, is_stopping, seconds, is_last)
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _changes(
    request: Request,
    read: Callable[[], Awaitable[Any]],
    is_stopping: Callable[[], bool],
    seconds: float,
    is_last: Callable[[Any], bool],
) -> AsyncGenerator[bytes]:
    sent = b""
    quiet = 0.0
    while not (is_stopping() or await request.is_disconnected()):
        try:
            found = await read()
        except (LeydenError, OSError, ValueError) as error:  # ValueError: a damaged file of the run
            sent = b""  # what is read next ends the problem, also if nothing has changed
            yield b"event: problem\ndata: " + msgspec.json.encode({"error": one_line(error)}) + b"\n\n"
            await _pause(AGAIN, is_stopping)
            continue
        change = msgspec.json.encode(found)
        if change != sent:
            sent, quiet = change, 0.0
            yield b"event: change\ndata: " + change + b"\n\n"
        elif quiet >= SILENCE:
            quiet = 0.0
            yield b": still here\n\n"
        if is_last(found):
            return
        await _pause(seconds, is_stopping)
        quiet += seconds


async def _pause(seconds: float, is_stopping: Callable[[], bool]) -> None:
    """Wait, but not longer than until the server is about to stop."""
    left = seconds
    while left > 0 and not is_stopping():
        await asyncio.sleep(min(left, 0.1))
        left -= 0.1
