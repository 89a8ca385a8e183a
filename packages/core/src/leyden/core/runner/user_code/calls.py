"""Calls of functions that users give with their agent (rewards, inputs), outside the attempt."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from leyden.core.data.plain.own_methods import type_name
from leyden.core.masking import mask_text
from leyden.core.runner.attempts.threads import in_thread
from leyden.core.tracing.context import outside_attempt

TEXT_CHARACTERS = 160


def is_ours(error: BaseException) -> bool:
    """Return whether an exception from a user's function was not raised by the function itself.

    That is so where the calling task is cancelled or its coroutine is closed. All other exceptions count as the
    function's own. Examples are `sys.exit` of a parser, a panic of a Rust library, an error outside `Exception`, or a
    cancellation that the function caused.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)


async def call_outside(function: Callable[..., Any], *args: Any) -> Any:
    """Call a sync function in a thread, or an async one on this loop, and return its result.

    Its model calls do not belong to the agent and are not routed.
    """
    with outside_attempt():
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        returned = await in_thread(function, *args)
        return await returned if inspect.isawaitable(returned) else returned


def name_of(function: object) -> str:
    """Return the name of a function or a callable object in its own module."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    name = str(getattr(function, "__qualname__", None) or type(function).__name__)
    return name.rpartition("<locals>.")[2]


def shortened(value: object, *, quote: bool = True) -> str:
    """Return `value` as one masked line of at most `TEXT_CHARACTERS`: its `repr`, or its `str` where `quote` is false.

    Where `__repr__` or `__str__` raises, the line names the class.
    """
    try:
        text = " ".join((repr(value) if quote else str(value)).split())
    except BaseException:  # any error of the object's own method
        text = f"<{type_name(value)}>"
    text = mask_text(text)
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]}…"
