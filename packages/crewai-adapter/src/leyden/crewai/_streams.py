"""Streams: reads CrewAI's streams (`stream=True`) to their end, and returns their outputs."""

from contextlib import aclosing, suppress
from typing import Any

from leyden.core.runner.attempts.threads import in_thread

MODULE = "crewai.types.streaming"


def is_stream(result: object) -> bool:
    """Whether `result` is a stream of a crew, a flow or an agent; matched by name, so that it loads nothing."""
    return any(base.__module__ == MODULE and hasattr(base, "result") for base in type(result).__mro__)


def read(stream: Any) -> Any:
    """Read a stream that a sync method returned, and return the output, or the outputs of several runs."""
    for _ in stream:
        continue
    return _output(stream)


async def read_any(stream: Any) -> Any:
    """Read a stream of either kind, a sync one in a thread, unless its user has read it."""
    if not stream.is_completed:
        # Both kinds have both ways to iterate; only a private attribute shows which one works.
        if getattr(stream, "_async_iterator", None) is None:
            return await in_thread(read, stream)
        async with aclosing(stream):
            async for _ in stream:
                continue
    return _output(stream)


def _output(stream: Any) -> Any:
    for name in ("result", "results"):
        with suppress(RuntimeError):  # there is none of this kind
            return getattr(stream, name)
    return None
