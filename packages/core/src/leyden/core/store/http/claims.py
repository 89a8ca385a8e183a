"""`Claims`: names of claims, by which a server that has granted one whose answer was lost grants the same again."""

from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

from leyden.core.errors import REFUSALS

MOST = 1024
"""Workers whose unanswered claims are remembered."""


class Claims:
    """Safe from any thread that makes one claim for a worker at a time; others get names of their own."""

    def __init__(self) -> None:
        self._unanswered: dict[str | None, tuple[str, int]] = {}
        """By worker: the claim that may have been granted, and how many rollouts it was for."""

    @contextmanager
    def named(self, worker_id: str | None, limit: int, name: str | None) -> Generator[str]:
        """Give the name of a claim: `name`, that of the worker's last one if its answer was lost, or a new one."""
        before = self._unanswered.pop(worker_id, None) if name is None else None
        if before is not None and before[1] > limit:  # it may have been granted more than is wanted now
            self._unanswered[worker_id] = before
            before = None
        used = name or (uuid4().hex if before is None else before[0])
        try:
            yield used
        except BaseException as error:  # cancelled, too: the request may have been made
            if not isinstance(error, REFUSALS) and len(self._unanswered) < MOST and name is None:
                self._unanswered.setdefault(worker_id, (used, max(limit, 0)))
            raise
