"""`UnansweredClaims`: ids of claims, with which a client gets the rollouts of a claim whose answer was lost."""

from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

from leyden.core.errors import REFUSALS

MOST = 1024
"""Largest number of workers whose unanswered claims are recorded."""


class UnansweredClaims:
    """Records unanswered claims by worker. Thread-safe if each worker makes one claim at a time.

    Parallel claims of one worker get ids of their own.
    """

    def __init__(self) -> None:
        self._unanswered: dict[str | None, tuple[str, int]] = {}
        """By worker: the claim that the server may have granted, and the number of rollouts that it requested."""

    @contextmanager
    def named(self, worker_id: str | None, limit: int, name: str | None) -> Generator[str]:
        """Return the id of a claim: `name`, the id of the worker's last claim if its answer was lost, or a new one."""
        before = self._unanswered.pop(worker_id, None) if name is None else None
        if before is not None and before[1] > limit:  # the server may have granted more than `limit`
            self._unanswered[worker_id] = before
            before = None
        used = name or (uuid4().hex if before is None else before[0])
        try:
            yield used
        except BaseException as error:  # also when cancelled, since the server may have received the request
            if not isinstance(error, REFUSALS) and len(self._unanswered) < MOST and name is None:
                self._unanswered.setdefault(worker_id, (used, max(limit, 0)))
            raise
