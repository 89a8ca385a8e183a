"""`GroupCommit`: one transaction for the spans of every caller who waits. Knows no tables and no connections.

What comes within one turn of an event loop is stored on that loop's own thread, where that can be done at once: the hop
to another thread and back costs a lone caller more than the transaction, and in a crowd the two threads hinder each
other. Who has been alone for a while does not even wait for the end of the turn. What is large, or would have to wait
for another writer, goes to the store's writing thread.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakSet

from leyden.core.data.span import Span
from leyden.core.errors import StoreError

_GATHER_SECONDS = 0.001
"""How long the writing thread waits for as many callers as there were lately: a transaction costs as much as several
spans. A caller who is alone never waits."""
_ALONE, _TRUSTED = 4, 16
"""After so many turns with one caller each, so many callers are taken to be alone before a turn is waited for again."""
MOST_HERE, MOST_BYTES_HERE = 128, 2 << 20
"""A batch of more spans, or of more bytes, would keep the event loop from its other work for too long."""

_ENOUGH_BYTES = 1 << 20
"""So many are worth a transaction: the first callers are answered, and bring more, while the next one is made."""

Answer = list[Span] | Exception
Store = Callable[[Sequence[Sequence[Span]]], list[Answer]]
StoreHere = Callable[[Sequence[Sequence[Span]], int], list[Answer] | None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A caller whose spans are to be stored."""

    spans: Sequence[Span]
    size: int
    """About how many bytes they hold."""
    loop: asyncio.AbstractEventLoop
    answer: "asyncio.Future[list[Span]]"


class GroupCommit:
    """Safe from any number of event loops.

    `store_here`, told about how many bytes they hold, stores several callers' spans on the calling thread, or returns
    None where that cannot be done at once; `store` may wait, and `submit` runs it on the writing thread.
    """

    def __init__(self, store: Store, store_here: StoreHere, submit: Callable[[Callable[[], None]], object]) -> None:
        self._store, self._store_here, self._submit = store, store_here, submit
        self._lock = threading.Lock()
        self._new: list[_Waiting] = []
        self._called: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        """Loops that will look at what is new. More than one may: a loop may end before it comes to that."""
        self._for_thread: list[_Waiting] = []
        self._more = threading.Condition(self._lock)
        """Told when more wait for the thread."""
        self._alone = self._trusted = 0
        """Turns with one caller, one after the other; callers that are still taken to be alone."""
        self._crowd = 0
        """How many callers the writing thread's last batch was from, and came while it was written."""

    async def add(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, all or none, with those of every other caller who waits."""
        size = sum(span.size() for span in spans)  # here, so that what is wrong with them is their caller's error
        if self._trusted and not self._new:
            self._trusted -= 1
            answers = self._stored_here([spans], size)
            if answers is not None:
                return result_of(answers[0])
        loop = asyncio.get_running_loop()
        waiting = _Waiting(spans, size, loop, loop.create_future())
        with self._lock:
            self._new.append(waiting)
            called = loop in self._called
            self._called.add(loop)
        if not called:
            loop.call_soon(self._look, loop)
        return await waiting.answer

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._called.discard(loop)
            taken, self._new = self._new, []
        batch = _still_wanted(taken)
        self._alone = self._alone + 1 if len(taken) == 1 else 0
        self._trusted = _TRUSTED if self._alone >= _ALONE else 0
        if not batch:
            return
        answers = self._stored_here([waiting.spans for waiting in batch], sum(waiting.size for waiting in batch))
        if answers is not None:
            _tell(batch, answers)
            return
        with self._lock:
            submitted = bool(self._for_thread)
            self._for_thread += batch
            self._more.notify()
        if not submitted:
            try:
                self._submit(self._flush)
            except RuntimeError:  # the thread is gone
                self._give_up()

    def _stored_here(self, batches: Sequence[Sequence[Span]], size: int) -> list[Answer] | None:
        """Store on the calling thread; None where that would take too long, or cannot be done at once."""
        if size > MOST_BYTES_HERE or sum(map(len, batches)) > MOST_HERE:
            return None
        try:
            return self._store_here(batches, size)
        except Exception as error:  # whatever it is, it is the callers' answer: they wait for nothing else
            return _to_all(batches, error)

    def _give_up(self) -> None:
        with self._lock:
            taken, self._for_thread = self._for_thread, []
        _tell(taken, [StoreError("this store is closed") for _ in taken])

    def _flush(self) -> None:
        with self._lock:
            self._more.wait_for(self._is_enough, _GATHER_SECONDS)
            taken, self._for_thread = self._for_thread, []
        self._crowd = len(taken)
        for number, batch in enumerate(_parts(_still_wanted(taken))):
            answers = self._stored([waiting.spans for waiting in batch])
            if number == 0:  # nobody was told yet, so who came meanwhile is somebody else
                self._crowd += len(self._for_thread)
            _tell(batch, answers)

    def _stored(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        try:
            return self._store(batches)
        except Exception as error:  # as in `_stored_here`
            return _to_all(batches, error)

    def _is_enough(self) -> bool:
        waiting = self._for_thread
        return len(waiting) >= self._crowd or sum(each.size for each in waiting) >= _ENOUGH_BYTES


def _still_wanted(taken: Sequence[_Waiting]) -> list[_Waiting]:
    return [waiting for waiting in taken if not waiting.answer.cancelled()]


def _parts(batch: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """Divide callers, in their order, among transactions of which none has more than enough without its last one."""
    parts: list[list[_Waiting]] = []
    held = _ENOUGH_BYTES
    for waiting in batch:
        if held >= _ENOUGH_BYTES:
            parts.append([])
            held = 0
        parts[-1].append(waiting)
        held += waiting.size
    return parts


def _tell(batch: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    """Tell the callers, each on its own event loop, which is woken once for all of its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[list[Span]], Answer]]] = {}
    for waiting, answer in zip(batch, answers, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.answer, answer))
    for loop, mine in by_loop.items():
        if loop is _this_loop():
            settle(mine)
        else:
            with suppress(RuntimeError):  # it is closed: nobody waits there any more
                loop.call_soon_threadsafe(settle, mine)


def _this_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def one_by_one(batches: Sequence[Sequence[Span]], error: Exception, store: Store) -> list[Answer]:
    """Store several callers' spans apart, which failed together with `error`: whose they were is not known."""
    if len(batches) < 2:
        return [error] * len(batches)
    return [answer for batch in batches for answer in store([batch])]


def _to_all(batches: Sequence[Sequence[Span]], error: Exception) -> list[Answer]:
    return [error for _ in batches]


def result_of(answer: Answer) -> list[Span]:
    """Return what was stored; raises the error where the answer is one."""
    if isinstance(answer, Exception):
        raise answer
    return answer


def settle(answers: "Iterable[tuple[asyncio.Future[list[Span]], Answer]]") -> None:
    """Tell callers, on their own event loop, what became of their spans, unless they have gone."""
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
