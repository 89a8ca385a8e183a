"""`Database`: transactions in one PostgreSQL database, repeated where they had no effect.

A transaction that failed because of a concurrent one is repeated at once. One whose connection was lost before the
commit is repeated for at most `patience` seconds of the server's absence. Where the connection is lost during a commit,
the result is unknown, and `CommitUnknown` is raised.
"""

import random
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import SQLAlchemyError

from leyden.core.errors import StoreError
from leyden.core.store.postgres.rows import PostgresRows

T = TypeVar("T")

CHANNEL = "leyden_store"
"""Channel on which commits notify the listening connections of all processes."""
PATIENCE = 10.0
"""Seconds for which a server may be unreachable before calls fail."""
LOCK_SECONDS = 20
"""Longest wait for a lock of another transaction."""
_IDLE_SECONDS = 60
"""Seconds after which the server ends an idle transaction, whose process was stopped or has vanished."""
_CONFLICTS = frozenset({"40001", "40P01", "23505"})
"""Serialisation failure, deadlock, and a duplicate of a row that another transaction has just inserted.

The next attempt finds that row.
"""
_LOST_CONNECTION = frozenset({None, "57P01", "57P02", "57P03", "25P03"})
"""States of a lost connection: none at all, as from libpq itself; shut down, crashed, starting up; idle too long."""
_MOST_TRIES = 20
PLANNED_SECONDS = 1.0
"""Seconds for which a connection keeps its query plans; a plan for small tables may scan large ones."""
_PLANNED = "leyden_planned"
"""Key of a pool connection's `info`: the time since which it has kept its plans."""
_PAUSE = 0.1
"""Seconds between two attempts to reach a server."""
ERRORS = (SQLAlchemyError, psycopg.Error)
"""The driver's errors, wrapped or not."""
_ALIVE = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""Parameters of libpq with which a vanished server is detected within half a minute."""


class CommitUnknown(StoreError):
    """The connection was lost during a commit, so it is unknown whether the data were stored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: the connection was lost while storing; it is unknown whether the data was stored")


class Database:
    """Thread-safe. `connections` may be open at once; `clock` returns Unix seconds."""

    def __init__(self, url: URL, connections: int, clock: Callable[[], float], patience: float = PATIENCE) -> None:
        self.name = url.set(query={}).render_as_string(hide_password=True)
        """Name of the database in messages, without password."""
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._closing = threading.Event()
        self.engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=connections,
            max_overflow=0,
            isolation_level="AUTOCOMMIT",
            connect_args={name: value for name, value in _ALIVE.items() if name not in url.query},
        )
        event.listen(self.engine, "connect", _begin)

    def stop_waiting(self) -> None:
        """Let calls fail that wait for the server."""
        self._closing.set()

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def connect(self) -> "psycopg.Connection[Any]":
        """Return a new connection for the caller only; raises psycopg.Error."""
        parameters: dict[str, Any] = {**_ALIVE, **self.engine.dialect.create_connect_args(self.engine.url)[1]}
        return psycopg.connect(**parameters, autocommit=True)

    def run(
        self, work: Callable[[PostgresRows], T], payload: Callable[[PostgresRows], str | None], *, writes: bool
    ) -> tuple[T, PostgresRows]:
        """Run `work` in a transaction, then notify other processes with the `payload`; return the result and the rows.

        Raises StoreError, or the error of `work`. Nothing is stored then, except perhaps with CommitUnknown.
        """
        return self._tried(lambda: self._run_transaction(work, payload, writes))

    def _tried(self, attempt: Callable[[], T]) -> T:
        tries = 0
        while True:
            tries += 1
            try:
                done = attempt()
                self._away_since = None
                return done
            except ERRORS as error:
                if not self._may_go_again(error, tries):
                    raise StoreError(f"{self.name}: {first_line(error)}") from error

    def run_statement(self, statement: str, values: Sequence[Any]) -> Any:
        """Run one statement, which is a transaction by itself, and return the first column of its first row.

        Raises CommitUnknown where the connection is lost, and the driver's own errors; it is not repeated.
        """
        with self._connection() as connection:
            driver: Any = connection.connection.driver_connection
            self._discard_plans(connection, driver)
            try:
                return driver.execute(statement, values, binary=True).fetchone()[0]
            except psycopg.Error as error:
                if driver.closed:
                    raise CommitUnknown(self.name) from error
                raise

    def _discard_plans(self, connection: Connection, driver: Any) -> None:
        now = time.monotonic()
        if now - connection.info[_PLANNED] > PLANNED_SECONDS:
            driver.execute("DISCARD PLANS", prepare=False)
            connection.info[_PLANNED] = now

    def _run_transaction(
        self, work: Callable[[PostgresRows], T], payload: Callable[[PostgresRows], str | None], writes: bool
    ) -> tuple[T, PostgresRows]:
        with self._connection() as connection:
            driver: Any = connection.connection.driver_connection
            self._discard_plans(connection, driver)
            rows = PostgresRows(connection, driver, self._clock(), writes=writes)
            try:
                rows.begin()
                result = work(rows)
            except BaseException as error:
                _undo(connection, rows, error)
                raise
            try:
                rows.commit(CHANNEL, payload(rows))
            except ERRORS as error:
                lost = driver.closed
                _undo(connection, rows, error)
                if rows.committed:
                    return result, rows
                if lost and writes:
                    raise CommitUnknown(self.name) from error
                raise
        return result, rows

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        """Return a connection of the pool; it is closed afterwards where it was lost or its pool has been replaced."""
        pool = self.engine.pool
        with self.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            try:
                yield connection
            finally:
                with self._lock:
                    if pool is not self.engine.pool or driver.closed:
                        connection.invalidate()
                    connection.close()

    def _may_go_again(self, error: Exception, tries: int) -> bool:
        """Whether to repeat a transaction that had no effect; waits until it is time."""
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        if state in _CONFLICTS:
            time.sleep(random.uniform(0, 0.002 * 2 ** min(tries, 6)))
            return tries < _MOST_TRIES
        if not isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) or state not in _LOST_CONNECTION:
            return False
        with self._lock:
            self.engine.dispose()  # all other connections are as old as the lost one
            now = time.monotonic()
            if self._away_since is None:
                self._away_since = now
            may_wait = now - self._away_since < self._patience
        if may_wait and tries > 1:
            self._closing.wait(_PAUSE)
        return may_wait and not self._closing.is_set()


def _undo(connection: Connection, rows: PostgresRows, error: BaseException) -> None:
    """Roll back a failed transaction.

    After an error of the server, the connection is closed, since the driver cannot tell which of the sent statements
    were prepared.
    """
    with suppress(*ERRORS):
        rows.roll_back()
    if isinstance(error, ERRORS):
        connection.invalidate()


def _begin(driver: Any, record: Any) -> None:
    _configure(driver)
    record.info[_PLANNED] = time.monotonic()


def _configure(driver: Any) -> None:
    """Set the parameters of a connection that writes; closes it where that fails, since no caller has it yet."""
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
    """Return the first line of an error of PostgreSQL or its driver, without the position in the statement."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else repr(error)
