"""Calls the functions that users give beside their agent (rewards, inputs), outside the attempt."""

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
    """Whether what came out of a user's function is none of its own: the task that called it is cancelled, or closed.

    Whatever else a function raises is its answer: `sys.exit` of a parser, a panic of a library in Rust, an error that
    is no `Exception` as some test libraries have them, and what it has cancelled itself.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit)


async def call_outside(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function`, sync (in a thread) or async; its own model calls are not the agent's and are not routed."""
    with outside_attempt():
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        returned = await in_thread(function, *args)
        return await returned if inspect.isawaitable(returned) else returned


def name_of(function: object) -> str:
    """What a function, or a callable object, is called in its own module."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    name = str(getattr(function, "__qualname__", None) or type(function).__name__)
    return name.rpartition("<locals>.")[2]


def shortened(value: object, *, quote: bool = True) -> str:
    """`value` as one masked line of at most `TEXT_CHARACTERS`, as Python would write it unless `quote` is false.

    One whose own `__repr__` or `__str__` raises is called by its class.
    """
    try:
        text = " ".join((repr(value) if quote else str(value)).split())
    except BaseException:  # whatever its own method raises
        text = f"<{type_name(value)}>"
    text = mask_text(text)
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]}…"
