"""Grammar masks: computes the tokens that grammars allow next.

The decode thread computes masks itself if they have taken little time so far, as those of a small vocabulary do: a
switch of threads would cost more. Other threads compute the other masks, and the first one of each response, while the
model's forward pass runs. The masks depend only on the tokens so far, so they are usually ready when the logits are.

On another thread, a mask that takes long delays only its own response: the decoder samples the other rows, and computes
this row's logits again in the next step. The masks of a row that was slow anywhere are computed by themselves on other
threads from then on.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from leyden.core.grammar.compiler import Bits, GrammarState, write_allowed_together

SLOW_SECONDS = 0.004
"""Time after which a mask is slow: a step does not wait for it, and another thread computes the masks behind it."""
ROW_SECONDS = 0.0005
"""What each mask adds to the time after which masks that are computed together are slow."""
AT_ONCE_SECONDS = 0.001
"""Longest time for which the decode thread computes masks itself in one step."""
THREADS = 4
"""Most threads; the second and later ones start only if a mask is slow."""
IDLE_SECONDS = 0.02
"""How long a step waits if the masks of all its rows are slow."""


class RowGrammar:
    """The grammar of one response, and the mask of its next token."""

    def __init__(self, state: GrammarState) -> None:
        self.state = state
        self.masks: _Masks | None = None
        """The computation of the mask of the next token, once it was begun."""
        self.place = 0
        """Index of the mask in `masks`."""
        self.seconds = math.inf
        """How long the last mask took; unknown before the first one."""
        self.alone = False
        """Whether the masks are computed by themselves, because they were slow or among slow ones."""
        self.was_slow = False
        """Whether a mask that was computed by itself was slow."""

    def take(self, token: int) -> None:
        """Add a token to the response; not while its mask is computed."""
        self.state.take(token)
        self.masks = None

    @property
    def is_ready(self) -> bool:
        """Whether the mask is computed."""
        return self.masks is not None and self.masks.ready.is_set()


class _Masks:
    """The computation of the masks of one or several rows' next tokens."""

    def __init__(self, rows: Sequence[RowGrammar]) -> None:
        self._rows = rows
        self.bits_RW: Bits = np.zeros((len(rows), rows[0].state.width), dtype=np.int32)
        """The tokens that may follow, if `ready` is set."""
        self.ready = threading.Event()
        self._limit = SLOW_SECONDS if len(rows) == 1 else SLOW_SECONDS + ROW_SECONDS * len(rows)
        self._began: float | None = None
        for place, row in enumerate(rows):
            row.masks, row.place = self, place

    @property
    def is_slow(self) -> bool:
        """Whether the masks have been computed for a long time."""
        return self._began is not None and time.perf_counter() - self._began > self._limit

    def compute(self, *, parallel: bool = True) -> None:
        """Compute the masks, on this thread or with `parallel` on several threads."""
        self._began, cpu_began = time.perf_counter(), time.thread_time()
        by_itself = len(self._rows) == 1 and parallel
        if by_itself:
            self._compute_each()
        else:
            self._compute_together(parallel)
        # The CPU time of this thread alone is not that of parallel work.
        seconds = time.perf_counter() - self._began if parallel else time.thread_time() - cpu_began
        for row in self._rows:
            row.seconds = seconds / len(self._rows)
            row.alone |= seconds > self._limit and not by_itself
        self.ready.set()

    def _compute_together(self, parallel: bool) -> None:
        try:
            write_allowed_together([row.state for row in self._rows], self.bits_RW, parallel=parallel)
        except Exception:  # of one row, whose error must not end the others
            self._compute_each()

    def _compute_each(self) -> None:
        for row, bits_W in zip(self._rows, self.bits_RW, strict=True):
            began = time.thread_time()
            try:
                row.state.write_allowed(bits_W)
            except Exception as error:
                row.state.error = f"the masks of the grammar cannot be computed: {error!r}"
            row.was_slow |= time.thread_time() - began > SLOW_SECONDS
            row.alone = row.was_slow


class ReadyRows(NamedTuple):
    """The rows of a step that can be sampled now."""

    rows: list[int]
    """Indices of the rows."""
    masks: list[Bits | None]
    """The mask of each of these rows; None for rows without a grammar."""
    failed: dict[int, str]
    """Why the grammar of a row cannot be followed any further, by the index of the row."""


class GrammarMasks:
    """Computes the masks of a decoder's rows. Only the decode thread calls its public methods."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._queue: deque[_Masks] = deque()
        self._computing: set[_Masks] = set()
        self._workers: list[Future[None]] = []

    def begin(self, rows: Sequence[RowGrammar | None]) -> None:
        """Begin to compute the masks of rows, except of those that are computed since an earlier step."""
        grammars = [row for row in rows if row is not None]
        new = [row for row in grammars if row.masks is None]
        at_once = [row for row in new if not row.alone and row.seconds <= AT_ONCE_SECONDS]
        if sum(row.seconds for row in at_once) > AT_ONCE_SECONDS:
            at_once = []
        if len(at_once) < len(new):
            others = [row for row in new if row not in at_once]
            if together := [row for row in others if not row.alone]:
                self._queue.append(_Masks(together))
            self._queue += [_Masks([row]) for row in others if row.alone]
            self._start()
        if at_once:
            _Masks(at_once).compute(parallel=False)
        if not new and grammars and len(grammars) == len(rows) and not any(row.is_ready for row in grammars):
            assert grammars[0].masks is not None
            grammars[0].masks.ready.wait(IDLE_SECONDS)

    def ready(self, rows: Sequence[RowGrammar | None]) -> ReadyRows:
        """Wait for the masks that were begun, but not for slow ones; return the rows that can be sampled."""
        begun = {row.masks: None for row in rows if row is not None and row.masks is not None}
        self._wait(begun)
        is_ready = {masks: masks.ready.is_set() for masks in begun}
        found = ReadyRows([], [], {})
        for index, row in enumerate(rows):
            if row is None:
                found.rows.append(index)
                found.masks.append(None)
            elif row.masks is None or not is_ready[row.masks]:
                continue
            elif row.state.error:
                found.failed[index] = row.state.error
            else:
                found.rows.append(index)
                found.masks.append(row.masks.bits_RW[row.place])
        return found

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def _wait(self, masks: Iterable[_Masks]) -> None:
        while True:
            quick = [one for one in masks if not one.ready.is_set() and not one.is_slow]
            if not quick:
                return
            self._workers = [worker for worker in self._workers if not worker.done()]
            computing = list(self._computing)
            if len(computing) == len(self._workers) and all(one.is_slow for one in computing):
                if not self._queue or len(self._workers) == THREADS:
                    return
                self._start()
            quick[0].ready.wait(SLOW_SECONDS)

    def _start(self) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="leyden-grammar")
        self._workers.append(self._threads.submit(self._work))

    def _work(self) -> None:
        while True:
            try:
                masks = self._queue.popleft()
            except IndexError:
                return
            self._computing.add(masks)
            masks.compute()
            self._computing.discard(masks)
