"""`GroupCommit`: stores the spans of all waiting callers in one transaction.

Spans that arrive within one turn of an event loop are stored on that loop's own thread, where that is possible at once.
For a single caller, a switch to another thread and back costs more than the transaction. With many callers, the two
threads would slow each other down. After several turns with a single caller, its spans are stored without waiting for
the end of the turn. Large batches, and those that must wait for another writer or a server, go to a writing thread of
the store.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakSet

from leyden.core.data.span import Span
from leyden.core.errors import StoreClosed

_GATHER_SECONDS = 0.001
"""Time for which the writing thread waits for as many callers as there were in the last batch.

A transaction costs as much as several spans. A single caller never waits.
"""
_LONE_TURNS, _IMMEDIATE = 4, 16
"""After `_LONE_TURNS` turns with one caller each, the next `_IMMEDIATE` callers are stored at once, without waiting."""
MOST_HERE, MOST_BYTES_HERE = 128, 2 << 20
"""Largest batch on an event loop's thread, in spans and in bytes; more would block the loop for too long."""

_ENOUGH_BYTES = 1 << 20
"""Bytes that fill a transaction. While the next one runs, the first callers have their results and can send more."""

Answer = list[Span] | Exception
Store = Callable[[Sequence[Sequence[Span]]], list[Answer]]
StoreHere = Callable[[Sequence[Sequence[Span]], int], list[Answer] | None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A caller with spans to be stored."""

    spans: Sequence[Span]
    size: int
    """Approximate size of the spans in bytes."""
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[list[Span]]"


class GroupCommit:
    """Thread-safe, for any number of event loops.

    `store_here` gets several callers' spans and their approximate size in bytes. It stores them on the calling thread,
    or returns None where that is not possible at once; without it, all are stored by `store`, which may wait. `submit`
    runs it on a writing thread.
    """

    def __init__(
        self, store: Store, store_here: StoreHere | None, submit: Callable[[Callable[[], None]], object]
    ) -> None:
        self._store, self._store_here, self._submit = store, store_here, submit
        self._lock = threading.Lock()
        self._new: list[_Waiting] = []
        self._scheduled: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Event loops that will run `_store_new`. Several may be scheduled, since a loop may end before it does so."""
        self._for_thread: list[_Waiting] = []
        self._more_callers = threading.Condition(self._lock)
        """Notified when more callers wait for the writing thread."""
        self._lone_turns = self._immediate = 0
        """Number of consecutive turns with one caller; number of next callers that are stored without waiting."""
        self._expected_callers = 0
        """Number of callers in the writing thread's last batch, and of those that arrived while it was written."""

    async def add(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, all or none, together with those of all other waiting callers; return the stored spans.

        Raises the error for these spans where they cannot be stored.
        """
        # computed here, so that an error of these spans is raised to their own caller
        size = sum(span.size() for span in spans)
        if self._immediate and not self._new:
            self._immediate -= 1
            answers = self._stored_here([spans], size)
            if answers is not None:
                return result_of(answers[0])
        loop = asyncio.get_running_loop()
        waiting = _Waiting(spans, size, loop, loop.create_future())
        with self._lock:
            self._new.append(waiting)
            scheduled = loop in self._scheduled
            self._scheduled.add(loop)
        if not scheduled:
            loop.call_soon(self._store_new, loop)
        return await waiting.answer

    def _store_new(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._scheduled.discard(loop)
            taken, self._new = self._new, []
        batch = _still_wanted(taken)
        self._lone_turns = self._lone_turns + 1 if len(taken) == 1 else 0
        self._immediate = _IMMEDIATE if self._lone_turns >= _LONE_TURNS else 0
        if not batch:
            return
        answers = self._stored_here([waiting.spans for waiting in batch], sum(waiting.size for waiting in batch))
        if answers is not None:
            _set_results(batch, answers)
            return
        with self._lock:
            submitted = bool(self._for_thread)
            self._for_thread += batch
            self._more_callers.notify()
        if not submitted:
            try:
                self._submit(self._flush)
            except RuntimeError:  # the thread has ended
                self._give_up()

    def _stored_here(self, batches: Sequence[Sequence[Span]], size: int) -> list[Answer] | None:
        """Store on the calling thread; return None where that would take too long, or is not possible at once."""
        if self._store_here is None or size > MOST_BYTES_HERE or sum(map(len, batches)) > MOST_HERE:
            return None
        try:
            return self._store_here(batches, size)
        except Exception as error:  # any error is the result for the waiting callers
            return _to_all(batches, error)

    def _give_up(self) -> None:
        with self._lock:
            taken, self._for_thread = self._for_thread, []
        _set_results(taken, [StoreClosed() for _ in taken])

    def _flush(self) -> None:
        with self._lock:
            self._more_callers.wait_for(self._is_enough, _GATHER_SECONDS)
            taken, self._for_thread = self._for_thread, []
        self._expected_callers = len(taken)
        for number, batch in enumerate(_parts(_still_wanted(taken))):
            answers = self._stored([waiting.spans for waiting in batch])
            if number == 0:  # no results were sent yet, so these callers are not those of this batch again
                self._expected_callers += len(self._for_thread)
            _set_results(batch, answers)

    def _stored(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        try:
            return self._store(batches)
        except Exception as error:  # as in `_stored_here`
            return _to_all(batches, error)

    def _is_enough(self) -> bool:
        waiting = self._for_thread
        return len(waiting) >= self._expected_callers or sum(each.size for each in waiting) >= _ENOUGH_BYTES


def _still_wanted(taken: Sequence[_Waiting]) -> list[_Waiting]:
    return [waiting for waiting in taken if not waiting.answer.cancelled()]


def _parts(batch: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """Divide callers, in their order, into transactions; each is closed once it has `_ENOUGH_BYTES`."""
    parts: list[list[_Waiting]] = []
    size_of_part = _ENOUGH_BYTES
    for waiting in batch:
        if size_of_part >= _ENOUGH_BYTES:
            parts.append([])
            size_of_part = 0
        parts[-1].append(waiting)
        size_of_part += waiting.size
    return parts


def _set_results(batch: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    """Set the callers' results on their own event loops; each loop is woken once for all of its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[list[Span]], Answer]]] = {}
    for waiting, answer in zip(batch, answers, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.answer, answer))
    for loop, results in by_loop.items():
        if loop is _this_loop():
            settle(results)
        else:
            with suppress(RuntimeError):  # the loop is closed, and has no waiting callers
                loop.call_soon_threadsafe(settle, results)


def _this_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def one_by_one(batches: Sequence[Sequence[Span]], error: Exception, store: Store) -> list[Answer]:
    """Store several callers' spans in separate transactions, after they failed together with `error`.

    The common error does not show which caller's spans caused it.
    """
    if len(batches) < 2:
        return [error] * len(batches)
    return [answer for batch in batches for answer in store([batch])]


def _to_all(batches: Sequence[Sequence[Span]], error: Exception) -> list[Answer]:
    return [error for _ in batches]


def result_of(answer: Answer) -> list[Span]:
    """Return the stored spans; raises the answer where it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def settle(answers: "Iterable[tuple[asyncio.Future[list[Span]], Answer]]") -> None:
    """Set the results of callers of this event loop, except those that were cancelled."""
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
