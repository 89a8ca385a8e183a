"""Checks of credit schemes' options, and of the results of users' functions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leyden.core.credit.base import Floats
from leyden.core.data.transition import Trajectory
from leyden.core.errors import TrainingError, UsageError
from leyden.core.runner.attempts.error_text import raised
from leyden.core.runner.user_code.calls import shortened
from leyden.core.runner.user_code.loading import load_object


def check_gamma(name: str, gamma: float, *, lowest: float | None = None) -> None:
    """Raise UsageError unless `gamma` is above 0, or at least `lowest`, and at most 1."""
    if lowest is None and not 0 < gamma <= 1:
        raise UsageError(f"{name} must be above 0 and at most 1, got {gamma}")
    if lowest is not None and not lowest <= gamma <= 1:
        raise UsageError(f"{name} must be between {lowest:g} and 1, got {gamma}")


def check_finite(name: str, value: float) -> None:
    """Raise UsageError unless `value` is a finite number."""
    if not math.isfinite(value):
        raise UsageError(f"{name} must be a finite number, got {value}")


def load_function(option: str, reference: str) -> Callable[[Any], Any]:
    """Return the function that an option names by import string.

    Raises UsageError if it is not a function, and its subclass AgentNotFound if it cannot be loaded.
    """
    found = load_object(reference)
    if not callable(found):
        raise UsageError(f"{option} {reference!r} is not a function")
    return found


def judged(option: str, reference: str, trajectory: Trajectory) -> Any:
    """Return the result for a trajectory of the function that an option names.

    Raises TrainingError, which names the rollout, for any exception of the function.
    """
    function = load_function(option, reference)
    try:
        return function(trajectory)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TrainingError(f"{reference} raised {raised(error)} for rollout {trajectory.rollout_id}") from error


def as_number(what: str, value: Any) -> float:
    """Return the result of a user's function as a finite float; raises TrainingError."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise TrainingError(f"{what} returned {shortened(value)}, not a finite number")
    return number


def as_numbers(what: str, values: Any, count: int) -> Floats:
    """Return the result of a user's function as `count` finite floats, none negative; raises TrainingError."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.full(count, np.nan)
    if numbers.shape != (count,) or not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise TrainingError(f"{what} returned {shortened(values)}: there must be {count} shares, none negative")
    return numbers
