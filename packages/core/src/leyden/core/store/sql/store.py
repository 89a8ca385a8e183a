"""`SqlStore`: a store in a SQLite file, shared by any number of processes on one machine.

Transactions run on the store's own threads, one that writes and a few that read. A whole transaction costs the event
loop one switch of threads instead of one for every statement, and a cancelled caller never leaves it half done. Spans,
which come with every model call, are written on the caller's thread where no other writer is active.

The file is in WAL mode with `synchronous=NORMAL`. Acknowledged writes survive the death of any process. A power cut may
lose the last moments, but never reorders writes.
"""

import asyncio
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from errno import EISDIR
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.exc import SQLAlchemyError

from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import StoreError, UsageError
from leyden.core.store.common.attempt_cache import RecentAttempts
from leyden.core.store.common.group_commit import Answer, GroupCommit, one_by_one
from leyden.core.store.common.lifecycle import CLOCK
from leyden.core.store.common.local import LocalStore, after_health_check, unless_due
from leyden.core.store.common.reading import finding_attempt
from leyden.core.store.common.rows import AttemptRow, RolloutRow, Rows, to_attempt, to_rollout
from leyden.core.store.common.writing_thread import WritingThread
from leyden.core.store.sql import file_notifier, schema
from leyden.core.store.sql.file_notifier import FileListener
from leyden.core.store.sql.rows import SqlRows

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ConnectionPair: TypeAlias = tuple[Connection, Any]
"""A connection of SQLAlchemy, and its driver's own connection."""

RECHECK = 0.5
"""Seconds after which a waiting caller looks again, for the rare case of a missed notification."""
_READERS = 2
_CHECKPOINT_BYTES = 16 << 20
"""Bytes in SQLite's log, or of spans stored on callers' own threads, after which a checkpoint is made."""
_PAGE_BYTES = 4096
_SMALL_BYTES = 4 * _PAGE_BYTES
"""Approximate bytes that a change of a few rows adds to SQLite's log."""
_BUSY_SECONDS = 20.0
"""Longest wait for another process's transaction."""
_ERRORS = (SQLAlchemyError, sqlite3.Error)
"""The driver's own errors occur unwrapped while a connection is being made."""


class SqlStore(LocalStore):
    """A store in a SQLite file. Open it with `await SqlStore.open(path)`, or `open_store`."""

    name = "sqlite"

    def __init__(self, engine: Engine, clock: Callable[[], float], recheck: float) -> None:
        super().__init__(clock, recheck)
        self._engine = engine
        self._path = Path(engine.url.database or "")
        self._listening = threading.Lock()
        self._listener: FileListener | None = None
        self._has_no_inotify = False
        """Whether this system cannot notify about writes of other processes."""
        self._writer = WritingThread()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="leyden-store-read")
        self._nowait_lock = threading.Lock()
        self._nowait_connection: _ConnectionPair | None = None
        """For the holder of `_nowait_lock`, on any thread; it never waits for another process's transaction."""
        self._uncheckpointed = 0
        self._makes_checkpoint = False
        """Whether a checkpoint is being made; two at once would keep each other from restarting the log."""
        self._spans = GroupCommit(self._store_spans, self._store_spans_here, self._writer.submit)
        self._recent = RecentAttempts(recheck)

    @classmethod
    async def open(
        cls, path: str | Path, clock: Callable[[], float] = time.time, recheck: float = RECHECK
    ) -> "SqlStore":
        """Open the file, and create it with access for its owner only if it does not exist.

        Waiting callers are notified at once of writes by any process; after `recheck` seconds where the system has no
        inotify. Raises UsageError when the file cannot be a store: no such folder, another kind of file, a newer
        version.
        """
        return cls(await asyncio.to_thread(_open, Path(path)), clock, recheck)

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Durable, and shared between processes of one machine."""
        return {"durable": True, "multi_process": True, "otlp_traces": False}

    async def _transact(self, work: Callable[[Rows], T], *, write: bool, small: bool) -> T:
        if not write:
            found = await self._in_transaction(unless_due(work), write=False, small=small)
            if found is not None:
                return found[0]
        return await self._in_transaction(lambda rows: after_health_check(rows, work), write=True, small=small)

    async def _in_transaction(self, work: Callable[[SqlRows], T], *, write: bool, small: bool) -> T:
        """Run `work` on a thread of the store; small work on the calling thread, where no other writer is active."""
        if small and write:
            self._count_written(_SMALL_BYTES)
        if small and not (write and self._writer.is_busy):
            done = self._on_calling_thread(lambda rows: (work(rows),), write=write)
            if done is not None:
                return done[0]
        submit = self._writer.submit if write else self._readers.submit
        return await asyncio.wrap_future(submit(self._run, work, write))

    def _run(self, work: Callable[[SqlRows], T], write: bool) -> T:
        try:
            with self._engine.connect() as connection:
                return self._work_on(connection, connection.connection.driver_connection, work, write)
        except _ERRORS as error:
            raise StoreError(f"{self._engine.url.database}: {_cause(error)}") from error

    def _work_on(self, connection: Connection, driver: Any, work: Callable[[SqlRows], T], write: bool) -> T:
        try:
            rows, result = self._committed(connection, driver, work, write, assumes_new_spans=write)
        except sqlite3.IntegrityError:  # some of the spans were stored already
            rows, result = self._committed(connection, driver, work, write, assumes_new_spans=False)
        self._recent.forget(rows.changed)
        self._notifier.notify(rows.topics)
        if rows.topics - {CLOCK}:  # other processes check deadlines every `RECHECK` seconds
            file_notifier.notify(self._path)
        return result

    def _committed(
        self, connection: Connection, driver: Any, work: Callable[[SqlRows], T], write: bool, *, assumes_new_spans: bool
    ) -> tuple[SqlRows, T]:
        with _transaction(driver, write):
            rows = SqlRows(connection, driver, self._clock(), assumes_new_spans=assumes_new_spans)
            rows.given_positions = self.given_positions
            return rows, work(rows)

    async def _wait(
        self, look: Callable[[], Awaitable[T | None]], topics: Iterable[str], timeout: float | None
    ) -> T | None:
        """Wait, and start the listener for other processes' writes where the system supports it."""
        with self._listening:
            if self._listener is None and not self._has_no_inotify and not self._closed:
                try:
                    self._listener = FileListener(self._path, self._notifier.notify_all)
                except OSError as error:
                    self._has_no_inotify = True
                    logger.info(
                        "%s: other processes' writes are found by polling, because inotify is not available: %s",
                        self._path,
                        error,
                    )
        return await super()._wait(look, topics, timeout)

    async def find_attempt(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        """Return an attempt with its rollout; from a cache where it was looked up within `recheck` seconds."""
        self._check_open()
        return await self._recent.find((rollout_id, attempt_id), lambda: self._look_up(rollout_id, attempt_id))

    async def _look_up(self, rollout_id: str, attempt_id: str) -> tuple[Rollout, Attempt] | None:
        def read(pair: _ConnectionPair) -> tuple[RolloutRow, AttemptRow] | None:
            return SqlRows(*pair, self._clock()).rollout_and_latest_attempt((rollout_id, attempt_id))

        found = self._run_nowait(read)
        if found is None:
            return await self._read(finding_attempt(rollout_id, attempt_id))
        return to_rollout(*found), to_attempt(found[1])

    async def _add_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans in one transaction with those of all other waiting callers."""
        self._check_open()
        return await self._spans.add(spans)

    def _store_spans(self, batches: Sequence[Sequence[Span]]) -> list[Answer]:
        try:
            return self._run(self._span_work(batches), True)
        except Exception as error:
            return one_by_one(batches, error, self._store_spans)

    def _store_spans_here(self, batches: Sequence[Sequence[Span]], size: int) -> list[Answer] | None:
        """Store on the calling thread; return None where another writer is active, or the store is closed."""
        if self._closed:
            return None
        self._count_written(size)
        if self._writer.is_busy:
            return None
        return self._on_calling_thread(self._span_work(batches, size), write=True)

    def _span_work(
        self, batches: Sequence[Sequence[Span]], size: int | None = None
    ) -> Callable[[SqlRows], list[Answer]]:
        return lambda rows: after_health_check(rows, lambda rows: self._add(rows, batches, size))

    def _count_written(self, size: int) -> None:
        """Count the bytes written on callers' own threads, and start a checkpoint when it is due."""
        self._uncheckpointed += size
        if self._uncheckpointed > _CHECKPOINT_BYTES and not self._makes_checkpoint:
            self._makes_checkpoint, self._uncheckpointed = True, 0
            self._readers.submit(self._checkpoint)

    def _checkpoint(self) -> None:
        """Copy SQLite's log into the file while others write; then copy the rest while no thread of this store writes.

        The log restarts only after all of it was copied. That is quick when most of it was copied before.
        """
        self._checkpointed("PASSIVE")
        with suppress(RuntimeError):  # the store is closing
            self._writer.submit(self._restart_log)

    def _restart_log(self) -> None:
        try:
            self._checkpointed("RESTART")
        finally:
            self._makes_checkpoint = False

    def _checkpointed(self, kind: str) -> None:
        raw = self._engine.raw_connection()
        try:
            cursor: Any = raw.cursor()
            cursor.execute("PRAGMA busy_timeout=0")  # it does not wait for a long query or another process
            cursor.execute(f"PRAGMA wal_checkpoint({kind})")
            cursor.execute(f"PRAGMA busy_timeout={round(1000 * _BUSY_SECONDS)}")
        except sqlite3.Error:
            raw.invalidate()  # the next checkpoint continues where this one stopped
        finally:
            raw.close()

    def _on_calling_thread(self, work: Callable[[SqlRows], T | None], *, write: bool) -> T | None:
        """Run `work` on the calling thread; None where the writing thread must do it, which may wait and raise."""
        return self._run_nowait(lambda pair: self._work_on(*pair, work, write))

    def _run_nowait(self, work: Callable[[_ConnectionPair], T | None]) -> T | None:
        if not self._nowait_lock.acquire(blocking=False):
            return None
        try:
            return None if self._closed else work(self._nowait_connection or self._connect_nowait())
        except Exception:
            return None
        finally:
            self._nowait_lock.release()

    def _connect_nowait(self) -> _ConnectionPair:
        connection = self._engine.connect()
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA busy_timeout=0")
        driver.execute("PRAGMA wal_autocheckpoint=0")
        self._nowait_connection = connection, driver
        return self._nowait_connection

    async def _release(self) -> None:
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        with self._listening:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        self._writer.shutdown()
        self._readers.shutdown(wait=True)
        with self._nowait_lock:
            if self._nowait_connection is not None:
                self._nowait_connection[0].close()
        self._engine.dispose()


def _make_private(path: Path) -> None:
    """Remove other users' access to a file of this process's user; log a warning for another user's file."""
    found = path.stat()
    if not found.st_mode & 0o077:
        return
    if found.st_uid == os.geteuid():
        path.chmod(stat.S_IMODE(found.st_mode) & 0o700)
        logger.warning(
            "other users of this machine could access the store %s; its permissions were restricted to its owner", path
        )
    else:
        logger.warning("the store %s belongs to another user, and other users can access it", path)


def _create(path: Path) -> None:
    """Create the file if there is none, for its owner only.

    An existing file is not opened: closing it would release the locks of all of this process's connections to it, and
    another process would then remove the write-ahead log that they still use.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if path.is_dir():
        raise IsADirectoryError(EISDIR, "it is a folder")


def _open(path: Path) -> Engine:
    try:
        _create(path)
    except OSError as error:
        raise UsageError(f"cannot open the store {path}: {error.strerror}") from error
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        pool_size=_READERS + 2,
        max_overflow=0,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": _BUSY_SECONDS},
    )
    event.listen(engine, "connect", _configure)
    try:
        with engine.connect() as connection:
            _check_ours(connection, path)
        _make_private(path)  # before the write-ahead log, which has the same permissions, is created
        _use_wal(engine, path)
        with engine.connect() as connection, _transaction(connection.connection.driver_connection, write=True):
            _migrate(connection)
    except _ERRORS as error:
        engine.dispose()
        raise UsageError(f"cannot open the store {path}: {_cause(error)}") from error
    except UsageError:
        engine.dispose()
        raise
    return engine


def _configure(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_BYTES // _PAGE_BYTES}")


@contextmanager
def _transaction(driver: Any, write: bool) -> Generator[None]:
    """Run the block in a transaction of the driver, which is otherwise in autocommit mode."""
    driver.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        driver.commit()
    except BaseException:
        driver.rollback()
        raise


def _use_wal(engine: Engine, path: Path) -> None:
    """Switch to WAL; retried, since SQLite fails at once while another process does the same."""
    give_up = time.monotonic() + _BUSY_SECONDS
    while True:
        raw = engine.raw_connection()
        try:
            (mode,) = raw.cursor().execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise UsageError(f"the store {path} is on a file system without shared memory; put it on a local disk")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
        finally:
            raw.close()


def _check_ours(connection: Connection, path: Path) -> None:
    """Raise UsageError for another program's file, or one of a newer version, of which nothing has been changed."""
    tables = inspect(connection).get_table_names()
    if tables and schema.rollouts.name not in tables:
        raise UsageError(f"{path} is a database, but not a store of Leyden")
    if _version(connection) > schema.VERSION:
        raise UsageError(f"the store {path} was written by a newer version of Leyden; update Leyden to open it")


def _version(connection: Connection) -> int:
    return connection.exec_driver_sql("PRAGMA user_version").scalar_one()


def _migrate(connection: Connection) -> None:
    if _version(connection) == schema.VERSION:
        return
    schema.metadata.create_all(connection)  # creates the tables that an older store lacks
    if _has_column(connection, "spans", "heartbeat_time"):
        connection.exec_driver_sql(schema.KEEP_HEARTBEATS)
    if not _has_column(connection, "rollouts", "queue"):
        _add_queues(connection)
    for index in schema.ROLLOUT_INDEXES:
        index.create(connection, checkfirst=True)
    connection.exec_driver_sql(f"PRAGMA user_version={schema.VERSION}")


def _add_queues(connection: Connection) -> None:
    """Put the rollouts of an older store in the usual queue, whose name is empty."""
    connection.exec_driver_sql("ALTER TABLE rollouts ADD COLUMN queue TEXT NOT NULL DEFAULT ''")
    connection.exec_driver_sql("ALTER TABLE queue RENAME TO older_queue")
    schema.queue.create(connection)
    connection.exec_driver_sql("INSERT INTO queue (position, rollout_id) SELECT position, rollout_id FROM older_queue")
    connection.exec_driver_sql("DROP TABLE older_queue")


def _has_column(connection: Connection, table: str, name: str) -> bool:
    return name in {column["name"] for column in inspect(connection).get_columns(table)}


def _cause(error: Exception) -> object:
    return getattr(error, "orig", None) or error
