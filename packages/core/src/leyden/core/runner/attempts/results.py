"""Completion of results that an agent returns before they are complete: coroutines, generators, streams.

They are completed inside the attempt, where their model calls are routed. Otherwise a reward function that iterates
over a generator would make the agent's calls outside the attempt, at the agent's own provider.
"""

import asyncio
import io
import operator
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import aclosing, nullcontext, suppress
from inspect import getattr_static, isawaitable
from typing import Any, cast

from leyden.core.errors import LeydenError
from leyden.core.runner.adapters.registry import installed_adapters
from leyden.core.runner.attempts.threads import in_thread
from leyden.core.tracing.context import is_left_over

MOST_PIECES = 1_000_000


async def completed(result: Any) -> Any:
    """Return `result` with nothing left to run.

    An awaitable is awaited. An iterator or a stream is read to its end, and its pieces replace it. Pieces that are all
    text or all bytes are joined; others become a list. A generator that returns a value is replaced by that value.

    The items of a dict, a list or a tuple are completed in the same way, but no deeper. An adapter completes its
    framework's own streams. Any other value is returned unchanged.

    Raises LeydenError when there are more than `MOST_PIECES` pieces, or when the attempt ends first.
    """
    result = await _completed(result)
    parts = _parts(result)
    if all(_is_plain(part) for part in parts):
        return result
    done: list[Any] = []
    try:
        for part in parts:
            done.append(part if _is_plain(part) else await _completed(part))
    finally:
        for part in parts:
            _discard(part)
    if all(map(operator.is_, done, parts)):
        return result
    kind: Any = cast("Any", type(result))
    return dict(zip(result, done, strict=True)) if kind is dict else kind(done)


def completed_here(result: Any) -> Any:
    """Return `result`, or the joined pieces of an iterator, which the calling thread reads."""
    return _joined(*_read(result)) if _is_iterator(result) else result


async def _completed(result: Any) -> Any:
    while True:
        finished = await _by_framework(result)
        if finished is not result:
            result = finished
        elif isinstance(result, Future):
            result = await asyncio.wrap_future(cast("Future[Any]", result))
        elif isawaitable(result):
            result = await result
        elif isinstance(result, AsyncIterable):
            return _joined(await _read_async(cast("AsyncIterable[Any]", result)))
        elif _is_response(result):
            result = result.body_iterator
        elif _is_iterator(result):
            return await in_thread(completed_here, result)
        else:
            return result


async def _by_framework(result: Any) -> Any:
    for adapter in installed_adapters():
        finished = await adapter.completed(result)
        if finished is not result:
            return finished
    return result


def _read(pieces: Iterator[Any]) -> tuple[list[Any], Any]:
    """Return all pieces, and the value that a generator returns after them."""
    pieces, found = iter(pieces), list[Any]()  # iter() of a mock returns another object than the mock
    while True:
        try:
            found.append(next(pieces))
        except StopIteration as end:
            return found, end.value
        _check(found)


async def _read_async(pieces: AsyncIterable[Any]) -> list[Any]:
    iterator, found = aiter(pieces), list[Any]()
    async with aclosing(cast("Any", iterator)) if hasattr(iterator, "aclose") else nullcontext():
        while True:  # `async for` also needs `__aiter__` on the iterator, which some do not have
            try:
                found.append(await anext(iterator))
            except StopAsyncIteration:
                return found
            _check(found)


def _check(found: list[Any]) -> None:
    """Raise LeydenError for an endless iterator, or in a thread whose attempt has ended."""
    if len(found) > MOST_PIECES:
        raise LeydenError(f"the agent's result is an iterator with more than {MOST_PIECES:,} pieces")
    if is_left_over():
        raise LeydenError("the attempt ended before the agent's result was complete")


def _joined(pieces: list[Any], returned: Any = None) -> Any:
    if returned is not None:
        return returned
    if pieces and all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    if pieces and all(isinstance(piece, bytes) for piece in pieces):
        return b"".join(pieces)
    return pieces


def _parts(result: Any) -> list[Any]:
    """Return the items of a plain container. A subclass is not opened, because it may hold more than its items."""
    if type(result) is dict:
        return list(cast("dict[Any, Any]", result).values())
    return list(cast("list[Any]", result)) if type(result) in (list, tuple) else []


def _is_plain(part: Any) -> bool:
    return isinstance(part, str | int | float | bytes | dict | list | tuple | set | None)


def _is_iterator(result: Any) -> bool:
    return isinstance(result, Iterator) and not isinstance(result, io.IOBase)


def _is_response(result: Any) -> bool:
    """Return whether `result` is a streaming response of Starlette or FastAPI."""
    return isinstance(getattr_static(result, "body_iterator", None), AsyncIterator)


def _discard(part: Any) -> None:
    """Close an object that was not run. A coroutine that is never awaited would cause a warning."""
    if isinstance(part, Generator | Coroutine):
        with suppress(Exception):
            part.close()
