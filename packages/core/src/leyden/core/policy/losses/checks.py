"""Checks of the options of clipping losses."""

from leyden.core.errors import UsageError


def check_clip(low: float, high: float) -> None:
    """Raise UsageError for clip bounds that cannot work."""
    if not 0 < low <= 1:
        raise UsageError(f"clip_low must be above 0 and at most 1, got {low}")
    if not high > 0:
        raise UsageError(f"clip_high must be above 0, got {high}")
