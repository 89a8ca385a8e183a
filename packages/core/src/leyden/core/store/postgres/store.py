"""`PostgresStore`: a store in a PostgreSQL database, shared by any number of processes on any number of machines.

Transactions run on the store's own threads, each with a connection of its own, so that several run at once. Every
commit notifies the other processes, which wake their own waiting callers. Acknowledged writes survive the death of any
process. They survive a power cut where the server writes to its disk as it does by default.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import uuid4

import msgspec
import psycopg
from msgspec.structs import replace

from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import StoreError
from leyden.core.store.common.attempt_cache import RecentAttempts
from leyden.core.store.common.group_commit import Answer, GroupCommit, one_by_one
from leyden.core.store.common.lifecycle import CLOCK, check_health
from leyden.core.store.common.local import LocalStore, unless_due
from leyden.core.store.common.reading import finding_attempt
from leyden.core.store.common.rows import Rows
from leyden.core.store.common.span_ingest import problem
from leyden.core.store.postgres import opening
from leyden.core.store.postgres.database import CHANNEL, ERRORS, PATIENCE, CommitUnknown, Database, first_line
from leyden.core.store.postgres.listener import Listener
from leyden.core.store.postgres.rows import PostgresRows
from leyden.core.store.postgres.statements import add_spans

T = TypeVar("T")
R = TypeVar("R")

RECHECK = 5.0
"""Seconds after which a waiting caller looks again, for the rare case of a missed notification."""
_RECENT_SECONDS = 0.5
"""Seconds for which a cached attempt may be out of date after a change by another process."""
_WRITERS, _READERS = 4, 2
_MOST_USUAL = 2000
"""Largest number of spans that are stored by one statement; for more, COPY is faster."""
_CHECKED_SECONDS = 2.0
"""Seconds for which overdue rollouts that other transactions have locked are waited for."""
_TRIES = 3
"""How often a write is made whose connection is lost during each commit."""
_MOST_PAYLOAD_BYTES = 7000
"""Largest payload of a notification in bytes; PostgreSQL's limit is 8000."""


class _CommitNotice(msgspec.Struct, frozen=True, array_like=True):
    """Notification of a commit for the other stores."""

    store: str
    topics: list[str] | None
    """Topics to notify; None stands for all."""


_NOTICE = msgspec.json.Decoder(_CommitNotice)


class PostgresStore(LocalStore):
    """A store in a PostgreSQL database. Open it with `await PostgresStore.open(uri)`, or `open_store`."""

    name = "postgresql"

    def __init__(self, database: Database, clock: Callable[[], float], recheck: float, *, durable: bool) -> None:
        super().__init__(clock, recheck)
        self._database = database
        self._durable = durable
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="leyden-store-write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="leyden-store-read")
        self._name = uuid4().hex
        """Id by which the store recognises its own notifications."""
        self._listening = threading.Lock()
        self._listener: Listener | None = None
        self._spans = GroupCommit(self._store_spans, None, self._writers.submit)
        self._recent = RecentAttempts(_RECENT_SECONDS)

    @classmethod
    async def open(
        cls,
        uri: str,
        clock: Callable[[], float] = time.time,
        recheck: float = RECHECK,
        patience: float = PATIENCE,
    ) -> "PostgresStore":
        """Open the database at `postgresql://user:password@host:port/name`, and create the tables if there are none.

        Waiting callers are notified at once of writes by any process, and also look again every `recheck` seconds.
        While the server is unreachable, calls wait for `patience` seconds. Raises UsageError when the database cannot
        be a store: no server, a wrong password, no such database, tables of another application, a newer version.
        """
        url = opening.parsed(uri)
        database = Database(url, _WRITERS + _READERS, clock, patience)
        durable = await asyncio.to_thread(opening.prepare, database)
        return cls(database, clock, recheck, durable=durable)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Shared between processes, and durable unless the server runs with `fsync=off`."""
        return {"durable": self._durable, "multi_process": True, "otlp_traces": False}

    def __repr__(self) -> str:
        return f"PostgresStore({self._database.name!r})"

    async def _write(self, work: Callable[[Rows], T], *, small: bool = False, once: bool = False) -> T:
        """Run `work` in a transaction; without `once`, again where it is unknown whether that was committed."""
        left = 1 if once else _TRIES
        while True:
            left -= 1
            try:
                return await super()._write(work, small=small, once=once)
            except CommitUnknown:
                if not left:
                    raise

    async def _transact(self, work: Callable[[Rows], T], *, write: bool, small: bool) -> T:
        threads = self._writers if write else self._readers
        return await asyncio.wrap_future(threads.submit(self._run_healthy, work, write))

    def _run_healthy(
        self, work: Callable[[Rows], T], write: bool, ahead: Callable[[PostgresRows], None] | None = None
    ) -> T:
        """Run `work` on rows in which nothing is overdue; `ahead` sends the queries that it will need.

        The health check has a transaction of its own. In the same transaction, `work` would wait for locks while it
        holds those of overdue rollouts.
        """

        def prepared(rows: PostgresRows, work: Callable[[Rows], R]) -> R:
            rows.expect_deadline()
            if ahead is not None:
                ahead(rows)
            return work(rows)

        give_up = time.monotonic() + _CHECKED_SECONDS
        while (done := self._run(lambda rows: prepared(rows, unless_due(work)), write)) is None:
            if time.monotonic() > give_up:
                return self._run(lambda rows: prepared(rows, work), write)
            # it skips locked rollouts, whose transactions may be the same check, so the next round looks again
            self._run(check_health, True)
        return done[0]

    def _run(self, work: Callable[[PostgresRows], T], write: bool) -> T:
        def numbered(rows: PostgresRows) -> T:
            rows.given_positions = self.given_positions
            return work(rows)

        result, rows = self._database.run(numbered, self._payload, writes=write)
        self._recent.forget(rows.changed)
        self._notifier.notify(rows.topics)
        return result

    def _payload(self, rows: PostgresRows) -> str | None:
        """Return the notification for other processes, with all topics where these are too many; None for no topics."""
        topics = rows.topics - {CLOCK} if rows.is_no_sooner() else rows.topics
        if not topics:
            return None
        payload = msgspec.json.encode(_CommitNotice(self._name, sorted(topics)))
        return (
            payload if len(payload) <= _MOST_PAYLOAD_BYTES else msgspec.json.encode(_CommitNotice(self._name, None))
        ).decode()

    def _on_message(self, payload: str) -> None:
        try:
            notice = _NOTICE.decode(payload)
        except msgspec.DecodeError:  # sent by another application or a later version
            self._notifier.notify_all()
            return
        if notice.topics is None:
            self._notifier.notify_all()
        elif notice.store != self._name:
            self._recent.forget(notice.topics)
            self._notifier.notify(notice.topics)

    async def _wait(
        self, look: Callable[[], Awaitable[T | None]], topics: Iterable[str], timeout: float | None
    ) -> T | None:
        """Wait, and start the listener if it does not run yet."""
        with self._listening:
            if self._listener is None and not self._closed:
                self._listener = Listener(self._database.connect, CHANNEL, self._on_message, self._notifier.notify_all)
        return await super()._wait(look, topics, timeout)

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout; from a cache where it was looked up recently."""
        self._check_open()
        looking = finding_attempt(rollout_id, attempt_id)
        return await self._recent.find((rollout_id, attempt_id), lambda: self._read(looking))

    async def _add_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans in one transaction with those of all other waiting callers."""
        self._check_open()
        return await self._spans.add(spans)

    def _store_spans(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        if not any(batches):
            return [[] for _ in batches]
        try:
            answers = self._add_usual(batches)
            if answers is not None:
                return answers
            keys = [(span.rollout_id, span.attempt_id, span.span_id) for batch in batches for span in batch]
            return self._run_healthy(lambda rows: self._add(rows, batches), True, lambda rows: rows.expect_spans(keys))
        except CommitUnknown:
            return [self._settled(batch) for batch in batches]
        except Exception as error:
            return one_by_one(batches, error, self._store_spans)

    def _add_usual(self, batches: Sequence[Sequence[Span]]) -> list[Answer] | None:
        """Store spans by one statement, which is faster than a transaction of several; return None in unusual cases.

        Raises StoreError where another transaction holds a lock for longer than the limit.
        """
        spans = [span for batch in batches for span in batch]
        attempts = {(span.rollout_id, span.attempt_id): None for span in spans}
        if len(spans) > _MOST_USUAL or any(span.sequence_id for span in spans) or problem(spans, attempts) is not None:
            return None
        rows = self._recent_calls.rows((span, False) for span in spans)
        statement, values, ranks = add_spans(self._clock(), rows)
        try:
            found = self._database.run_statement(statement, values)
        except psycopg.errors.LockNotAvailable as error:
            raise StoreError(f"{self._database.name}: {first_line(error)}") from error
        except ERRORS:  # a span is stored already, or no server answers
            return None
        if found is None:
            return None
        begins, *highest = found
        if begins:
            self._recent.forget({rollout_id for rollout_id, _ in attempts})
        stored = iter([replace(s, sequence_id=highest[n] + rank) for s, (n, rank) in zip(spans, ranks, strict=True)])
        return [[next(stored) for _ in batch] for batch in batches]

    def _settled(self, batch: Sequence[Span]) -> Answer:
        """Find out whether spans were stored before their connection was lost; store them if not."""
        keys = [(span.rollout_id, span.attempt_id, span.span_id) for span in batch]
        try:
            numbers = self._run(lambda rows: rows.numbers(keys), False)
        except Exception as error:
            return error
        if numbers.keys() < set(keys):
            return self._store_spans([batch])[0]
        spans = dict(zip(keys, batch, strict=True)).items()
        return [replace(span, sequence_id=numbers[key]) for key, span in spans]

    async def _release(self) -> None:
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        with self._listening:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        self._database.stop_waiting()
        for threads in (self._writers, self._readers):
            threads.shutdown(wait=True)
        self._database.close()
