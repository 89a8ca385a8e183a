"""Streams of server-sent events: one at the beginning, and one at each change."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from leyden.console.plain import one_line
from leyden.core.errors import LeydenError

EVENT_SECONDS = 1.0
"""Least time between two events of all pages together: at each, a browser draws, beside a training on this machine."""
LONGEST_SECONDS = 10.0
"""Most time between two looks for an event of one page, however many pages are open."""
AGAIN = 2.0
"""Seconds after which what could not be read is read again."""
SILENCE = 15.0
"""Seconds after which an event stream sends a comment, so that a connection that is gone is noticed."""


class Pace:
    """Seconds between two events of a page: the more pages are open, the longer."""

    def __init__(self, seconds: float = EVENT_SECONDS) -> None:
        """Let `seconds` pass between two events of all pages together."""
        self._seconds, self._pages = seconds, 0

    @contextmanager
    def page(self) -> Generator[None]:
        """Count one more open page during the block."""
        self._pages += 1
        try:
            yield
        finally:
            self._pages -= 1

    def seconds(self) -> float:
        """Return the time until a page may get its next event."""
        return min(self._seconds * max(1, self._pages), LONGEST_SECONDS)


def event_stream(
    request: Request,
    read: Callable[[], Awaitable[Any]],
    is_stopping: Callable[[], bool],
    *,
    pace: Pace | None = None,
    is_last: Callable[[Any], bool] = lambda _: False,
) -> StreamingResponse:
    """Return a response that sends what `read` returns each time it has changed.

    Streams with the same `pace` share it. A stream ends when the reader leaves, the server stops, or `is_last` returns
    True for what was sent.
    """
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    events = _changes(request, read, is_stopping, pace or Pace(), is_last)
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _changes(
    request: Request,
    read: Callable[[], Awaitable[Any]],
    is_stopping: Callable[[], bool],
    pace: Pace,
    is_last: Callable[[Any], bool],
) -> AsyncGenerator[bytes]:
    sent = b""
    quiet = 0.0
    with pace.page():
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
            seconds = pace.seconds()
            await _pause(seconds, is_stopping)
            quiet += seconds


async def _pause(seconds: float, is_stopping: Callable[[], bool]) -> None:
    """Wait, but not longer than until the server is about to stop."""
    left = seconds
    while left > 0 and not is_stopping():
        await asyncio.sleep(min(left, 0.1))
        left -= 0.1
