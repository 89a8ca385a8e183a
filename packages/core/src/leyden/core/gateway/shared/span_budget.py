"""Span budget: counts the spans of production that were kept in the current minute, of one process or of several."""

import logging
from pathlib import Path

from leyden.core.gateway.shared.file_lock import locked

logger = logging.getLogger(__name__)


class SpanBudget:
    """Budget of one process."""

    def __init__(self) -> None:
        self._kept = (0, 0)

    def keep(self, minute: int, spans: int, limit: int | None = None) -> bool:
        """Count spans that are kept in a minute; return False, and count nothing, if that would exceed the limit."""
        kept = _kept_with(self._kept, minute, spans)
        if limit is not None and kept[1] > limit:
            return False
        self._kept = kept
        return True


class SharedSpanBudget(SpanBudget):
    """Budget that several processes of one machine share, in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def keep(self, minute: int, spans: int, limit: int | None = None) -> bool:
        """Count spans that are kept in a minute; return False, and count nothing, if that would exceed the limit."""
        try:
            with locked(self._path.with_suffix(".lock")):
                return self._keep_in_file(minute, spans, limit)
        except (OSError, ValueError) as error:  # for example a full disk
            logger.warning("the limit of spans per minute is not shared: %s", error)
            return super().keep(minute, spans, limit)

    def _keep_in_file(self, minute: int, spans: int, limit: int | None) -> bool:
        if self._path.exists():
            stored_minute, kept = self._path.read_text().split()
            self._kept = int(stored_minute), int(kept)
        has_room = super().keep(minute, spans, limit)
        self._path.write_text(f"{self._kept[0]} {self._kept[1]}")
        return has_room


def _kept_with(kept: tuple[int, int], minute: int, spans: int) -> tuple[int, int]:
    return minute, spans + (kept[1] if kept[0] == minute else 0)
