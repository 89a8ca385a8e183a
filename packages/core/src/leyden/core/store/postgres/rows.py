"""`PostgresRows`: rows in PostgreSQL, within one transaction beside those of other processes.

A writer locks first: rollouts, in the order of their ids; then workers; or runs, in the order of their ids. All other
rows belong to one of these, and need no lock. Writes are sent in pipeline mode, so only reads cost a round trip. Lost
connections and retries are handled in `database`.
"""

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, astuple
from sqlalchemy import ClauseElement, Connection, Table

from leyden.core.store.common.rows import AttemptKey, Changes, RolloutRow, SpanKey, SpanRow, SpanTarget, WorkerRow
from leyden.core.store.postgres import statements as postgres
from leyden.core.store.sql import schema
from leyden.core.store.sql import statements as sql
from leyden.core.store.sql.rows import SqlRows, structs_of

R = TypeVar("R", bound=msgspec.Struct)

HELD_SECONDS = 0.25
"""Seconds for which a claim looks again when all queued rollouts are locked; a transaction takes milliseconds."""
_PAUSE = 0.001
_FEW = 8
"""Up to this many rows are inserted one by one in one round trip; more are sent by COPY, which costs two."""


class PostgresRows(SqlRows):
    """Rows in PostgreSQL, over a psycopg connection that is in autocommit mode outside of `begin` and `commit`."""

    _dialect = postgres.DIALECT
    _head_of_queue = postgres.HEAD_OF_QUEUE

    def __init__(self, connection: Connection, driver: Any, now: float, *, writes: bool) -> None:
        super().__init__(connection, driver, now)
        self._writes = writes
        if writes:
            self._record_by_key = postgres.RECORD_BY_KEY
        self._piped = ExitStack()
        self._due: Any = None
        """Pending result of the query for the next deadline."""
        self._targets: Any = None
        self._stored: Any = None
        self._claimed: dict[str, RolloutRow] = {}
        self._commit: Any = None
        self._known_due: float | None = None
        self._soonest: float | None = None
        """Earliest deadline that this transaction has set."""

    # --- The transaction

    def begin(self) -> None:
        """Begin; a reading transaction queries the next deadline in the same round trip."""
        if self._writes:
            self._pipe()
            self._driver.execute(postgres.BEGIN)
        else:
            text, _ = sql.compiled(sql.NEXT_DEADLINE, self._dialect)
            self._due = self._driver.execute(f"{postgres.BEGIN_TO_READ}; {text}", prepare=False)
            self._due.nextset()

    def commit(self, channel: str, payload: str | None) -> None:
        """Commit, and then notify the listeners of `channel` with `payload`, if there is one."""
        self._commit = self._driver.execute("COMMIT")
        if payload is not None:
            # Not within the transaction: transactions that notify would wait for each other's disk writes.
            self._run_compiled(postgres.NOTIFY, key=channel, payload=payload)
        self._piped.close()

    @property
    def committed(self) -> bool:
        """Whether the server has confirmed the commit."""
        return self._commit is not None and self._commit.statusmessage == "COMMIT"

    def roll_back(self) -> None:
        """Roll back, whatever has failed."""
        try:
            self._piped.close()
        finally:
            self._driver.execute("ROLLBACK")

    def _pipe(self) -> None:
        self._piped.enter_context(self._driver.pipeline())

    @contextmanager
    def _unpiped(self) -> Generator[None]:
        self._piped.close()
        yield
        self._pipe()

    # --- Statements

    def _run_compiled(self, statement: ClauseElement, **parameters: Any) -> Any:
        text, wanted = sql.compiled(statement, self._dialect)
        values = [parameters.get(name, fixed) for name, fixed in wanted]
        return self._driver.execute(text, values, binary=True)

    def _insert(self, table: Table, rows: Sequence[msgspec.Struct], **more: Any) -> None:
        if not rows:
            return
        is_numbered = self.given_positions is not None and table is not schema.spans
        ids = list(islice(self.given_positions or (), len(rows))) if is_numbered else []
        names = (*rows[0].__struct_fields__, *more, *(("id",) if is_numbered else ()))
        if len(rows) <= _FEW:
            statement = sql.insert_into(table, names)
            for index, row in enumerate(rows):
                self._run_compiled(statement, **asdict(row), **more, **dict(zip(("id",), ids[index:], strict=False)))
            return
        text, types = postgres.copy_into(table, names)
        with self._unpiped(), self._driver.cursor() as cursor, cursor.copy(text) as copy:
            copy.set_types(types)
            for index, row in enumerate(rows):
                copy.write_row((*astuple(row), *more.values(), *ids[index : index + 1]))

    # --- Rollouts

    def rollouts(self, rollout_ids: Sequence[str]) -> dict[str, RolloutRow]:
        """Select the rows; a writing transaction locks them."""
        claimed, self._claimed = self._claimed, {}
        if not self._writes or not rollout_ids:
            return super().rollouts(rollout_ids)
        if claimed.keys() >= set(rollout_ids):
            return claimed
        return {row.rollout_id: row for row in structs_of(RolloutRow, self._by_ids(postgres.ROLLOUTS, rollout_ids))}

    def _by_ids(self, pair: tuple[ClauseElement, ClauseElement], rollout_ids: Sequence[str]) -> Any:
        one, several = pair
        if len(rollout_ids) == 1:
            return self._run_compiled(one, key=rollout_ids[0])
        return self._run_compiled(several, keys=json.dumps(rollout_ids))

    def overdue(self) -> list[RolloutRow]:
        """Select and lock the overdue rows that no other transaction has locked.

        The others are handled by those transactions, or found by the next health check.
        """
        return self._compiled_rows(RolloutRow, postgres.OVERDUE, now=self.now)

    def expect_deadline(self) -> None:
        """Send the query for the next deadline."""
        if self._due is None:
            self._due = self._run_compiled(sql.NEXT_DEADLINE)

    def next_deadline(self) -> float | None:
        """Return the next deadline, perhaps from the query at the transaction's beginning, which is recent enough."""
        due, self._due = self._due, None
        if due is None:
            return super().next_deadline()
        (self._known_due,) = due.fetchone()
        return self._known_due

    def update_rollout(self, rollout_id: str, changes: Changes) -> None:
        """Update only the changed columns."""
        super().update_rollout(rollout_id, changes)
        if changes.get("deadline") is not None:
            soonest = self._soonest
            self._soonest = changes["deadline"] if soonest is None else min(changes["deadline"], soonest)

    def is_no_sooner(self) -> bool:
        """Whether callers that wait for the next deadline will look before any deadline set by this transaction."""
        return self._soonest is None or (self._known_due is not None and self._known_due <= self._soonest)

    def push(self, rows: Sequence[RolloutRow]) -> None:
        """Insert all with one statement."""
        if not rows:
            return
        queued = json.dumps([(row.rollout_id, row.queue) for row in rows])
        if self.given_positions is None:
            self._run_compiled(postgres.PUSH, keys=queued)
        else:
            positions = list(islice(self.given_positions, len(rows)))
            self._run_compiled(postgres.PUSH_NUMBERED, keys=queued, positions=json.dumps(positions))

    def head(self, queue: str, limit: int) -> list[str]:
        """Return the first queued ids; a writing transaction skips locked rollouts, and locks the rest.

        Where all are locked, it waits a little: some of them may not be claimed, and their transactions may have queued
        others.
        """
        if not self._writes:
            return super().head(queue, limit)
        rows = self._compiled_rows(RolloutRow, postgres.HEAD, key=queue, limit=limit)
        give_up = time.monotonic() + HELD_SECONDS
        while not rows and super().head(queue, 1) and time.monotonic() < give_up:
            time.sleep(_PAUSE)
            rows = self._compiled_rows(RolloutRow, postgres.HEAD, key=queue, limit=limit)
        self._claimed = {row.rollout_id: row for row in rows}
        return list(self._claimed)

    # --- Spans

    def expect_spans(self, keys: Sequence[SpanKey]) -> None:
        """Send the lock and the queries with which storing these spans begins, so that they cost one round trip."""
        attempts = list(dict.fromkeys((rollout_id, attempt_id) for rollout_id, attempt_id, _ in keys))
        self._by_ids(postgres.LOCK_ROLLOUTS, list({rollout_id for rollout_id, _ in attempts}))
        self._targets = self._by_keys(sql.TARGETS, attempts)
        self._stored = self._by_keys(sql.STORED_SPANS, _by_span(keys))

    def span_targets(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, SpanTarget]:
        """Return the results of the query in `expect_spans`."""
        return {(row[0], row[1]): SpanTarget(*row[2:]) for row in self._targets}

    def stored_spans(self, keys: Sequence[SpanKey]) -> set[SpanKey]:
        """Return the results of the query in `expect_spans`, which may have covered more spans than these."""
        return {(row[0], row[1], row[2]) for row in self._stored}

    def numbers(self, keys: Sequence[SpanKey]) -> dict[SpanKey, int]:
        """Return the numbers of those of these spans that are stored."""
        return {(row[0], row[1], row[2]): row[3] for row in self._by_keys(postgres.NUMBERS, _by_span(keys))}

    def span_counters(self, rollout_ids: Sequence[str]) -> dict[str, int]:
        """Lock the rollouts, then select their counters."""
        self._by_ids(postgres.LOCK_ROLLOUTS, rollout_ids)
        return super().span_counters(rollout_ids)

    def record_numbers(self, counters: Mapping[str, int]) -> None:
        """Update all in one round trip."""
        for rollout_id, number in counters.items():
            self._run_compiled(postgres.SET_COUNTER, key=rollout_id, number=number)

    def insert_spans(self, rows: Sequence[SpanRow]) -> None:
        """Insert all in one round trip, or two."""
        self._insert(schema.spans, rows)

    # --- Workers

    def worker(self, worker_id: str) -> WorkerRow | None:
        """Select the row; a writing transaction locks its id, whether the row exists or not."""
        if self._writes:
            self._run_compiled(postgres.LOCK_WORKER, key=worker_id)
        return super().worker(worker_id)

    def put_worker(self, row: WorkerRow) -> None:
        """Insert or update with one statement."""
        if self.given_positions is None:
            self._run_compiled(postgres.PUT_WORKER, **asdict(row))
        else:
            self._run_compiled(postgres.PUT_NUMBERED_WORKER, **asdict(row), id=next(self.given_positions))


def _by_span(keys: Sequence[SpanKey]) -> list[tuple[str, str, str]]:
    return [(rollout_id, span_id, attempt_id) for rollout_id, attempt_id, span_id in keys]
