"""`Taught`: notices steps of a loop elsewhere that taught nothing, and ends a run that learns nothing any more."""

import logging
from collections import Counter
from collections.abc import Sequence

from leyden.core.algorithm.external_loop import Used
from leyden.core.algorithm.learner import LearnerOptions, counts
from leyden.core.errors import NothingToLearn

log = logging.getLogger(__name__)

MOST_EMPTY = LearnerOptions().max_empty_batches
"""Steps in a row that teach nothing before the run stops, as batches do in the loops that are not elsewhere."""


class Taught:
    """Of one sitting."""

    def __init__(self) -> None:
        self._empty = 0
        """Steps that taught nothing, in a row."""

    def note(self, step: int, used: Sequence[Used], *, is_last: bool) -> None:
        """Tell of a step that nothing was learned in; raises NothingToLearn for many in a row, unless it is the last.

        Such a step is taken: the loop's optimizer has moved the weights, if only by its momentum and decay.
        """
        if not used or any(one.calls for one in used):
            self._empty = 0
            return
        self._empty += 1
        reasons = counts(Counter(one.group_dropped or "no call left" for one in used))
        log.warning("step %d taught nothing (%s)", step, reasons)
        if self._empty >= MOST_EMPTY and not is_last:
            raise NothingToLearn(
                f"nothing to learn from in {self._empty} steps in a row; of the last one's tasks: {reasons}: they are "
                "too easy or too hard; mix in others, raise --group-size or --temperature"
            )
