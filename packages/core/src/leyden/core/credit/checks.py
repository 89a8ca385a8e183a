"""What credit schemes ask of their options and of what users' functions return."""

import math
from collections.abc import Callable
from typing import Any

from leyden.core.errors import TrainingError, UsageError
from leyden.core.runner.loading import load_object


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

    Raises UsageError when there is none: AgentNotFound when it cannot be loaded.
    """
    found = load_object(reference)
    if not callable(found):
        raise UsageError(f"{option} {reference!r} is not a function")
    return found


def as_number(what: str, value: object) -> float:
    """Return what a user's function returned as a finite float; raises TrainingError."""
    try:
        number = float(value)  # pyright: ignore[reportArgumentType] -- whatever it is, float decides
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise TrainingError(f"{what} returned {value!r}, not a finite number")
    return number
