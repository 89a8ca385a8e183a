"""Stores of the version before rollouts had queues."""

import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from psycopg.sql import SQL, Identifier, Placeholder
from sqlalchemy import create_engine, text

from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.store.sql import migrations, schema
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import span_of, taken

RETRY = RolloutConfig(max_attempts=2, retry_condition=("failed",))
BEFORE = "8"
"""Version of the schema before rollouts had queues."""
OLDER_QUEUE = """
CREATE TABLE older (
    position INTEGER NOT NULL, rollout_id TEXT NOT NULL, PRIMARY KEY (position), UNIQUE (rollout_id)
)
"""


async def fill(uri: str) -> None:
    """Make a running attempt with a span, a finished one, one that is retried, and two that wait."""
    store = await open_store(uri)
    requests = [EnqueueRollout(input=n, rollout_id=f"r{n}", config=RETRY) for n in range(5)]
    await store.enqueue_many_rollouts(requests)
    for claim in await store.dequeue_many_rollouts(limit=3, worker_id="w"):
        await store.add_span(span_of(claim.attempt))
    await store.update_attempt("r1", "latest", status="succeeded")
    await store.update_attempt("r2", "latest", status="failed")
    await store.close()


async def older_file(folder: Path) -> str:
    """Return the URI of a SQLite store of the version before."""
    path = folder / "store.db"
    await fill(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        for index in schema.ROLLOUT_INDEXES:
            connection.execute(f"DROP INDEX {index.name}")
        connection.execute("ALTER TABLE rollouts DROP COLUMN queue")
        connection.execute(OLDER_QUEUE)
        connection.execute("INSERT INTO older (position, rollout_id) SELECT position, rollout_id FROM queue")
        connection.execute("DROP TABLE queue")
        connection.execute("ALTER TABLE older RENAME TO queue")
        connection.execute(f"PRAGMA user_version={BEFORE}")
    connection.close()
    return f"sqlite:///{path}"


async def older_database(server: PostgresServer) -> str:
    """Return the URI of a PostgreSQL store of the version before, with rows that a newer one was filled with."""
    newer, older = server.create(), server.create()
    await fill(server.uri_of(newer))
    engine = create_engine(server.uri_of(older).replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        migrations.upgrade(connection, BEFORE)
        assert migrations.version(connection) == int(BEFORE)
    engine.dispose()
    with server.connect(newer) as source, server.connect(older) as target:
        for table in ("rollouts", "attempts", "spans", "workers", "queue"):
            rows = source.execute(SQL("SELECT * FROM {}").format(Identifier(table)))
            names = [column.name for column in rows.description or ()]
            kept = [name for name in names if name != "queue"]
            insert = SQL("INSERT INTO {} ({}) VALUES ({})").format(
                Identifier(table),
                SQL(", ").join(map(Identifier, kept)),
                SQL(", ").join(Placeholder(name) for name in kept),
            )
            for row in rows:
                target.execute(insert, dict(zip(names, row, strict=True)))
            key = "position" if table == "queue" else "id"
            target.execute("SELECT setval(pg_get_serial_sequence(%s, %s), 100)", [table, key])
    return server.uri_of(older)


@pytest.fixture(params=["sqlite", "postgresql"])
async def upgraded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[LightningStore]:
    """A store of the version before, which is opened by this version."""
    if request.param == "sqlite":
        uri = await older_file(tmp_path)
    else:
        uri = await older_database(request.getfixturevalue("postgres"))
    store = await open_store(uri)
    yield store
    await store.close()


@pytest.mark.integration
async def test_rollouts_of_the_version_before_are_in_the_usual_queue(upgraded: LightningStore) -> None:
    page = await upgraded.query_rollouts(queue="")
    assert [(rollout.rollout_id, rollout.queue) for rollout in page] == [(f"r{n}", "") for n in range(5)]
    assert [rollout.status for rollout in page] == ["running", "succeeded", "requeuing", "queuing", "queuing"]
    assert len(await upgraded.query_spans("r0")) == 1
    new = await upgraded.enqueue_rollout(5, rollout_id="r5", queue="run")
    assert [claim.rollout_id for claim in await upgraded.dequeue_many_rollouts(limit=9)] == ["r3", "r4", "r2"]
    assert taken(await upgraded.dequeue_rollout(queue="run")).rollout_id == new.rollout_id
    await upgraded.update_attempt("r0", "latest", status="failed")
    assert taken(await upgraded.dequeue_rollout()).rollout_id == "r0"


@pytest.mark.integration
async def test_a_database_of_the_version_before_has_the_indexes_of_a_new_one(postgres: PostgresServer) -> None:
    older, newer = await older_database(postgres), postgres.create()
    for uri in (older, postgres.uri_of(newer)):
        await (await open_store(uri)).close()
    assert indexes(older) == indexes(postgres.uri_of(newer))


def indexes(uri: str) -> set[str]:
    engine = create_engine(uri.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        found = connection.execute(text("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"))
        names = {name for (name,) in found}
    engine.dispose()
    return names
