"""Calls what users give us (rewards, inputs) outside the attempt, and finds words for what went wrong there.

Knows nothing of what the functions are for.
"""

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from leyden.core.runner.threads import in_thread
from leyden.core.tracing.context import outside_attempt

TEXT_CHARACTERS = 160


async def call_outside(function: Callable[..., Any], *args: Any) -> Any:
    """Call `function`, sync (in a thread) or async; its own model calls are not the agent's and are not routed."""
    with outside_attempt():
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        returned = await in_thread(function, *args)
        return await returned if inspect.isawaitable(returned) else returned


def name_of(function: object) -> str:
    """What a function, or a callable object, is called."""
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def raised(error: BaseException) -> str:
    """An error and where it was raised, on one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {shortened(str(error), quote=False)} ({last.filename}, line {last.lineno})"


def shortened(value: object, *, quote: bool = True) -> str:
    """`value` as one line of at most `TEXT_CHARACTERS`, as Python would write it unless `quote` is false."""
    text = " ".join((repr(value) if quote else str(value)).split())
    return text if len(text) <= TEXT_CHARACTERS else f"{text[:TEXT_CHARACTERS]}…"
