"""`RedisStore`: a store in Redis, shared by any number of processes on any number of machines.

Transactions are optimistic: a transaction reads, decides, and sends all its writes in one script. Redis makes them only
if all data that were read are unchanged; otherwise the work is repeated. There are no locks, so a process that dies
leaves none. The store that first reads a rollout at the head of the queue reserves it for a moment, so that many claims
at once get different rollouts.

Transactions run on the store's own threads, one that writes and a few that read. With `appendonly yes`, acknowledged
writes survive the death of any process, that of Redis included.
"""

import asyncio
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.common.attempt_cache import RecentAttempts
from leyden.core.store.common.group_commit import Answer, GroupCommit, one_by_one
from leyden.core.store.common.lifecycle import check_health
from leyden.core.store.common.local import LocalStore
from leyden.core.store.common.reading import finding_attempt
from leyden.core.store.common.rows import Rows
from leyden.core.store.common.writing_thread import WritingThread
from leyden.core.store.redis.cache import RedisCache
from leyden.core.store.redis.changes import message, update_cache
from leyden.core.store.redis.connection import PATIENCE, Outage, RedisAddress, RedisLink, address_of, connected
from leyden.core.store.redis.decision import EmptySource, LinkSource, NotCached, PreparedCommit, TransactionResult
from leyden.core.store.redis.notifier import Listener
from leyden.core.store.redis.opening import check_server, claim_namespace, is_durable
from leyden.core.store.redis.rows import RedisRows
from leyden.core.store.redis.scripts import COMMIT, CommitMessage, HealthCheckDue, RedisKeys, StaleData

T = TypeVar("T")

RECHECK = 2.0
"""Seconds after which a waiting caller looks for changes whose notification was missed."""
_RECENT_SECONDS = 0.5
"""Seconds for which a cached attempt is used."""
_READERS = 2
_GIVE_UP_SECONDS = 20.0
"""Seconds for which a transaction is repeated because others write the same data."""
_LONGEST_PAUSE = 0.05
_SMALL_BYTES = 16 << 10
"""Largest commit that an event loop's thread sends; a larger one takes Redis longer than a switch of threads."""
_SOON_SECONDS = 0.02
"""Longest wait of an event loop for an answer."""
_NEAR_SECONDS, _NEAR_ANSWERS, _FAR_SECONDS = 0.002, 8, 1.0
"""Redis counts as near where one of the last `_NEAR_ANSWERS` answers took at most `_NEAR_SECONDS`.

Otherwise it counts as far for `_FAR_SECONDS`. On a busy machine, single answers of the nearest server take long too,
and even longer on another thread.
"""
_FILE_SECONDS = 3.0
"""Redis writes its file after two seconds in any case."""
_WAITS = re.compile(rb"aof_pending_bio_fsync:[1-9]")


class RedisStore(LocalStore):
    """A store in Redis. Open it with `await RedisStore.open(uri)`, or `open_store`."""

    name = "redis"

    def __init__(
        self, address: RedisAddress, clock: Callable[[], float], recheck: float, patience: float = PATIENCE
    ) -> None:
        super().__init__(clock, recheck)
        self._name = uuid4().hex[:16]
        self._keys = RedisKeys(f"leyden:{address.namespace}:")
        self._channel = f"{self._keys.prefix}bell:{address.database}"
        self._address, self._outage, self._closing = address, Outage(patience), threading.Event()
        link = connected(address)
        try:
            self._asks_file = check_server(link, address)
            self._durable = is_durable(link)
            claim_namespace(link, address, self._keys)
        finally:
            link.drop()
        self._cache, self._commits = RedisCache(), 0
        self._writer = WritingThread()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="leyden-store-read")
        self._write_link, self._idle_links = self._link(), [self._link() for _ in range(_READERS)]
        self._write_link.load(COMMIT)
        self._listener = Listener(address, self._channel, self._name, self._notifier, self._closing)
        self._write_lock = threading.Lock()
        """Held by the writer, on any thread."""
        self._unfinished: tuple[object, PreparedCommit[Any], bytes | None] | None = None
        """Owner and content of a commit that was not done at once; its answer, where only the file is not yet written.
        """
        self._finished_commit: tuple[object, Any] | None = None
        """Owner and result of such a commit after it was finished."""
        self._answer_seconds: deque[float] = deque(maxlen=_NEAR_ANSWERS)
        """Durations of the last answers that an event loop waited for."""
        self._near_from = 0.0
        self._spans = GroupCommit(self._store_spans, self._store_spans_here, self._writer.submit)
        self._recent = RecentAttempts(_RECENT_SECONDS)

    @classmethod
    async def open(
        cls,
        uri: str,
        clock: Callable[[], float] = time.time,
        recheck: float = RECHECK,
        patience: float = PATIENCE,
    ) -> "RedisStore":
        """Open the store in the Redis at `uri`, which is described in `docs/store-redis.md`.

        Waiting callers are notified at once of writes by any process, and look for missed ones after `recheck` seconds.
        While the server is unreachable, calls wait for `patience` seconds.
        Raises UsageError when there is no Redis, or it refuses the password, is too old, may lose data, or has other
        data under the store's keys.
        """
        return await asyncio.to_thread(cls, address_of(uri), clock, recheck, patience)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Shared between processes, and durable unless the user accepted a Redis that is not."""
        return {"durable": self._durable, "multi_process": True, "otlp_traces": False}

    def _link(self) -> RedisLink:
        return RedisLink(self._address, self._outage, self._closing)

    async def _transact(self, work: Callable[[Rows], T], *, write: bool, small: bool) -> T:
        """Run `work`; a small write runs on the calling thread where Redis is near.

        The health check runs where the commit finds it due.
        """
        if not write:
            return await asyncio.wrap_future(self._readers.submit(self._read_now, work))
        done = self._on_calling_thread(lambda: self._from_cache(work), work) if small else None
        return await asyncio.wrap_future(self._writer.submit(self._write_now, work)) if done is None else done.result

    def _read_now(self, work: Callable[[Rows], T]) -> T:
        link = self._idle_links.pop()
        try:
            return self._run(link, work, write=False)
        finally:
            self._idle_links.append(link)

    def _write_now(self, work: Callable[[Rows], T]) -> T:
        with self._write_lock:
            self._finish()
            finished = self._finished_commit
            if finished is not None and finished[0] is work:
                self._finished_commit = None
                return finished[1]
            return self._run(self._write_link, work, write=True)

    def _run(self, link: RedisLink, work: Callable[[Rows], T], *, write: bool) -> T:
        """Repeat `work` until the data on which it is based are unchanged at its commit."""
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        tries = 0
        while True:
            try:
                return self._try(link, work, write=write, uses_cache=write and tries == 0)
            except HealthCheckDue:
                if write:
                    self._run_health_check(link)
                else:
                    self._writer.submit(self._run_health_check_now).result()
            except StaleData:
                if time.monotonic() > give_up:
                    raise StoreError(f"{self._address}: other processes keep changing the same data") from None
                if tries:
                    time.sleep(random.random() * min(0.0005 * 2**tries, _LONGEST_PAUSE))
            tries += 1

    def _run_health_check_now(self) -> None:
        with self._write_lock:
            self._finish()
            self._run_health_check(self._write_link)

    def _run_health_check(self, link: RedisLink) -> None:
        """Run the health check, unless another process has just run it."""
        with suppress(StaleData):
            self._try(link, check_health, write=True, uses_cache=False, checks_health=True)

    def _try(
        self, link: RedisLink, work: Callable[[Rows], T], *, write: bool, uses_cache: bool, checks_health: bool = False
    ) -> T:
        now = self._clock()
        source = LinkSource(link, self._keys, "" if checks_health else repr(now), self._name if write else None)
        transaction_result = self._decide(
            now, source, work, write=write, uses_cache=uses_cache, checks_health=checks_health
        )
        if transaction_result.is_checked:
            self._settle(transaction_result, self._committed(link, lambda: _send(link, transaction_result.message)))
        if transaction_result.problem is not None:
            raise transaction_result.problem
        return cast("T", transaction_result.result)

    def _decide(
        self,
        now: float,
        source: LinkSource | EmptySource,
        work: Callable[[Rows], T],
        *,
        write: bool,
        uses_cache: bool,
        checks_health: bool = False,
    ) -> TransactionResult[T]:
        """Do `work`, and return its result with what must be committed."""
        version = f"{self._name}.{self._commits + 1}"
        rows = RedisRows(
            now, self._keys, source, self._cache, version, uses_cache=uses_cache, checks_health=checks_health
        )
        rows.given_positions = self.given_positions
        transaction_result = TransactionResult[T](rows, write)
        try:
            transaction_result.result = work(rows)
        except (HealthCheckDue, StaleData, NotCached):
            raise
        except Exception as error:
            transaction_result.problem = error
        if transaction_result.is_checked:
            transaction_result.message = self._message(transaction_result, source.now)
        return transaction_result

    def _message(self, transaction_result: TransactionResult[Any], now: str) -> CommitMessage:
        """Return a commit, or a check that what was read is unchanged."""
        keys, rows = self._keys, transaction_result.rows
        notice, number = b"", "0"
        if transaction_result.keeps:
            self._commits += 1
            number = str(self._commits)
            notice = self._listener.message(sorted(rows.topics)) if rows.topics else b""
        first = (keys.deadlines, keys.serial, keys.last + self._name, number, now, self._channel, notice)
        return message(first, rows, keep=transaction_result.keeps, asks_file=self._asks_file)

    def _committed(self, link: RedisLink, send: Callable[[], bytes], answer: bytes | None = None) -> int:
        """Return the first assigned position, once the commit can no longer be lost.

        `send` sends the commit; `answer` is the answer to it where it was sent before. A Redis that ends before it
        writes its file loses the commit, so it is sent again after a lost connection: Redis recognises it by its
        number, and makes it anew where it was lost.
        """
        while True:
            answer = answer or send()
            status, _, base = answer.partition(b" ")
            if status == b"due":
                raise HealthCheckDue
            if status == b"stale":
                raise StaleData
            if status == b"done" or not self._asks_file or _is_file_written(link):
                return int(base)
            answer = None

    def _settle(self, transaction_result: TransactionResult[Any], base: int) -> None:
        if transaction_result.writes and transaction_result.problem is None:
            update_cache(transaction_result.rows, self._cache, base)
            self._recent.forget(transaction_result.rows.changed)
            self._notifier.notify(transaction_result.rows.topics)

    # --- Small changes, on the calling thread

    def _on_calling_thread(
        self, decide: Callable[[], PreparedCommit[T] | None], name: object
    ) -> PreparedCommit[T] | None:
        """Decide from the cache and commit on the calling thread; None where the writing thread must do it.

        A commit that was sent, but not done at once, is finished there; `name` identifies its owner.
        """
        if self._writer.is_busy or time.monotonic() < self._near_from or not self._write_lock.acquire(blocking=False):
            return None
        try:
            if self._closed or self._unfinished is not None:
                return None
            prepared = decide()
            return prepared if prepared is not None and self._commit_soon(prepared, name) else None
        except Exception:  # the other thread raises the error again; mostly it is `NotCached`
            return None
        finally:
            self._write_lock.release()

    def _from_cache(self, work: Callable[[Rows], T]) -> PreparedCommit[T] | None:
        now = self._clock()
        transaction_result = self._decide(now, EmptySource(repr(now)), work, write=True, uses_cache=True)
        if not transaction_result.keeps or transaction_result.message.ahead:
            return None
        return PreparedCommit(
            transaction_result.message.arguments,
            cast("T", transaction_result.result),
            partial(self._settle, transaction_result),
        )

    def _commit_soon(self, prepared: PreparedCommit[Any], name: object) -> bool:
        began = time.monotonic()
        answer = self._write_link.run_soon(_SOON_SECONDS, COMMIT, *prepared.arguments)
        if answer is None or answer.startswith(b"wait"):
            self._unfinished = (name, prepared, answer)
            if answer is None:
                self._near_from = time.monotonic() + _FAR_SECONDS
            return False
        self._answer_seconds.append(time.monotonic() - began)
        if len(self._answer_seconds) == _NEAR_ANSWERS and min(self._answer_seconds) > _NEAR_SECONDS:
            self._answer_seconds.clear()
            self._near_from = time.monotonic() + _FAR_SECONDS
        if answer.startswith(b"done"):
            prepared.settle(int(answer.partition(b" ")[2]))
            return True
        return False

    def _finish(self) -> None:
        """Finish a commit that was not done at once, and keep its result for its caller."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None:
            return
        name, prepared, answer = unfinished
        link = self._write_link
        try:
            prepared.settle(self._committed(link, lambda: link.run(COMMIT, *prepared.arguments), answer))
        except (HealthCheckDue, StaleData):
            return  # it was not made, and is decided again
        self._finished_commit = (name, prepared.result)

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout; from a cache where it was looked up recently."""
        self._check_open()
        looking = finding_attempt(rollout_id, attempt_id)
        return await self._recent.find((rollout_id, attempt_id), lambda: self._read(looking))

    async def _add_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans in one commit with those of all other waiting callers."""
        self._check_open()
        return await self._spans.add(spans)

    def _store_spans_here(self, batches: Sequence[Sequence[Span]], size: int) -> list[Answer] | None:
        if size > _SMALL_BYTES:
            return None
        done = self._on_calling_thread(lambda: self._from_cache(lambda rows: self._add(rows, batches, size)), batches)
        return None if done is None else done.result

    def _store_spans(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        known: dict[int, Answer] = {}
        try:
            with self._write_lock:
                self._finish()
                finished = self._finished_commit
                if finished is not None and isinstance(finished[0], list):  # else it is a transaction's, which takes it
                    self._finished_commit = None
                    answers = zip(cast("list[Any]", finished[0]), finished[1], strict=True)
                    known = {id(batch): answer for batch, answer in answers}
        except Exception as error:
            return [error] * len(batches)
        rest = [batch for batch in batches if id(batch) not in known]
        others = iter(self._store_now(rest) if rest else [])
        return [known[id(batch)] if id(batch) in known else next(others) for batch in batches]

    def _store_now(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        try:
            return self._write_now(lambda rows: self._add(rows, batches))
        except Exception as error:
            if isinstance(error, StoreError):
                return [error] * len(batches)
            return one_by_one(batches, error, self._store_now)

    async def _release(self) -> None:
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._closing.set()  # callers that wait for a lost connection give up
        self._readers.shutdown(wait=True)
        self._writer.shutdown()
        with self._write_lock:
            self._listener.stop(self._write_link)
            for link in (self._write_link, *self._idle_links):
                link.drop()


def _send(link: RedisLink, commit: CommitMessage) -> Any:
    """Send a commit and return the answer."""
    if commit.ahead:
        return link.run_behind(commit.ahead, COMMIT, *commit.arguments)
    return link.run(COMMIT, *commit.arguments)


def _is_file_written(link: RedisLink) -> bool:
    """Wait until Redis has written everything to its file; return whether it is the same Redis that still runs."""
    give_up = time.monotonic() + _FILE_SECONDS
    while (state := link.call_connected("INFO", "persistence")) is not None:
        if not _WAITS.search(state) or time.monotonic() > give_up:
            return True
        time.sleep(0.001)
    return False
