"""`RedisStore`: rows in Redis, shared by any number of processes on any number of machines.

Transactions are optimistic: one reads, decides, and commits all it writes by one script that Redis makes only if what
was read is as it was; else the work is done again. Nobody holds a lock, so nobody who dies leaves one. A rollout at the
head of the queue is left to who looks at it first for a moment, so that many who claim at once take different ones.

Transactions run on the store's own threads, one that writes and a few that read. With `appendonly yes`, what was
acknowledged survives the death of any process, that of Redis included.
"""

import asyncio
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store import spans
from leyden.core.store.group_commit import Answer, GroupCommit
from leyden.core.store.lifecycle import check_health
from leyden.core.store.local import LocalStore
from leyden.core.store.reading import finding_attempt
from leyden.core.store.recent import RecentAttempts
from leyden.core.store.redis_bell import Listener
from leyden.core.store.redis_changes import arguments, is_empty, remember
from leyden.core.store.redis_link import Address, Link, Outage, address_of, connected
from leyden.core.store.redis_memory import Memory
from leyden.core.store.redis_rows import RedisRows
from leyden.core.store.redis_scripts import COMMIT, HOLD, READ, Command, Due, Keys, Stale
from leyden.core.store.redis_start import check_server, claim_namespace, is_durable
from leyden.core.store.rows import Rows

T = TypeVar("T")

RECHECK = 2.0
"""Seconds after which a waiting caller looks for news it was not told of."""
_RECENT_SECONDS = 0.5
"""How long an attempt that was looked at is taken to be as it was."""
_READERS = 2
_GIVE_UP_SECONDS = 20.0
"""How long a transaction is done again because others write the same."""
_LONGEST_PAUSE = 0.05
_HOLD_MILLISECONDS = "1000"
"""How long others leave a rollout to the one who is about to claim it; it does not matter if that is too short."""
_FILE_SECONDS = 3.0
"""Redis writes its file after two seconds in any case."""
_WAITS = re.compile(rb"aof_pending_bio_fsync:[1-9]")


class RedisStore(LocalStore):
    """A store in Redis. Use `await RedisStore.open(uri)`, or `open_store`."""

    def __init__(self, address: Address, clock: Callable[[], float], recheck: float) -> None:
        super().__init__(clock, recheck)
        self._name = uuid4().hex[:16]
        self._keys = Keys(f"leyden:{address.namespace}:")
        self._channel = f"{self._keys.prefix}bell:{address.database}"
        self._address, self._outage, self._closing = address, Outage(), threading.Event()
        link = connected(address)
        self._asks_file = check_server(link, address)
        self._durable = is_durable(link)
        claim_namespace(link, address, self._keys)
        link.drop()
        self._memory, self._commits = Memory(), 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="leyden-store-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="leyden-store-read")
        self._write_link, self._idle_links = self._link(), [self._link() for _ in range(_READERS)]
        self._listener = Listener(address, self._channel, self._name, self._bell, self._closing)
        self._spans = GroupCommit(self._store_spans, _never_here, self._writer.submit)
        self._recent = RecentAttempts(_RECENT_SECONDS)

    @classmethod
    async def open(cls, uri: str, clock: Callable[[], float] = time.time, recheck: float = RECHECK) -> "RedisStore":
        """Open the store in the Redis at `uri`, which is described in `docs/store-redis.md`.

        Waiting callers learn of what any process writes at once, and after `recheck` seconds of what they were not told
        of. Raises UsageError when there is no Redis, or it refuses the password, is too old, may lose what it is told,
        or holds something else under the store's keys.
        """
        return await asyncio.to_thread(cls, address_of(uri), clock, recheck)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Shared between processes, and durable unless the user accepted a Redis that is not."""
        return {"durable": self._durable, "multi_process": True, "otlp_traces": False}

    def _link(self) -> Link:
        return Link(self._address, self._outage, self._closing)

    async def _transact(self, work: Callable[[Rows], T], *, write: bool) -> T:
        if write:
            return await asyncio.wrap_future(self._writer.submit(self._write_now, work))
        return await asyncio.wrap_future(self._readers.submit(self._read_now, work))

    async def _write(self, work: Callable[[Rows], T]) -> T:
        self._check_open()
        return await self._transact(work, write=True)  # the health check is made where the commit finds it due

    async def _read(self, work: Callable[[Rows], T]) -> T:
        self._check_open()
        return await self._transact(work, write=False)

    def _read_now(self, work: Callable[[Rows], T]) -> T:
        link = self._idle_links.pop()
        try:
            return self._run(link, work, write=False)
        finally:
            self._idle_links.append(link)

    def _write_now(self, work: Callable[[Rows], T]) -> T:
        return self._run(self._write_link, work, write=True)

    def _run(self, link: Link, work: Callable[[Rows], T], *, write: bool) -> T:
        """Do `work` until what it was decided on has not changed before it is committed."""
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        tries = 0
        while True:
            try:
                return self._try(link, work, write=write, believes=write and tries == 0)
            except Due:
                if write:
                    self._run_check(link)
                else:
                    self._writer.submit(self._run_check, self._write_link).result()
            except Stale:
                if time.monotonic() > give_up:
                    raise StoreError(f"{self._address}: others write the same all the time") from None
                if tries:
                    time.sleep(random.random() * min(0.0005 * 2**tries, _LONGEST_PAUSE))
            tries += 1

    def _run_check(self, link: Link) -> None:
        """Make the health check, unless another process has just made it."""
        try:
            self._try(link, check_health, write=True, believes=False, cures=True)
        except Stale:
            return

    def _try(self, link: Link, work: Callable[[Rows], T], *, write: bool, believes: bool, cures: bool = False) -> T:
        now = self._clock()
        source = _Source(link, self._keys, "" if cures else repr(now), self._name if write else None)
        version = f"{self._name}.{self._commits + 1}"
        rows = RedisRows(now, self._keys, source, self._memory, version, believes=believes, cures=cures)
        problem: Exception | None = None
        result: Any = None
        try:
            result = work(rows)
        except (Due, Stale):
            raise
        except Exception as error:
            problem = error
        keep = write and problem is None and not is_empty(rows)
        if keep or believes or rows.asked > 1:
            base = self._commit(link, rows, source.now, keep)
            if write and problem is None:
                remember(rows, self._memory, base)
        if problem is not None:
            raise problem
        if write:
            self._recent.forget(rows.changed)
            self._bell.ring(rows.rung)
        return result

    def _commit(self, link: Link, rows: RedisRows, now: str, keep: bool) -> int:
        """Commit, or only look whether what was read is as it was; returns the first place given out."""
        keys = self._keys
        message = self._listener.message(sorted(rows.rung)) if keep and rows.rung else b""
        if keep:
            self._commits += 1
        number = str(self._commits) if keep else "0"
        answer = link.run(
            COMMIT,
            *(keys.deadlines, keys.serial, keys.last + self._name, number, now, self._channel, message),
            *arguments(rows, keep=keep, asks_file=self._asks_file),
        )
        if answer[0] == b"due":
            raise Due
        if answer[0] == b"stale":
            raise Stale
        if answer[2] and self._asks_file:
            self._await_file(link)
        return int(answer[1])

    def _await_file(self, link: Link) -> None:
        """Return when Redis has written what it has answered, which it puts off while it waits for the disk."""
        give_up = time.monotonic() + _FILE_SECONDS
        while _WAITS.search(link.call("INFO", "persistence")) and time.monotonic() < give_up:
            time.sleep(0.001)

    # --- What comes with every model call

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout; without a question where it was looked at a moment ago."""
        self._check_open()
        found = self._recent.get((rollout_id, attempt_id))
        if found is None:
            changes = self._recent.changes()
            found = await self._read(finding_attempt(rollout_id, attempt_id))
            if found is not None:
                self._recent.put((rollout_id, attempt_id), found, changes)
        return found

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, all or none, in one commit with those of every other caller waiting to be written."""
        self._check_open()
        return await self._spans.add(spans)

    def _store_spans(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        try:
            return self._write_now(lambda rows: spans.add_spans(rows, batches))
        except Exception as error:
            if len(batches) < 2:
                return [error] * len(batches)
            return [answer for batch in batches for answer in self._store_spans([batch])]

    async def _release(self) -> None:
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        for threads in (self._readers, self._writer):
            threads.shutdown(wait=True)
        self._closing.set()
        self._listener.leave(self._write_link)
        for link in (self._write_link, *self._idle_links):
            link.drop()


class _Source:
    """Asks over one link; raises Due where the health check must write first."""

    def __init__(self, link: Link, keys: Keys, now: str, name: str | None) -> None:
        """Holds in the name of `name`; without one it only looks."""
        self._link, self._keys, self.now, self._name = link, keys, now, name

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Answer commands of one moment."""
        return _found(self._link.run(READ, self._keys.deadlines, self.now, msgspec.msgpack.encode(commands)))

    def hold(self, limit: int) -> list[Any]:
        """Answer the first in the queue, and hold them."""
        keys = self._keys
        if self._name is None:
            (found,) = self.ask([("EACH", "0", str(limit - 1), keys.rollout, keys.queue, "HGETALL")])
            return found
        wanted = (keys.deadlines, keys.queue, keys.held, keys.rollout, self.now, str(limit), self._name)
        return _found(self._link.run(HOLD, *wanted, _HOLD_MILLISECONDS))


def _found(answer: list[Any]) -> list[Any]:
    if answer[0]:
        raise Due
    return answer[1]


def _never_here(_batches: Sequence[Sequence[Span]], _size: int) -> None:
    """Redis may be far away: the caller's event loop does not wait for it."""
