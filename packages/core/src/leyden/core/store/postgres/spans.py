"""`SpanConnections`: stores the spans of all callers that wait on an event loop, one statement after another.

Spans that arrive while a statement is in progress wait for its end, and are stored together by the next. Spans that the
statement cannot store, and those that arrive before there is a connection, are stored by a thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import psycopg
from msgspec.structs import replace

from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.common import group_commit
from leyden.core.store.common.group_commit import MOST_BYTES_HERE, MOST_HERE
from leyden.core.store.common.rows import AttemptKey
from leyden.core.store.common.span_codec import RecentCalls
from leyden.core.store.common.span_ingest import problem
from leyden.core.store.postgres import raw_connection
from leyden.core.store.postgres.raw_connection import SpanConnection, SpanNumbers

_MOST_LOOPS, _CONNECTIONS_PER_LOOP = 4, 2
"""Number of event loops with connections of their own, and of connections each; other loops use threads."""
_FULL_BYTES = 48 << 10
"""Bytes of several callers that fill a statement; others then go with another statement, without waiting."""
_PAUSE = 1.0
"""Seconds between two attempts to connect."""
_MOST_JOBS = 4
"""Largest number of an event loop's jobs on threads while it has no connection; later spans wait, and are merged."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A caller with spans to be stored, and their approximate size in bytes."""

    spans: Sequence[Span]
    size: int
    answer: "asyncio.Future[list[Span]]"


@dataclass(frozen=True, slots=True)
class StoreFunctions:
    """Functions of the store for `SpanConnections`. All but `clock` run on threads, and may wait."""

    clock: Callable[[], float]
    connect: Callable[[], "psycopg.Connection[object]"]
    store: group_commit.Store
    """Stores spans in a transaction of several statements."""
    settle: group_commit.Store
    """Stores spans of which it is unknown whether they are stored."""
    on_begun: Callable[[Set[AttemptKey]], None]
    """Called, on any thread, with the attempts of spans stored by a statement; they may have begun to run with it."""


class SpanConnections:
    """Thread-safe, for any number of event loops."""

    def __init__(self, functions: StoreFunctions, recent_calls: RecentCalls, threads: ThreadPoolExecutor) -> None:
        self._functions, self._recent_calls, self._threads = functions, recent_calls, threads
        self._lock = threading.Lock()
        self._closed = False
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopSpans] = {}

    async def add(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, all or none, with those of all other waiting callers; return the stored spans."""
        if not spans:
            return []
        loop = asyncio.get_running_loop()
        loop_spans = self._by_loop.get(loop) or self._new(loop)
        waiting = _Waiting(spans, sum(span.size() for span in spans), loop.create_future())
        loop_spans.add(waiting)
        return await waiting.answer

    async def close(self) -> None:
        """Wait for statements in progress, then close the connections; other event loops close their own."""
        with self._lock:
            self._closed = True
            left, self._by_loop = self._by_loop, {}
        current_loop = asyncio.get_running_loop()
        for loop, loop_spans in left.items():
            if loop is current_loop or not loop.is_running():
                loop_spans.end()
            else:
                with suppress(RuntimeError):  # the loop has just been closed
                    loop.call_soon_threadsafe(loop_spans.end)
        if current_loop in left:
            await left[current_loop].ended.wait()

    def _new(self, loop: asyncio.AbstractEventLoop) -> "_LoopSpans":
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            for ended in [loop for loop in self._by_loop if loop.is_closed()]:
                self._by_loop.pop(ended).end()
            loop_spans = _LoopSpans(
                loop, self._functions, self._recent_calls, self._threads, may_connect=len(self._by_loop) < _MOST_LOOPS
            )
            self._by_loop[loop] = loop_spans
            return loop_spans


@dataclass(eq=False, slots=True)
class _LoopSpans:
    """Waiting callers and connections of one event loop; used on the loop's own thread only."""

    loop: asyncio.AbstractEventLoop
    functions: StoreFunctions
    recent_calls: RecentCalls
    threads: ThreadPoolExecutor
    may_connect: bool
    connections: list[SpanConnection] = field(default_factory=list[SpanConnection])
    waiting: list[_Waiting] = field(default_factory=list[_Waiting])
    scheduled: bool = False
    """Whether `_send_waiting` is scheduled on the loop."""
    last_was_lone: bool = False
    """Whether the last statement was for one caller only; the next caller then need not wait for others."""
    jobs: int = 0
    """Number of jobs on threads that it waits for."""
    connecting: "Future[SpanConnection | None] | None" = None
    not_before: float = 0.0
    """Monotonic time of the next attempt to connect."""
    ending: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, waiting: _Waiting) -> None:
        """Store spans: at once, at the end of the loop's turn, or after the statement in progress."""
        self.waiting.append(waiting)
        if self.last_was_lone and self.connections and not self._is_busy():
            self._send_waiting()
        elif not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self._send_waiting)

    def _is_busy(self) -> bool:
        return any(connection.is_busy for connection in self.connections)

    def _send_waiting(self) -> None:
        """Send the waiting callers' spans; small batches wait for the statement in progress, so that more can join."""
        self.scheduled = False
        self.connections = [connection for connection in self.connections if connection.is_open]
        if not self.connections:
            self._connect()
            if self.waiting and self.jobs < _MOST_JOBS:
                taken, self.waiting = self.waiting, []
                self._store_by_thread(taken, self.functions.store)
            return
        while self.waiting:
            idle = next((connection for connection in self.connections if not connection.is_busy), None)
            number, is_full = self._batch_size()
            if not is_full and self._is_busy():
                return
            if idle is None:
                self._connect()
                return
            taken, self.waiting = self.waiting[:number], self.waiting[number:]
            self._send(idle, taken)

    def _batch_size(self) -> tuple[int, bool]:
        """Return how many callers fit into one statement, and whether it is then full."""
        count = size = 0
        for index, caller in enumerate(self.waiting):
            count, size = count + len(caller.spans), size + caller.size
            if index and (count > MOST_HERE or size > MOST_BYTES_HERE):
                return index, True
            if size >= _FULL_BYTES:
                return index + 1, True
        return len(self.waiting), False

    def _send(self, connection: SpanConnection, taken: list[_Waiting]) -> None:
        batch = [waiting for waiting in taken if not waiting.answer.cancelled()]
        if not batch:
            return
        spans = [span for waiting in batch for span in waiting.spans]
        keys = {(span.rollout_id, span.attempt_id) for span in spans}
        size = sum(waiting.size for waiting in batch)
        if (
            len(spans) > MOST_HERE
            or size > MOST_BYTES_HERE
            or any(span.sequence_id for span in spans)
            or problem(spans, keys, size) is not None
        ):
            self._store_by_thread(batch, self.functions.store)
            return
        self.last_was_lone = len(batch) == 1
        try:
            rows = self.recent_calls.rows((span, False) for span in spans)
            connection.send(rows, self.functions.clock(), partial(self._answered, batch, spans, keys))
        except Exception:  # a value that cannot be encoded; the thread finds the caller that it belongs to
            self._store_by_thread(batch, self.functions.store)

    def _answered(
        self,
        batch: Sequence[_Waiting],
        spans: Sequence[Span],
        keys: Set[AttemptKey],
        answer: raw_connection.Answer,
    ) -> None:
        if isinstance(answer, SpanNumbers):
            store = self.functions.settle if answer is SpanNumbers.IN_DOUBT else self.functions.store
            self._store_by_thread(batch, store)
        else:
            self.functions.on_begun(keys)
            stored = (replace(span, sequence_id=number) for span, number in zip(spans, answer, strict=True))
            group_commit.settle((waiting.answer, [next(stored) for _ in waiting.spans]) for waiting in batch)
        self._continue()

    def _continue(self) -> None:
        if self.waiting:
            self._send_waiting()
        if self.ending:
            self._end()

    def _store_by_thread(self, batch: Sequence[_Waiting], store: group_commit.Store) -> None:
        wanted = [waiting for waiting in batch if not waiting.answer.cancelled()]
        if not wanted:
            return
        self.jobs += 1
        try:
            job = self.threads.submit(store, [waiting.spans for waiting in wanted])
        except RuntimeError:  # the threads have ended
            self._stored(wanted, [StoreError("this store is closed") for _ in wanted])
            return
        job.add_done_callback(lambda done: self._call(partial(self._stored, wanted, _answers(done, len(wanted)))))

    def _stored(self, batch: Sequence[_Waiting], answers: Sequence[group_commit.Answer]) -> None:
        self.jobs -= 1
        group_commit.settle((waiting.answer, answer) for waiting, answer in zip(batch, answers, strict=True))
        self._continue()

    def _connect(self) -> None:
        """Let a thread make one more connection, unless one is being made."""
        if not self.may_connect or self.connecting is not None or len(self.connections) == _CONNECTIONS_PER_LOOP:
            return
        if time.monotonic() < self.not_before:
            return
        with suppress(RuntimeError):  # the threads have ended
            self.connecting = job = self.threads.submit(_connected, self.functions.connect)
            job.add_done_callback(lambda _: self._call(self._attach))

    def _attach(self) -> None:
        job, self.connecting = self.connecting, None
        connection = None if job is None else job.result()
        if connection is None:  # or the connection could not be made
            self.not_before = time.monotonic() + _PAUSE
            return
        try:
            connection.attach(self.loop)
            self.connections.append(connection)
        except NotImplementedError:  # for example on Windows
            self.may_connect = False
            connection.close()

    def _call(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and has no waiting callers
            self.loop.call_soon_threadsafe(work)

    def end(self) -> None:
        """Raise StoreError for waiting callers; close the connections when the statements in progress have ended."""
        self.may_connect = False
        self.ending = True
        left, self.waiting = self.waiting, []
        for caller in left:
            if not self.loop.is_closed() and not caller.answer.done():
                caller.answer.set_exception(StoreError("this store is closed"))
        self._end()

    def _end(self) -> None:
        if self._is_busy() and self.loop.is_running():
            return
        job, self.connecting = self.connecting, None
        if job is not None:
            job.add_done_callback(lambda done: _close(done.result()))
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.close()
        self.ended.set()


def _answers(job: "Future[list[group_commit.Answer]]", callers: int) -> list[group_commit.Answer]:
    """Return the results of a job for so many callers; an error of the job itself is the result for each."""
    error = job.exception()
    if error is None:
        return job.result()
    answer = error if isinstance(error, Exception) else StoreError(f"the spans could not be stored: {error!r}")
    return [answer for _ in range(callers)]


def _close(connection: SpanConnection | None) -> None:
    if connection is not None:
        connection.close()


def _connected(connect: "Callable[[], psycopg.Connection[object]]") -> SpanConnection | None:
    try:
        connection = connect()
    except psycopg.Error:
        return None
    try:
        return SpanConnection(connection)
    except psycopg.Error:
        connection.close()
        return None
