"""Index of a run's rollouts: one row for each, read in the background, for lists, filters and histograms.

A rollout that has ended is read once. One that has not is read again until it has; so is one that failed because its
run stopped, since the continued run tries it again. Rows are kept as columns, which a browser filters and sorts itself.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import msgspec

from leyden.console.plain import one_line, plain
from leyden.console.runs.run import Run
from leyden.core.data import reasons, semconv
from leyden.core.data.failure import failure_of
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import LeydenError, RunError
from leyden.core.masking import mask_text
from leyden.core.store.base import LightningStore
from leyden.core.trainer.rollouts.interrupted import ABANDONED, is_tried_again
from leyden.core.trainer.rollouts.recorded import group_of
from leyden.core.trainer.why.learning import Learning
from leyden.core.trajectory.assemble import last_reward
from leyden.core.trajectory.calls import is_recorded_call, newest_version

PAGE = 200
"""Rollouts of one query."""
MOST = 100_000
"""Most rollouts that are kept; of more, the newest."""
PAUSE = 1.0
"""Seconds between two looks for new rollouts, and for ended ones among those that had not."""
GROWING = 10.0
"""Seconds between two looks at the spans of rollouts that are running, which takes one query for each."""
OPEN = frozenset({"preparing", "running"})
INTERRUPTED = "interrupted"
"""Status of what was under way when the process of its run ended."""
NAMES = 6
"""Most names of agents in a row."""

log = logging.getLogger(__name__)


class Row(msgspec.Struct, kw_only=True):
    """One rollout in a list."""

    id: str
    mode: str | None
    set: str = ""
    """Held-out set; empty for a training rollout."""
    group: str = ""
    """Id of its group: the rollouts of one task that are compared with each other."""
    task: Any = None
    status: str
    version: int | None = None
    """Newest version that answered one of its calls."""
    reward: float | None = None
    calls: int = 0
    tokens: int = 0
    """Generated tokens."""
    seconds: float | None = None
    started: float
    error: str = ""
    failure: str = ""
    """Name under which its failure is counted; empty if it did not fail."""
    agents: str = ""
    truncated: int = 0
    """Calls that ended at their limit of tokens."""
    step: int | None = None
    """Step that learned from it, or whose batch had it."""
    trained: bool | None = None
    """Whether a step learned from it; None if that is not known, or not yet."""
    reason: str = ""
    """Why no step learned from it."""


COLUMNS = Row.__struct_fields__


@dataclass(slots=True)
class RolloutIndex:
    """The rows of one run. `follow` fills it until the task that runs it is cancelled."""

    run: Run
    total: int = 0
    problem: str = ""
    """Why the store cannot be read now; empty if it can."""
    generation: str = field(default_factory=lambda: token_hex(4))
    """Changes when cursors of earlier answers no longer hold."""
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    active: float | None = None
    """Newest time at which a rollout, an attempt or a span began or ended."""
    is_read: bool = False
    """Whether the last look has read all that the store had."""
    _order: list[str] = field(default_factory=list[str])
    """Ids in the order in which their rows were first complete or changed; ids may be in it more than once."""
    _open: set[str] = field(default_factory=set[str])
    _offset: int = 0
    _learning: Learning | None = None
    _is_gone: bool = False
    """Whether the process that ran the rollouts was gone at the last look."""
    _grown: float = float("-inf")
    """When the spans of running rollouts were read last, by the monotonic clock."""

    @property
    def changes(self) -> int:
        """How often a row was added or has changed."""
        return len(self._order)

    async def follow(self, is_watched: Callable[[], bool] = lambda: True) -> None:
        """Read new rollouts, and again those that have not ended, until no page watches or the run is gone.

        Errors are noted, and tried again.
        """
        while is_watched() and self.run.is_still_there:
            await self.look()
            await asyncio.sleep(PAUSE)

    async def look(self) -> None:
        """Read what is new once; an error is noted as `problem`."""
        try:
            self._is_gone = self.run.is_process_gone  # before the store, in which that process may still write
            store = await self.run.store()
            problem = await self._read_outcomes()
            if store is not None:
                await self._read_new(store)
                await self._read_open(store)
            self.problem, self.is_read = problem, True
        except (LeydenError, OSError, ValueError) as error:  # ValueError: a damaged file of the run
            self.problem, self.is_read = one_line(error), False
            log.debug("rollouts of %s: %s", self.run.place, error)

    async def _read_new(self, store: LightningStore) -> None:
        while True:
            page = (await store.query_rollouts(limit=PAGE, offset=self._offset)).complete()
            self.total = page.total
            if self._offset > page.total:
                self._forget()
            if not page.items:
                return
            if page.total - self._offset > MOST:
                self._offset = page.total - MOST
                continue
            for rollout in page:
                await self._read(store, rollout)
            self._offset += len(page)

    async def _read_open(self, store: LightningStore) -> None:
        waiting, now = sorted(self._open), time.monotonic()
        if may_grow := not self._is_gone and now - self._grown >= GROWING:
            self._grown = now
        for at in range(0, len(waiting), PAGE):
            for rollout in (await store.query_rollouts(rollout_id_in=waiting[at : at + PAGE])).complete():
                known = self.rows.get(rollout.rollout_id)
                is_growing = rollout.status in OPEN and may_grow
                if known is None or is_growing or self._has_changed(known, rollout):
                    await self._read(store, rollout)

    def _has_changed(self, known: Row, rollout: Rollout) -> bool:
        return (known.status, known.error) != (shown_status(rollout.status, is_gone=self._is_gone), _error(rollout))

    async def _read_outcomes(self) -> str:
        """Note what the run's steps have learned from since the last look; return why that cannot be read, or ""."""
        try:
            learning = (await self.run.facts()).learning
        except RunError as error:  # a damaged file of the run's folder: the rollouts are in its store
            return one_line(error)
        if learning is self._learning:
            return ""
        self._learning = learning
        for name, row in self.rows.items():
            new = with_outcome(row, learning)
            if new != row:
                self.rows[name] = new
                self._order.append(name)
        return ""

    async def _read(self, store: LightningStore, rollout: Rollout) -> None:
        spans: Sequence[Span] = ()
        if isinstance(rollout, AttemptedRollout):
            spans = (await store.query_spans(rollout.rollout_id)).items
        self.active = max(filter(None, (self.active, *_times(rollout, spans))), default=None)
        row = with_outcome(row_of(rollout, spans, is_gone=self._is_gone), self._learning)
        known = self.rows.get(row.id)
        if known != row:
            self.rows[row.id] = row
            self._order.append(row.id)
        if rollout.status in FINISHED_ROLLOUT and not is_tried_again(rollout):
            self._open.discard(row.id)
        else:
            self._open.add(row.id)
        await asyncio.sleep(0)  # requests of the browser go first

    def _forget(self) -> None:
        """Begin again: the store holds fewer rollouts than before, so it is another one."""
        self.generation = token_hex(4)
        self.active, self.is_read = None, False
        self.rows.clear()
        self._order.clear()
        self._open.clear()
        self._offset = 0

    def since(self, cursor: int, generation: str | None = None) -> tuple[list[Row], int]:
        """Return the rows that are new or changed since `cursor`, and the next cursor.

        Returns all rows for a cursor of another generation.
        """
        end = self.changes
        start = cursor if 0 <= cursor <= end and generation in (None, self.generation) else 0
        return [self.rows[name] for name in dict.fromkeys(self._order[start:end])], end


def shown_status(status: str, *, is_gone: bool) -> str:
    """Return the status of a rollout or an attempt as pages show it. The store does not notice that a run is killed."""
    return INTERRUPTED if is_gone and status in OPEN else status


def row_of(rollout: Rollout, spans: Sequence[Span], *, is_gone: bool = False) -> Row:
    """Return the row of a rollout; `spans` are those of all its attempts, `is_gone` is whether its process is."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else None
    own = [span for span in spans if attempt is not None and span.attempt_id == attempt.attempt_id]
    calls = [span for span in own if is_recorded_call(span)]
    reward, _ = last_reward(own)
    agents = dict.fromkeys(name for span in calls if (name := span.text(semconv.AGENT_NAME) or span.text(semconv.NODE)))
    return Row(
        id=rollout.rollout_id,
        mode=rollout.mode,
        set=set_of(rollout),
        group=training_group(rollout),
        task=task_of(rollout),
        status=shown_status(rollout.status, is_gone=is_gone),
        version=newest_of(calls),
        reward=reward,
        calls=len(calls),
        tokens=sum(_tokens(span) for span in calls),
        seconds=None if rollout.end_time is None else rollout.end_time - rollout.start_time,
        started=rollout.start_time,
        error=_error(rollout),
        failure=_failure(rollout),
        agents=", ".join(list(agents)[:NAMES]),
        truncated=sum("length" in _finish(span) for span in calls),
    )


def _times(rollout: Rollout, spans: Sequence[Span]) -> list[float | None]:
    """Return when a rollout, its last attempt and its spans began and ended."""
    attempt = rollout.attempt if isinstance(rollout, AttemptedRollout) else rollout
    own = [rollout.start_time, rollout.end_time, attempt.start_time, attempt.end_time]
    return own + [moment for span in spans for moment in (span.start_time, span.end_time)]


def _error(rollout: Rollout) -> str:
    failure = failure_of(rollout.attempt) if isinstance(rollout, AttemptedRollout) else None
    return "" if failure is None else mask_text(failure.text)[:400]


def _failure(rollout: Rollout) -> str:
    if rollout.status not in FINISHED_ROLLOUT:
        return ""
    if rollout.metadata.get(ABANDONED):
        return reasons.INTERRUPTED
    failure = failure_of(rollout.attempt) if isinstance(rollout, AttemptedRollout) else None
    return "" if failure is None else reasons.failed_by(failure)


def newest_of(calls: Sequence[Span]) -> int | None:
    """Return the newest policy version that answered one of the recorded `calls`; None if none is recorded."""
    return max((version for span in calls if (version := newest_version(span)) >= 0), default=None)


def task_of(rollout: Rollout) -> Any:
    """Return the row of a rollout's task, or what its metadata has in its place."""
    return plain(rollout.metadata.get("row", rollout.metadata.get("task")))


def training_group(rollout: Rollout) -> str:
    """Return the id of a training rollout's group; empty for others, and for rollouts that no run made."""
    return group_of(rollout) if rollout.mode == "train" and "task" in rollout.metadata else ""


def set_of(rollout: Rollout) -> str:
    """Return the name of the held-out set of a rollout, which is the second part of its id; empty for others."""
    if rollout.mode != "val":
        return ""
    name = rollout.rollout_id[rollout.rollout_id.find("val-") + 4 :]
    for label in ("-before-v", "-after-v", "-during-v", "-s"):
        head, found, _ = name.partition(label)
        if found:
            return head
    return name


def with_outcome(row: Row, learning: Learning | None) -> Row:
    """Return the row with the step that learned from the rollout, or the reason why none did."""
    step, trained, reason = _outcome(row, learning)
    return msgspec.structs.replace(row, step=step, trained=trained, reason=reason)


def _outcome(row: Row, learning: Learning | None) -> tuple[int | None, bool | None, str]:
    if row.mode in ("val", "test"):
        return None, False, reasons.HELD_OUT
    if learning is not None:
        if steps := learning.steps.get(row.id):
            return steps[0].step, True, ""
        if recorded := learning.reasons.get(row.id):
            return learning.collected_for.get(row.id), False, "; ".join(dict.fromkeys(recorded))
    return None, False if row.failure else None, row.failure


def _tokens(span: Span) -> int:
    count = span.attributes.get(semconv.OUTPUT_TOKENS)
    return count if isinstance(count, int) else 0


def _finish(span: Span) -> Sequence[str]:
    found = span.attributes.get(semconv.FINISH_REASONS)
    return [str(one) for one in found] if isinstance(found, list) else ()
