"""Guard against empty steps: logs steps of an external loop that taught nothing, and ends a run after many in a row."""

import logging
from collections import Counter
from collections.abc import Sequence

from leyden.core.algorithm.external_loop import TaskUsage
from leyden.core.algorithm.learner import LearnerOptions, counts
from leyden.core.errors import NothingToLearn

log = logging.getLogger(__name__)

MOST_EMPTY = LearnerOptions().max_empty_batches
"""Number of consecutive empty steps that end the run; the same as for batches of loops in the Leyden process."""


class EmptyStepGuard:
    """Counter of empty steps in one session."""

    def __init__(self) -> None:
        self._empty = 0
        """Number of consecutive steps that taught nothing."""

    def note(self, step: int, used: Sequence[TaskUsage], *, is_last: bool) -> None:
        """Record what a step learned from; log a warning if it was nothing.

        Such a step still counts as taken: the loop's optimizer has moved the weights by momentum and weight decay.
        Raises NothingToLearn after `MOST_EMPTY` such steps in a row, unless this is the last step.
        """
        if not used or any(one.calls for one in used):
            self._empty = 0
            return
        self._empty += 1
        reasons = counts(Counter(one.group_dropped or "no call left" for one in used))
        log.warning("step %d had nothing to learn from (%s)", step, reasons)
        if self._empty >= MOST_EMPTY and not is_last:
            raise NothingToLearn(
                f"{self._empty} steps in a row had nothing to learn from; tasks of the last one: {reasons}: they are "
                "too easy or too hard; add other tasks, raise --group-size or --temperature"
            )
