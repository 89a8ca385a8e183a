"""Decode thread: takes calls and other work from an inbox between two steps, and passes chunks to event loops."""

import asyncio
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar, cast

import numpy as np
import torch

from leyden.core.data.encoding.token_sets import TokenBits
from leyden.core.engine.base import FinishReason, TokenChunk
from leyden.core.engine.embedded.admission import Admission
from leyden.core.engine.embedded.decoder import DecodedSequence, Decoder
from leyden.core.errors import EngineError, UnusableGrammar

logger = logging.getLogger(__name__)

T = TypeVar("T")

SWITCH_SECONDS = 0.0005
"""Maximum time that another thread may keep the interpreter while this one waits for it.

Each torch call releases the interpreter. With Python's 5 ms, a busy event loop beside a tiny model makes decoding three
times slower. The setting is process-wide, and restored at the end.
"""


_switching = threading.Lock()
_switch_seconds_before: list[float] = []
"""One entry per running decode thread; the first is the process's original value."""


@contextmanager
def _quick_switching() -> Generator[None]:
    with _switching:
        _switch_seconds_before.append(sys.getswitchinterval())
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
    try:
        yield
    finally:
        with _switching:
            before = _switch_seconds_before.pop()
            if not _switch_seconds_before:
                sys.setswitchinterval(before)


class DecodeCall:
    """One response on its way from the decode thread to a coroutine."""

    def __init__(self, sequence: DecodedSequence) -> None:
        self.sequence = sequence
        self.loop = asyncio.get_running_loop()
        self.abandoned = False
        """Set from the event loop; the decode thread frees the slot before its next step."""
        self._ready: deque[TokenChunk | EngineError] = deque()
        self._arrived = asyncio.Event()

    def put(self, chunk: TokenChunk | EngineError) -> None:
        """Add a chunk, or the error that ends the call. Only on the event loop."""
        self._ready.append(chunk)
        self._arrived.set()

    async def next_chunk(self) -> TokenChunk:
        """Wait for tokens; return all that are available and of one version."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        chunk = self._ready.popleft()
        if isinstance(chunk, EngineError):
            raise chunk
        while self._ready and isinstance(more := self._ready[0], TokenChunk) and more.version == chunk.version:
            chunk = _joined(chunk, more)
            self._ready.popleft()
        return chunk


def _joined(first: TokenChunk, second: TokenChunk) -> TokenChunk:
    return TokenChunk(
        ids=first.ids + second.ids,
        logprobs=first.logprobs + second.logprobs,
        sampling_logprobs=first.sampling_logprobs + second.sampling_logprobs,
        version=second.version,
        finish_reason=second.finish_reason,
        top=None if first.top is None or second.top is None else first.top + second.top,
        kept=_joined_kept(first.kept, second.kept),
    )


def _joined_kept(first: TokenBits | None, second: TokenBits | None) -> TokenBits | None:
    if first is None or second is None:  # at most one of the chunks has no tokens
        return second if first is None else first
    return np.concatenate([first, second])


class _Action:
    def __init__(self, run: Callable[[], object], future: "Future[object]") -> None:
        self._run = run
        self._future = future

    def __call__(self) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        try:
            self._future.set_result(self._run())
        except Exception as error:
            self._future.set_exception(error)

    def refuse(self, failure: EngineError) -> None:
        """Fail the waiting caller with `failure`, because the action will not run."""
        if self._future.set_running_or_notify_cancel():
            self._future.set_exception(failure)


class DecodeThread:
    """Thread that runs a `Decoder`. Its public methods may be called from any thread."""

    def __init__(self, *, max_batch: int, admission: Admission, chunk_seconds: float, version: int) -> None:
        self.version = version
        self.broken: EngineError | None = None
        """The error with which all calls fail from now on; None while the thread works."""
        self._max_batch = max_batch
        self._admission = admission
        self._chunk_seconds = chunk_seconds
        self._inbox: queue.SimpleQueue[DecodeCall | _Action | None] = queue.SimpleQueue()
        self._calls: list[DecodeCall] = []
        self._waiting: list[DecodedSequence] = []
        self._decoder: Decoder | None = None
        self._emitted_at = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="leyden-engine", daemon=True)

    @property
    def in_flight(self) -> int:
        """Number of calls that hold a slot or wait for one."""
        return len(self._calls)

    def start(self, make: Callable[[], Decoder]) -> "Future[None]":
        """Start the thread; the returned future completes when the decoder is made, or with what prevented it."""

        def become_ready() -> None:
            self._decoder = make()

        ready = self.between_steps(become_ready)
        self._thread.start()
        return ready

    def submit(self, call: DecodeCall) -> None:
        """Add `call` to the inbox."""
        self._inbox.put(call)

    def between_steps(self, action: Callable[[], T]) -> "Future[T]":
        """Run `action` on the decode thread, between two steps; the returned future gets its result."""
        future: Future[T] = Future()
        self._inbox.put(_Action(action, cast("Future[object]", future)))
        return future

    def flush(self, version: int) -> None:
        """Serve `version` from now on: discard what the old weights computed. Only on the decode thread."""
        self._emit(everything=True)
        self._waiting = self._ready.flush() + self._waiting
        self._admission.began()
        self.version = version

    def stop(self) -> None:
        """Abort every call and end the thread; returns when it has ended."""
        if self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    @property
    def _ready(self) -> Decoder:
        if self._decoder is None:
            raise EngineError("the engine is not started")
        return self._decoder

    def _run(self) -> None:
        with _quick_switching(), torch.inference_mode():
            try:
                self._decode()
            except Exception as error:
                self._refuse(error)
            finally:
                if self._decoder is not None:
                    self._decoder.close()

    def _decode(self) -> None:
        while not self._stopped:
            self._read_inbox()
            try:
                self._advance()
            except Exception as error:
                self._fail(error)
            self._emit()
        while not self._inbox.empty():  # items that arrived after the last step
            self._take(self._inbox.get())
        self._end("abort")

    def _refuse(self, error: Exception) -> None:
        """Fail all calls in flight and all later ones, until the end, so that no caller waits for a broken engine."""
        logger.critical("The engine is broken; from now on every call fails", exc_info=error)
        failure = self.broken = EngineError(f"the engine is broken: {error!r}")
        calls, self._calls, self._waiting = self._calls, [], []
        _deliver([(call, failure) for call in calls])
        while not self._stopped:
            item = self._inbox.get()
            if isinstance(item, DecodeCall):
                _deliver([(item, failure)])
            elif item is not None:
                item.refuse(failure)
            else:
                self._stopped = True

    def _read_inbox(self) -> None:
        """Take the items in the inbox; wait for items if nothing is decoded, or for more calls to begin together."""
        while not self._stopped:
            wait = 0.0 if self._ready_rows() else self._remaining_wait() if self._waiting else None
            try:
                item = self._inbox.get(timeout=wait) if wait != 0 else self._inbox.get_nowait()
            except queue.Empty:
                return
            self._take(item)
            if not self._calls:
                return

    def _ready_rows(self) -> int:
        return len(self._decoder.rows) if self._decoder is not None else 0

    def _remaining_wait(self) -> float:
        rows = self._ready_rows()
        return self._admission.remaining_wait(
            time.perf_counter(), waiting=len(self._waiting), room=self._max_batch - rows, idle=not rows
        )

    def _take(self, item: DecodeCall | _Action | None) -> None:
        if item is None:
            self._stopped = True
        elif isinstance(item, DecodeCall):
            self._calls.append(item)
            self._waiting.append(item.sequence)
            self._admission.arrived(time.perf_counter(), len(self._calls))
        else:
            item()

    def _advance(self) -> None:
        if any(call.abandoned for call in self._calls):
            self._drop_abandoned()
        room = self._max_batch - len(self._ready.rows) if self._waiting else 0
        if room > 0 and not self._remaining_wait():
            joining, self._waiting = self._waiting[:room], self._waiting[room:]
            self._admission.began()
            self._ready.prefill(joining)
        if self._decoder is not None and self._decoder.rows:
            self._decoder.step()

    def _drop_abandoned(self) -> None:
        for call in [call for call in self._calls if call.abandoned]:
            self._calls.remove(call)
            if call.sequence in self._waiting:
                self._waiting.remove(call.sequence)
            elif call.sequence in self._ready.rows:
                self._ready.leave(call.sequence)

    def _emit(self, *, everything: bool = False) -> None:
        """Return the new tokens: at once for a complete response, else every `chunk_seconds`."""
        now = time.perf_counter()
        due = everything or now - self._emitted_at >= self._chunk_seconds
        chunks: list[tuple[DecodeCall, TokenChunk | EngineError]] = []
        for call in self._calls:
            sequence = call.sequence
            if sequence.finish_reason is not None or (due and sequence.sampled):
                chunks.append((call, self._chunk_or_error(sequence)))
        if due:
            self._emitted_at = now
        if chunks:
            self._calls = [call for call in self._calls if call.sequence.finish_reason is None]
            _deliver(chunks)

    def _chunk_or_error(self, sequence: DecodedSequence) -> TokenChunk | EngineError:
        return UnusableGrammar(sequence.failure) if sequence.failure else self._chunk(sequence, sequence.finish_reason)

    def _chunk(self, sequence: DecodedSequence, finish_reason: FinishReason | None) -> TokenChunk:
        sampled = sequence.take()
        return TokenChunk(
            ids=[token for token, _, _ in sampled],
            logprobs=[value for _, value, _ in sampled],
            sampling_logprobs=[value for _, _, value in sampled],
            version=self.version,
            finish_reason=finish_reason,
            top=sequence.take_top(),
            kept=sequence.take_kept(),
        )

    def _fail(self, error: Exception) -> None:
        """Fail every call; the engine continues with empty caches, because the old ones may be damaged."""
        logger.error("A decode step failed", exc_info=error)
        failure = error if isinstance(error, EngineError) else EngineError(f"a decode step failed: {error!r}")
        self._end(failure)

    def _end(self, reason: FinishReason | EngineError) -> None:
        calls, self._calls, self._waiting = self._calls, [], []
        _deliver(
            [
                (call, reason if isinstance(reason, EngineError) else self._chunk(call.sequence, reason))
                for call in calls
            ]
        )
        if self._decoder is not None:
            self._decoder.flush()


def _deliver(chunks: list[tuple[DecodeCall, TokenChunk | EngineError]]) -> None:
    """Pass the chunks to the event loops, and wake each event loop once for all of its calls."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[DecodeCall, TokenChunk | EngineError]]] = {}
    for call, chunk in chunks:
        by_loop.setdefault(call.loop, []).append((call, chunk))
    for loop, loop_chunks in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put, loop_chunks)
        except RuntimeError:  # the event loop is closed, so no caller waits
            for call, _ in loop_chunks:
                call.abandoned = True


def _put(chunks: list[tuple[DecodeCall, TokenChunk | EngineError]]) -> None:
    for call, chunk in chunks:
        call.put(chunk)
