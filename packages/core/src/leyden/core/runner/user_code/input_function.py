"""Input functions (`--input`): calls a user's function that converts a task row to the agent's input."""

import copy
import inspect
from collections.abc import Callable
from typing import Any, cast

from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError, UsageError
from leyden.core.runner.attempts.error_text import raised
from leyden.core.runner.user_code.calls import call_outside, is_ours, name_of, shortened
from leyden.core.runner.user_code.task_input import MadeInput

InputFunction = Callable[[Task], Any]
"""`make(task)`, sync or async."""


def check_input_function(function: object) -> None:
    """Raise UsageError when `function` cannot be called as `make(task)`."""
    if not callable(function):
        raise UsageError(f"--input must be a function of a task, not {shortened(function)} ({type(function).__name__})")
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        wanted = inspect.signature(function)
        raise UsageError(f"--input {name_of(function)}{wanted} cannot be called with one task") from None
    except ValueError:  # a builtin without a signature cannot be checked before its call
        return


async def make_input(function: InputFunction, task: Task) -> Any:
    """Return the input that `function` makes from a copy of `task`. The reward function later gets the unchanged row.

    Raises TaskError, which shows the task, when the function raises or returns None.
    """
    name = f"--input {name_of(function)}"
    try:
        made = await call_outside(function, copy.deepcopy(task))
    except BaseException as error:
        if is_ours(error):
            raise
        raise TaskError(f"{name} raised {raised(error)} for task {shortened(task)}") from error
    if made is None:
        raise TaskError(f"{name} returned None instead of the agent's input for task {shortened(task)}")
    return MadeInput(cast("dict[str, Any]", made)) if type(made) is dict else made
