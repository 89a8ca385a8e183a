"""The least that writes the same rows: each engine's own driver, the same tables, indexes and commits, no framework.

A floor begins where a store does, with Python objects: it packs the same bytes, and writes them. It gives no answer
about duplicates, keeps no heartbeat, and moves no state.
"""

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, LiteralString, TypeAlias

import msgspec
import psycopg
import redis

from leyden.core.data.span import Span

_NAMES: LiteralString = (
    "rollout_id, attempt_id, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, body"
)
_TYPES = ("text", "text", "int8", "text", "text", "text", "text", "float8", "float8", "bytea")
"""Of PostgreSQL, for the same columns."""
_pack = msgspec.msgpack.encode

Row: TypeAlias = tuple[Any, ...]


class Floor(ABC):
    """A writer with a connection of its own. Use it from one thread at a time."""

    @abstractmethod
    def __init__(self, uri: str) -> None: ...

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Write rows in one commit."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""


def pack(span: Span, number: int) -> Row:
    """Return a span's row, with its place in the order of its rollout."""
    body = _pack([span.status, span.attributes, span.events, span.links, span.resource, None, False])
    ids = (span.rollout_id, span.attempt_id, number, span.trace_id, span.span_id, span.parent_id)
    return (*ids, span.name, span.start_time, span.end_time, body)


def redis_of(uri: str) -> Any:
    """Connect to the Redis of a store, as redis-py does."""
    path, _, _ = uri.removeprefix("redis+unix://").partition("?")
    return redis.Redis(unix_socket_path=path)


class Dicts(Floor):
    """Python's own."""

    _lock = threading.Lock()

    def __init__(self, uri: str) -> None:
        self._spans: dict[str, list[Row]] = {}
        self._keys: set[tuple[str, str, str]] = set()

    def write(self, rows: Sequence[Row]) -> None:
        """Append."""
        with self._lock:
            for row in rows:
                self._spans.setdefault(row[0], []).append(row)
                self._keys.add((row[0], row[1], row[4]))

    def close(self) -> None:
        """Forget."""
        self._spans.clear()


class SqliteMany(Floor):
    """`executemany` in WAL mode; writers take turns, which costs less than SQLite's own waiting."""

    _turn = threading.Lock()

    def __init__(self, uri: str) -> None:
        self._connection = sqlite3.connect(
            uri.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute("PRAGMA wal_autocheckpoint=4096")

    def write(self, rows: Sequence[Row]) -> None:
        """One transaction."""
        with self._turn:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(f"INSERT INTO spans ({_NAMES}) VALUES ({', '.join('?' * 10)})", rows)
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close."""
        self._connection.close()


class PostgresInsert(Floor):
    """Prepared `INSERT`s: one by itself is one round trip, several travel together in pipeline mode."""

    _statement: LiteralString = f"INSERT INTO spans ({_NAMES}) VALUES (%b, %b, %b, %b, %b, %b, %b, %b, %b, %b)"

    def __init__(self, uri: str) -> None:
        self._connection = psycopg.connect(uri, autocommit=True)

    def write(self, rows: Sequence[Row]) -> None:
        """One transaction."""
        if len(rows) == 1:
            self._connection.execute(self._statement, rows[0], prepare=True)
            return
        with self._connection.pipeline(), self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for row in rows:
                cursor.execute(self._statement, row, prepare=True)
            cursor.execute("COMMIT")

    def close(self) -> None:
        """Close."""
        self._connection.close()


class PostgresCopy(PostgresInsert):
    """Binary `COPY`, which is a transaction by itself."""

    def write(self, rows: Sequence[Row]) -> None:
        """One transaction."""
        statement: LiteralString = f"COPY spans ({_NAMES}) FROM STDIN (FORMAT BINARY)"
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(_TYPES)
            for row in rows:
                copy.write_row(row)


class RedisStreams(Floor):
    """`XADD` to a stream of each rollout's, and `SADD` of the span's id to the set that knows duplicates."""

    def __init__(self, uri: str) -> None:
        self._connection: Any = redis_of(uri)

    def write(self, rows: Sequence[Row]) -> None:
        """One `MULTI`, in one round trip."""
        pipeline = self._connection.pipeline(transaction=True)
        for row in rows:
            self._put(pipeline, row[0], _pack(row[1:]))
            pipeline.sadd(f"floor:ids:{row[0]}", f"{row[1]}:{row[4]}")
        pipeline.execute()

    def _put(self, pipeline: Any, rollout_id: str, packed: bytes) -> None:
        pipeline.xadd(f"floor:stream:{rollout_id}", {"span": packed})

    def close(self) -> None:
        """Close."""
        self._connection.close()


class RedisLists(RedisStreams):
    """`RPUSH` to a list of each rollout's instead of a stream, as the store has it."""

    def _put(self, pipeline: Any, rollout_id: str, packed: bytes) -> None:
        pipeline.rpush(f"floor:list:{rollout_id}", packed)


FLOORS: Mapping[str, Mapping[str, Callable[[str], Floor]]] = {
    "memory": {"dicts": Dicts},
    "sqlite": {"executemany": SqliteMany},
    "postgresql": {"insert": PostgresInsert, "copy": PostgresCopy},
    "redis": {"xadd": RedisStreams, "rpush": RedisLists},
    "http": {"executemany": SqliteMany},
}
"""The floors of each backend; over HTTP, that of the store behind the server."""
FLOOR_BACKENDS = {"http": "sqlite"}
"""Backends whose floor is another's."""
