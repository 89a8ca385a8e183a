"""What PostgreSQL reads for a statement, whose plan it made while the tables were small and keeps."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import psycopg
import pytest

from leyden.core.data.rollout import Attempt, EnqueueRollout
from leyden.core.store.postgres import PostgresStore
from leyden.core.store.postgres_line import Line
from leyden.core.testing.postgres_server import PostgresServer

_ADD_ONE = (
    "SELECT leyden_add_span(extract(epoch FROM now())::float8, %s, %s, 't', 's', 'p', 'search', 1.0, 2.0, 'b'::bytea)"
)
_ADD = (
    "SELECT leyden_add_spans(extract(epoch FROM now())::float8, %s, %s, %s::int[], %s::int[], %s, %s, %s, %s,"
    " %s::float8[], %s::float8[], %s::bytea[])"
)
_READ = (
    "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_user_tables WHERE relname IN ('rollouts', 'attempts')"
)


@pytest.fixture
def line(postgres: PostgresServer, shared_database: str) -> Generator["psycopg.Connection[Any]"]:
    """A connection with the settings of an event loop's own."""
    postgres.empty(shared_database)
    connection = psycopg.connect(postgres.uri_of(shared_database), autocommit=True)
    connection.prepare_threshold = 0
    yield connection
    connection.close()


def add(line: "psycopg.Connection[Any]", attempts: Sequence[Attempt]) -> None:
    """Store a span of each."""
    count = len(attempts)
    ids = [attempt.rollout_id for attempt in attempts], [attempt.attempt_id for attempt in attempts]
    which, ranks = list(range(1, count + 1)), [1] * count
    texts = [["t"] * count, [f"s{n}" for n in range(count)], ["p"] * count, ["search"] * count]
    found = line.execute(_ADD, [*ids, which, ranks, *texts, [1.0] * count, [2.0] * count, [b"b"] * count]).fetchone()
    assert found is not None and found[0] is not None


def add_one_by_one(line: "psycopg.Connection[Any]", attempts: Sequence[Attempt]) -> None:
    """The same, a statement each."""
    for attempt in attempts:
        found = line.execute(_ADD_ONE, [attempt.rollout_id, attempt.attempt_id]).fetchone()
        assert found is not None and found[0] is not None


def rows_read(line: "psycopg.Connection[Any]") -> int:
    """Of rollouts and attempts, by this connection."""
    (count,) = line.execute(_READ).fetchone() or (None,)
    assert count is not None
    return int(count)


async def claimed(store: PostgresStore, count: int) -> list[Attempt]:
    await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(count)])
    return [rollout.attempt for rollout in await store.dequeue_many_rollouts(limit=count)]


@pytest.mark.parametrize("how", [add, add_one_by_one])
@pytest.mark.parametrize("analyzed", [None, 0, 1, 3, 8])
@pytest.mark.parametrize("words", ["ANALYZE", "VACUUM ANALYZE"])
async def test_spans_that_begin_attempts_read_of_no_others(
    postgres: PostgresServer,
    shared_database: str,
    line: "psycopg.Connection[Any]",
    how: Callable[["psycopg.Connection[Any]", Sequence[Attempt]], None],
    analyzed: int | None,
    words: str,
) -> None:
    """Whenever the server looked at the tables: it makes its plans by what it saw, and does so when it likes."""
    store = await PostgresStore.open(postgres.uri_of(shared_database))
    Line(line)  # sets it up
    line.pgconn.nonblocking = 0
    for number in range(9):  # after five, a plan is kept
        if number == analyzed:
            line.execute(words.encode())
        how(line, await claimed(store, 3))
    await claimed(store, 400)
    attempts = await claimed(store, 3)
    with line.transaction():
        before = rows_read(line)
        how(line, attempts)
        assert 3 <= rows_read(line) - before < 30
    await store.close()
