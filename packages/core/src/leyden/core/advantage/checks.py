"""Checks of the options of advantage estimators."""

import math

from leyden.core.errors import UsageError


def check_eps(eps: float) -> None:
    """Raise UsageError unless `eps` is finite and not negative, so that it can be added to a deviation."""
    if not (eps >= 0 and math.isfinite(eps)):
        raise UsageError(f"eps must be a finite number, not negative, got {eps}")


def check_share(name: str, value: float) -> None:
    """Raise UsageError unless `value` is between 0 and 1."""
    if not 0 <= value <= 1:
        raise UsageError(f"{name} must be between 0 and 1, got {value}")
