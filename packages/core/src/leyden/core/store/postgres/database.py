"""`Database`: transactions in one PostgreSQL database, run again where nothing can have come of them.

A transaction that a concurrent one got in the way of is run again at once, and one whose connection was lost before it
was to be committed as long as the server is away for no longer than `patience`. Where the connection is lost while
committing, nobody knows what came of it, and the caller is told so. Knows nothing of what a transaction does.
"""

import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from leyden.core.errors import StoreError
from leyden.core.store.postgres.rows import PostgresRows

T = TypeVar("T")

CHANNEL = "leyden_store"
"""On which commits are told of, to the listening connections of all processes."""
PATIENCE = 10.0
"""Seconds for which a server may be away before calls fail."""
LOCK_SECONDS = 20
"""How long to wait for another's transaction."""
_IDLE_SECONDS = 60
"""After which the server gives up a transaction whose process was stopped, or has vanished without a word."""
_IN_THE_WAY = frozenset({"40001", "40P01", "23505"})
"""Serialisation failure, deadlock; and a row that another has just made, which is found when looked for again."""
_LOST = frozenset({None, "57P01", "57P02", "57P03", "25P03"})
"""No state at all, as from libpq itself; shut down, crashed, starting up; idle for too long."""
_MOST_TRIES = 20
PLANNED_SECONDS = 1.0
"""For how long a connection keeps its plans: one that was made for small tables may read the whole of large ones."""
_PLANNED = "leyden_planned"
"""When a connection of the pool last began to make its plans."""
_PAUSE = 0.1
"""Seconds between two attempts to reach a server."""
_ERRORS = (SQLAlchemyError, psycopg.Error)
_ALIVE = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""libpq's parameters: a server that vanished is noticed within half a minute."""


class InDoubt(StoreError):
    """The connection was lost while committing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: the connection was lost while storing; what was to be stored may be there or not")


class Database:
    """Safe from any thread. `connections` may be open at once; `clock` gives Unix seconds."""

    def __init__(self, url: URL, connections: int, clock: Callable[[], float], patience: float = PATIENCE) -> None:
        self.name = url.set(query={}).render_as_string(hide_password=True)
        """For messages."""
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self.engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=connections,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            connect_args={name: value for name, value in _ALIVE.items() if name not in url.query},
        )
        event.listen(self.engine, "connect", _begin)

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def connect(self) -> "psycopg.Connection[Any]":
        """Return a connection for the caller alone; raises psycopg.Error."""
        parameters: dict[str, Any] = {**_ALIVE, **self.engine.dialect.create_connect_args(self.engine.url)[1]}
        return psycopg.connect(**parameters, autocommit=True)

    def connect_to_write(self) -> "psycopg.Connection[Any]":
        """Return a connection, as durable as transactions are, for the caller alone; raises psycopg.Error."""
        connection = self.connect()
        _configure(connection)
        return connection

    def run(
        self, work: Callable[[PostgresRows], T], payload: Callable[[PostgresRows], str | None], *, writes: bool
    ) -> tuple[T, PostgresRows]:
        """Run `work` in a transaction, then tell other processes the `payload`.

        Raises StoreError, unless `work` raises another; then nothing is kept, except for InDoubt.
        """
        return self._tried(lambda: self._run_once(work, payload, writes))

    def _tried(self, once: Callable[[], T]) -> T:
        tries = 0
        while True:
            tries += 1
            try:
                done = once()
                self._away_since = None
                return done
            except _ERRORS as error:
                if not self._may_go_again(error, tries):
                    raise StoreError(f"{self.name}: {first_line(error)}") from error

    def _run_once(
        self, work: Callable[[PostgresRows], T], payload: Callable[[PostgresRows], str | None], writes: bool
    ) -> tuple[T, PostgresRows]:
        with self._connection() as connection:
            driver: Any = connection.connection.driver_connection
            now = time.monotonic()
            if now - connection.info[_PLANNED] > PLANNED_SECONDS:
                driver.execute("DISCARD PLANS", prepare=False)
                connection.info[_PLANNED] = now
            rows = PostgresRows(connection, driver, self._clock(), writes=writes)
            try:
                rows.begin()
                result = work(rows)
            except BaseException as error:
                _undo(connection, rows, error)
                raise
            try:
                rows.commit(CHANNEL, payload(rows))
            except _ERRORS as error:
                lost = driver.closed
                _undo(connection, rows, error)
                if rows.committed:
                    return result, rows
                if lost and writes:
                    raise InDoubt(self.name) from error
                raise
        return result, rows

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        """A connection of the pool; closed for good where it would come back to a pool that nobody has any more."""
        pool = self.engine.pool
        with self.engine.connect() as connection:
            try:
                yield connection
            finally:
                with self._lock:
                    if pool is not self.engine.pool:
                        connection.invalidate()
                    connection.close()

    def _may_go_again(self, error: Exception, tries: int) -> bool:
        """Whether to run a transaction again of which nothing was kept; waits until it is time."""
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        if state in _IN_THE_WAY:
            time.sleep(random.uniform(0, 0.002 * 2 ** min(tries, 6)))
            return tries < _MOST_TRIES
        if not isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) or state not in _LOST:
            return False
        with self._lock:
            self.engine.dispose()  # every connection is as old as the one that was lost
            now = time.monotonic()
            if self._away_since is None:
                self._away_since = now
            patient = now - self._away_since < self._patience
        if patient and tries > 1:
            time.sleep(_PAUSE)
        return patient


def _undo(connection: Connection, rows: PostgresRows, error: BaseException) -> None:
    """Undo a transaction that failed.

    Where it was the server that failed, the connection is closed: the driver does not know which of the statements that
    were on their way have been prepared.
    """
    with suppress(*_ERRORS):
        rows.roll_back()
    if isinstance(error, _ERRORS):
        connection.invalidate()


def _begin(driver: Any, record: Any) -> None:
    _configure(driver)
    record.info[_PLANNED] = time.monotonic()


def _configure(driver: Any) -> None:
    """Set what a connection that writes needs; closes it where that fails, since nobody has it yet."""
    words = (
        f"SET lock_timeout = {round(1000 * LOCK_SECONDS)}",
        f"SET idle_in_transaction_session_timeout = {1000 * _IDLE_SECONDS}",
        "SET enable_seqscan = off",
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    )
    try:
        driver.execute("; ".join(words), prepare=False)
    except BaseException:
        driver.close()
        raise


def first_line(error: BaseException) -> str:
    """What PostgreSQL, or its driver, said: its first line, without where in the statement it was."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else repr(error)
