"""Stores that another version of Leyden has written: an older one is brought up to date, a newer one refused."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, create_engine, text

from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.store.sql import migrations, schema
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.store_contract.shared import span_of

FIRST = Path(__file__).with_name("first_store.sql")


def older_file(folder: Path) -> Path:
    """A SQLite store of version 1."""
    path = folder / "store.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(FIRST.read_text())
    connection.close()
    return path


def older_database(server: PostgresServer) -> str:
    """A PostgreSQL store of version 1, which holds the same rows."""
    uri = server.uri_of(server.create())
    engine = create_engine(uri.replace("postgresql:", "postgresql+psycopg:"))
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    rows = [line for line in FIRST.read_text().splitlines() if line.startswith("INSERT")]
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "1")
        assert migrations.version(connection) == 1
        for row in rows:
            row = row.replace("'prompts',1,1,", "'prompts',1,true,")
            connection.execute(text(row.replace("X'", r"'\x").replace(":", r"\:")))
        for table in ("rollouts", "attempts", "spans", "resources", "workers"):
            connection.execute(text(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), 10)"))
        connection.execute(text("SELECT setval(pg_get_serial_sequence('queue', 'position'), 10)"))
    engine.dispose()
    return uri


async def check_upgraded(store: LightningStore) -> None:
    """Everything is there, goes on as before, and the store can do what is new."""
    (attempt,) = await store.query_attempts("ro-1")
    assert attempt.status == "running"
    assert [span.span_id for span in await store.query_spans("ro-1")] == ["a".zfill(16), "b".zfill(16)]
    assert await store.add_span(span_of(attempt, "a")) is None
    stored = await store.add_span(span_of(attempt, "c"))
    assert stored is not None and stored.sequence_id == 3
    claim = await store.dequeue_rollout("w")
    assert claim is not None and (claim.rollout_id, claim.input) == ("waiting", {"question": 2})
    assert (await store.get_latest_resources() or claim).resources_id == "prompts"
    await store.add_run(Run(run_id="r", name="r"))
    assert await store.add_metrics("r", [StepMetrics(step=1, values={"loss": 1.0})]) == 1
    (version,) = await store.add_policy_versions([PolicyVersion(run_id="r", version=0)])
    assert (await store.query_policy_versions()).items == [version]


async def test_an_older_file_is_brought_up_to_date_by_one_of_many(tmp_path: Path) -> None:
    path = older_file(tmp_path)
    stores = await asyncio.gather(*(open_store(f"sqlite:///{path}") for _ in range(4)))
    await check_upgraded(stores[0])
    assert all([(await store.statistics())["total_spans"] == 3 for store in stores])
    for store in stores:
        await store.close()
    assert user_version(path) == schema.VERSION


async def test_an_older_file_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    older, newer = older_file(tmp_path), tmp_path / "new.db"
    for path in (older, newer):
        await (await open_store(f"sqlite:///{path}")).close()
    assert tables(older) == tables(newer)


async def test_a_file_that_cannot_be_brought_up_to_date_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = older_file(tmp_path)
    before = tables(path)

    create = schema.metadata.create_all

    def half(connection: Connection) -> None:
        create(connection)
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(schema.metadata, "create_all", half)
        with pytest.raises(UsageError, match="disk I/O error"):
            await open_store(f"sqlite:///{path}")
    assert (user_version(path), tables(path)) == (1, before)
    store = await open_store(f"sqlite:///{path}")
    await check_upgraded(store)
    await store.close()


async def test_an_older_database_is_brought_up_to_date_by_one_of_many(postgres: PostgresServer) -> None:
    uri = older_database(postgres)
    stores = await asyncio.gather(*(open_store(uri) for _ in range(4)))
    await check_upgraded(stores[0])
    assert all([(await store.statistics())["total_spans"] == 3 for store in stores])
    for store in stores:
        await store.close()


@pytest.mark.parametrize("version", ["1", "2", "3", "4", "5", "6"])
async def test_an_older_database_has_the_functions_of_a_new_one(postgres: PostgresServer, version: str) -> None:
    older, newer = postgres.create(), postgres.create()
    engine = create_engine(postgres.uri_of(older).replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        migrations.upgrade(connection, version)
    engine.dispose()
    for database in (older, newer):
        await (await open_store(postgres.uri_of(database))).close()
    assert functions(postgres, older) == functions(postgres, newer)


def functions(postgres: PostgresServer, database: str) -> list[tuple[str, str]]:
    with postgres.connect(database) as connection:
        found = connection.execute("SELECT proname, prosrc FROM pg_proc WHERE proname LIKE 'leyden%' ORDER BY proname")
        rows: list[tuple[str, str]] = found.fetchall()
    assert [name for name, _ in rows] == ["leyden_add_span", "leyden_add_spans"]
    return rows


async def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await (await open_store(f"sqlite:///{path}")).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={schema.VERSION + 1}")
    connection.close()
    await refused(f"sqlite:///{path}")
    assert user_version(path) == schema.VERSION + 1


async def test_a_newer_database_is_refused(postgres: PostgresServer) -> None:
    database = postgres.create()
    await (await open_store(postgres.uri_of(database))).close()
    with postgres.connect(database) as connection:
        connection.execute("UPDATE leyden_version SET version_num = '99'")
    await refused(postgres.uri_of(database))


@pytest.mark.parametrize("command", ["export", "store"])
def test_a_command_says_so_in_one_line(tmp_path: Path, command: str) -> None:
    path = tmp_path / "store.db"
    asyncio.run(make(f"sqlite:///{path}"))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    uri = f"sqlite:///{path}"
    arguments = {"export": ["export", uri, "--to", str(tmp_path / "out")], "store": ["store", "--uri", uri]}[command]
    done = subprocess.run(
        [sys.executable, "-m", "leyden.core.cli", *arguments],
        env={**os.environ, "LEYDEN_STORE_TOKEN": "a-token"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"leyden: the store {path} was written by a newer version of Leyden; update Leyden to open it"
    assert (done.returncode, done.stderr.strip()) == (2, said)


async def make(uri: str) -> None:
    await (await open_store(uri)).close()


async def refused(uri: str) -> None:
    with pytest.raises(
        UsageError, match="was written by a newer version of Leyden; update Leyden to open it"
    ) as caught:
        await open_store(uri)
    assert "\n" not in str(caught.value)


def user_version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA user_version").fetchone()[0]
    finally:
        connection.close()


def tables(path: Path) -> set[object]:
    """What the file's columns and indexes are, in whichever order they came."""
    connection = sqlite3.connect(path)
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        indexes = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        made: set[object] = {" ".join(sql.split()) for (sql,) in indexes}
        for (name,) in names:
            columns = connection.execute(f"SELECT name, type, \"notnull\", pk FROM pragma_table_info('{name}')")
            made |= {(name, *column) for column in columns}
        return made
    finally:
        connection.close()
