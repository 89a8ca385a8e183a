"""Grammar masks: computes the tokens that grammars allow next, on other threads while the model's forward pass runs.

The masks depend only on the tokens so far, so they are usually ready when the logits are. llguidance releases the
interpreter while it computes them. A mask that takes long delays only its own response: the decoder samples the other
rows, and computes this row's logits again in the next step.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from leyden.core.grammar.compiler import Bits, GrammarState

SLOW_SECONDS = 0.004
"""Time after which a mask is slow: a step does not wait for it, and another thread computes the masks behind it."""
THREADS = 4
"""Most threads; the second and later ones start only if a mask is slow."""
IDLE_SECONDS = 0.02
"""How long a step waits if the masks of all its rows are slow."""


class RowGrammar:
    """The grammar of one response, and the mask of its next token."""

    def __init__(self, state: GrammarState) -> None:
        self._state = state
        self.bits_W: Bits = np.zeros(state.width, dtype=np.int32)
        """The tokens that may follow, if `ready` is set."""
        self.ready = threading.Event()
        self.queued = False
        """Whether the mask is computed, or waits to be."""
        self._began: float | None = None

    def take(self, token: int) -> None:
        """Add a token to the response; not while its mask is computed."""
        self._state.take(token)
        self.bits_W = np.zeros(self._state.width, dtype=np.int32)
        self.ready.clear()
        self.queued, self._began = False, None

    @property
    def error(self) -> str:
        """Why the grammar cannot be followed any further; empty while it can."""
        return self._state.error

    @property
    def is_slow(self) -> bool:
        """Whether the mask has been computed for a long time."""
        return self._began is not None and time.perf_counter() - self._began > SLOW_SECONDS

    def compute(self) -> None:
        """Compute the mask."""
        self._began = time.perf_counter()
        try:
            self._state.write_allowed(self.bits_W)
        except Exception as error:
            self._state.error = f"the masks of the grammar cannot be computed: {error!r}"
        finally:
            self.ready.set()


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
        self._queue: deque[RowGrammar] = deque()
        self._computing: set[RowGrammar] = set()
        self._workers: list[Future[None]] = []

    def begin(self, rows: Sequence[RowGrammar | None]) -> None:
        """Begin to compute the masks of rows, except of those that are computed since an earlier step."""
        grammars = [row for row in rows if row is not None]
        new = [row for row in grammars if not row.queued]
        for row in new:
            row.queued = True
            self._queue.append(row)
        if new:
            self._start()
        elif grammars and len(grammars) == len(rows) and not any(row.ready.is_set() for row in grammars):
            grammars[0].ready.wait(IDLE_SECONDS)

    def ready(self, rows: Sequence[RowGrammar | None]) -> ReadyRows:
        """Wait for the masks that were begun, but not for slow ones; return the rows that can be sampled."""
        self._wait([row for row in rows if row is not None])
        found = ReadyRows([], [], {})
        for index, row in enumerate(rows):
            if row is not None and not row.ready.is_set():
                continue
            if row is not None and row.error:
                found.failed[index] = row.error
                continue
            found.rows.append(index)
            found.masks.append(None if row is None else row.bits_W)
        return found

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def _wait(self, rows: Sequence[RowGrammar]) -> None:
        while True:
            quick = [row for row in rows if not row.ready.is_set() and not row.is_slow]
            if not quick:
                return
            self._workers = [worker for worker in self._workers if not worker.done()]
            computing = list(self._computing)
            if len(computing) == len(self._workers) and all(row.is_slow for row in computing):
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
                row = self._queue.popleft()
            except IndexError:
                return
            self._computing.add(row)
            row.compute()
            self._computing.discard(row)
