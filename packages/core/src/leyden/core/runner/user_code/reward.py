"""Reward functions: calls a user's reward function and checks its result.

A reward is a finite number of absolute value at most `MOST_REWARD`, or a dict of named dimensions. The value of a dict
is the sum of weight x dimension. Without weights every dimension has weight 1. With weights, every dimension must have
a weight and every weight a dimension. A misspelt name is then an error instead of a silent zero.

A reward may come with feedback, a text that says why: `return 0.5, "the date is missing"`. Algorithms that train
prompts show it to the model that writes new ones.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from leyden.core.data.bounds import MOST_REWARD
from leyden.core.data.encoding.text import well_formed
from leyden.core.data.plain.values import number
from leyden.core.data.rollout import Task
from leyden.core.errors import RewardError
from leyden.core.masking import mask_text
from leyden.core.runner.attempts.error_text import raised
from leyden.core.runner.user_code.calls import call_outside, is_ours, name_of, shortened

RewardFunction = Callable[[Task, Any], Any]
"""`score(task, result)`, sync or async."""
_TOO_LARGE = f"not a number between {-MOST_REWARD:g} and {MOST_REWARD:g}"


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and its named dimensions, which are empty for a plain number."""

    value: float
    dimensions: Mapping[str, float] = field(default_factory=dict[str, float])
    feedback: str = ""
    """Why the reward is what it is; empty if the function gave no reason."""


def check_reward_function(function: object) -> None:
    """Raise RewardError when `function` cannot be called as `score(task, result)`."""
    if not callable(function):
        raise RewardError(f"the reward must be a function score(task, result), not {_kind(function)}")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        wanted = inspect.signature(function)
        raise RewardError(f"reward {name_of(function)}{wanted} cannot be called as score(task, result)") from None
    except ValueError:  # a builtin without a signature cannot be checked before its call
        return


async def score(
    function: RewardFunction, task: Task, result: Any, weights: Mapping[str, float] | None = None
) -> Reward:
    """Return the reward of `result`, computed outside the attempt. A sync function runs in a thread.

    Raises RewardError, which shows the task, when the function raises or returns something that is not a reward. A
    cancellation that the function itself causes is such an error. CancelledError is raised when the caller is
    cancelled.
    """
    name = f"reward {name_of(function)}"
    try:
        returned = await call_outside(function, task, result)
    except BaseException as error:
        if is_ours(error):
            raise
        raise RewardError(f"{name} raised {raised(error)} for task {shortened(task)}") from error
    try:
        return as_reward(returned, weights)
    except ValueError as error:
        raise RewardError(f"{name} returned {error} for task {shortened(task)}") from None


def as_reward(returned: Any, weights: Mapping[str, float] | None = None) -> Reward:
    """Read a number or a dict of dimensions as a reward; also a pair of one of them and a text, its feedback.

    Raises ValueError with what was found and what was expected.
    """
    try:
        return _read(returned, weights)
    except ValueError:
        raise
    except BaseException as error:  # raised by the object's own methods
        raise ValueError(f"{_kind(returned)}, which cannot be read: {raised(error)}") from error


def _read(returned: Any, weights: Mapping[str, float] | None) -> Reward:
    reward, feedback = _pair(returned)
    if feedback is not None:
        return replace(_read(reward, weights), feedback=mask_text(well_formed(feedback)))
    if isinstance(returned, Mapping):
        return _weighted(cast("Mapping[Any, Any]", returned), weights)
    value = number(returned)
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{shortened(returned)}, not a finite number")
    if value is None:
        raise ValueError(f"{_kind(returned)}, not a finite number or a dict of them")
    if abs(value) > MOST_REWARD:
        raise ValueError(f"{shortened(returned)}, {_TOO_LARGE}")
    if weights:
        raise ValueError(
            f"{_kind(returned)}, but weights are given for {_listed(weights)}: return a dict with these dimensions"
        )
    return Reward(value)


def _pair(returned: Any) -> tuple[Any, str | None]:
    """Return a reward and its feedback; None if it has none."""
    if isinstance(returned, tuple) and len(cast("tuple[Any, ...]", returned)) == 2:
        reward, feedback = cast("tuple[Any, Any]", returned)
        if isinstance(feedback, str):
            return reward, feedback
    return cast("Any", returned), None


def _weighted(returned: Mapping[Any, Any], weights: Mapping[str, float] | None) -> Reward:
    if not returned:
        raise ValueError("an empty dict, not a finite number or a dict of them")
    dimensions: dict[str, float] = {}
    for name, value in returned.items():
        if not isinstance(name, str):
            raise ValueError(f"a dict with the key {name!r}: the name of a dimension must be text")
        part = number(value)
        if part is None or not math.isfinite(part):
            raise ValueError(f"a dict with {name!r}: {_kind(value)}, not a finite number or a dict of them")
        if abs(part) > MOST_REWARD:
            raise ValueError(f"a dict with {name!r}: {shortened(value)}, {_TOO_LARGE}")
        dimensions[name] = part
    if weights and (differ := sorted(set(weights) ^ set(dimensions))):
        lacks = "has a weight, but is no dimension" if differ[0] in weights else "is a dimension without a weight"
        raise ValueError(
            f"the dimensions {_listed(dimensions)}, and there are weights for {_listed(weights)}: {differ[0]!r} {lacks}"
        )
    value = sum((weights[name] if weights else 1.0) * part for name, part in dimensions.items())
    if not math.isfinite(value):
        raise ValueError(f"dimensions whose weighted sum is {value}, not a finite number")
    if abs(value) > MOST_REWARD:
        raise ValueError(f"dimensions whose weighted sum is {value:g}, {_TOO_LARGE}")
    return Reward(value, dimensions)


def _kind(value: object) -> str:
    return "None" if value is None else f"{shortened(value)} ({type(value).__name__})"


def _listed(names: Mapping[str, float]) -> str:
    return ", ".join(sorted(names))
