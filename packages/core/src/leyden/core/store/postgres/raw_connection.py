"""`SpanConnection`: a connection on which an event loop itself sends spans to the server, without a switch of threads.

It runs one statement at a time, which is a transaction by itself: a function from the migrations, with parameters in
PostgreSQL's binary format. See `spans` for its callers, and for spans that were not stored.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGresult

from leyden.core.store.common.rows import AttemptKey, SpanRow

LOCK_SECONDS = 0.1
"""Longest wait for another transaction's lock; spans behind it wait too, until a thread takes over."""
_BOOL, _BYTEA, _INT4, _TEXT, _FLOAT8 = 16, 17, 23, 25, 701
_BYTEAS, _INT4S, _TEXTS, _FLOAT8S = 1001, 1007, 1009, 1022
_ONE = _FLOAT8, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _FLOAT8, _FLOAT8, _BYTEA
_SEVERAL = _FLOAT8, _TEXTS, _TEXTS, _INT4S, _INT4S, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _FLOAT8S, _FLOAT8S, _BYTEAS
"""Types of the functions' parameters, as PostgreSQL's type numbers."""
_FUNCTIONS = {b"leyden_add_span": _ONE, b"leyden_add_spans": _SEVERAL}
_BINARY = {name: [Format.BINARY] * len(types) for name, types in _FUNCTIONS.items()}
_double, _length, _number = struct.Struct("!d").pack, struct.Struct("!i").pack, struct.Struct("!q")
_DOUBLE, _INT = struct.Struct("!id").pack, struct.Struct("!ii").pack
_NULL = _length(-1)
_ARRAY = struct.Struct("!iiIii")
"""Header of an array: dimensions, whether it may contain NULL, element type, number of elements, first index."""
_ELEMENT = struct.Struct("!iq")
"""An element of an array of numbers: its length, and its value."""


class SpanNumbers(Enum):
    """Result for spans whose numbers were not received."""

    NOT_STORED = "not stored"
    IN_DOUBT = "in doubt"


Answer: TypeAlias = Sequence[int] | SpanNumbers


class SpanConnection:
    """A connection of one event loop. Any thread may create it; the loop's own thread must attach it."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        """Prepare the statements; raises psycopg.Error."""
        # A plan is kept for the connection's life, so it must not scan a table that is still small.
        words = f"SET lock_timeout = {round(1000 * LOCK_SECONDS)}; SET enable_seqscan = off"
        connection.execute(words.encode(), prepare=False)
        self._connection, self._driver = connection, connection.pgconn
        for name, types in _FUNCTIONS.items():
            wanted = b", ".join(b"$%d" % (index + 1) for index in range(len(types)))
            prepared = self._driver.prepare(name, b"SELECT %s(%s)" % (name, wanted), types)
            if prepared.status != ExecStatus.COMMAND_OK:
                raise psycopg.OperationalError(prepared.get_error_message())
        self._driver.nonblocking = 1
        self._socket = self._driver.socket
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_answer: Callable[[Answer], None] | None = None
        self._ranks: list[tuple[int, int]] = []
        """For several spans in progress: the second result of `_spans_parameters`."""
        self._writing = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the running `loop` read from the connection; raises NotImplementedError where it cannot."""
        loop.add_reader(self._socket, self._read)
        self._loop = loop

    @property
    def is_open(self) -> bool:
        """Whether spans can be sent."""
        return self._loop is not None and not self._connection.closed

    @property
    def is_busy(self) -> bool:
        """Whether a statement is in progress."""
        return self._on_answer is not None

    def send(self, rows: Sequence[SpanRow], now: float, on_answer: Callable[[Answer], None]) -> None:
        """Store spans with the time `now`; `on_answer` is called later with their numbers, or with an `SpanNumbers`.

        Raises UnicodeEncodeError for text that cannot be sent; then nothing was sent.
        """
        if len(rows) == 1:
            self._ranks = []
            name, parameters = b"leyden_add_span", _span_parameters(rows[0], now)
        else:
            name = b"leyden_add_spans"
            parameters, self._ranks = _spans_parameters(rows, now)
        self._on_answer = on_answer
        try:
            self._driver.send_query_prepared(name, parameters, _BINARY[name], Format.BINARY)
            self._flush()
        except psycopg.OperationalError:
            assert self._loop is not None, "only what is attached is sent on"
            self._loop.call_soon(self.close)

    def close(self) -> None:
        """Close the connection; the waiting callback gets `IN_DOUBT`. Called on the event loop's own thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._loop = None
        self._connection.close()
        self._report(SpanNumbers.IN_DOUBT)

    def _flush(self) -> None:
        """Send buffered data; the rest is sent when the socket is writable."""
        assert self._loop is not None, "only what is attached is sent on"
        left = self._driver.flush() == 1
        if left and not self._writing:
            self._loop.add_writer(self._socket, self._write)
        elif self._writing and not left:
            self._loop.remove_writer(self._socket)
        self._writing = left

    def _write(self) -> None:
        try:
            self._flush()
        except psycopg.OperationalError:
            self.close()

    def _read(self) -> None:
        try:
            self._driver.consume_input()
            if self._on_answer is None or self._driver.is_busy():
                return
            results: list[PGresult] = []
            while (result := self._driver.get_result()) is not None:
                results.append(result)
        except psycopg.OperationalError:
            self.close()
            return
        # A statement that fails in its commit has returned its numbers before, so all results are checked.
        if not results or self._driver.status != ConnStatus.OK:
            self.close()
        elif any(result.status != ExecStatus.TUPLES_OK for result in results):
            self._report(SpanNumbers.NOT_STORED)
        else:
            self._report(self._numbers(results[0].get_value(0, 0)))

    def _numbers(self, value: bytes | None) -> Answer:
        if value is None:
            return SpanNumbers.NOT_STORED
        if not self._ranks:
            return _number.unpack(value)
        highest = [number for _, number in _ELEMENT.iter_unpack(value[_ARRAY.size :])]
        return [highest[index] + rank for index, rank in self._ranks]

    def _report(self, answer: Answer) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(answer)


def _span_parameters(row: SpanRow, now: float) -> list[bytes | None]:
    parent, ended = row.parent_id, row.end_time
    return [
        _double(now),
        row.rollout_id.encode(),
        row.attempt_id.encode(),
        row.trace_id.encode(),
        row.span_id.encode(),
        None if parent is None else parent.encode(),
        row.name.encode(),
        _double(row.start_time),
        None if ended is None else _double(ended),
        row.body,
    ]


def _spans_parameters(rows: Sequence[SpanRow], now: float) -> tuple[list[bytes | None], list[tuple[int, int]]]:
    """Return the parameters, and for each span the index of its attempt and its rank among its rollout's spans.

    Indexes count from 0, and ranks from 1.
    """
    indexes: dict[AttemptKey, int] = {}
    seen = Counter[str]()
    ranks: list[tuple[int, int]] = []
    for row in rows:
        seen[row.rollout_id] += 1
        ranks.append((indexes.setdefault((row.rollout_id, row.attempt_id), len(indexes)), seen[row.rollout_id]))
    parameters: list[bytes | None] = [
        _double(now),
        _texts([rollout_id for rollout_id, _ in indexes]),
        _texts([attempt_id for _, attempt_id in indexes]),
        _array(_INT4, len(rows), [_INT(4, index + 1) for index, _ in ranks]),
        _array(_INT4, len(rows), [_INT(4, rank) for _, rank in ranks]),
        _texts([row.trace_id for row in rows]),
        _texts([row.span_id for row in rows]),
        _texts([row.parent_id for row in rows]),
        _texts([row.name for row in rows]),
        _array(_FLOAT8, len(rows), [_DOUBLE(8, row.start_time) for row in rows]),
        _array(_FLOAT8, len(rows), [_NULL if row.end_time is None else _DOUBLE(8, row.end_time) for row in rows]),
        _array(_BYTEA, len(rows), [part for row in rows for part in (_length(len(row.body)), row.body)]),
    ]
    return parameters, ranks


def _texts(texts: Sequence[str | None]) -> bytes:
    parts: list[bytes] = []
    for text in texts:
        if text is None:
            parts.append(_NULL)
        else:
            encoded = text.encode()
            parts += (_length(len(encoded)), encoded)
    return _array(_TEXT, len(texts), parts)


def _array(kind: int, count: int, parts: Sequence[bytes]) -> bytes:
    """Return an array of encoded elements; the flag that NULL may occur is harmless where none does."""
    return b"".join((_ARRAY.pack(1, 1, kind, count, 1), *parts))
