"""The stored form of records of runs, which earlier and later versions of Leyden share.

`stored_run_records.json` is what version 7 of the SQL tables, and version 1 of Redis, held after `write`.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from psycopg.sql import SQL, Identifier

from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.store.base import LightningStore
from leyden.core.store.common.run_record_rows import RunRow, StepRow, VersionRow
from leyden.core.store.memory import MemoryStore
from leyden.core.store.open import open_store
from leyden.core.store.redis.connection import address_of, connected
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer

STORED: Mapping[str, Any] = json.loads(Path(__file__).with_name("stored_run_records.json").read_text())
MOST = (1 << 53) - 1
COLUMNS = {
    "runs": [*RunRow.__struct_fields__],
    "step_metrics": [*StepRow.__struct_fields__],
    "policy_versions": [*VersionRow.__struct_fields__],
}


def clock() -> float:
    """A time for all rows."""
    return 1000.5


async def write(store: LightningStore) -> None:
    """Store records of all three kinds, with values that are unusual but allowed."""
    odd: dict[str, Any] = {"rate": math.nan, "": None, "größe": [1, -(1 << 63), (1 << 64) - 1], "raw": b"\x00\xff"}
    await store.add_run(Run(run_id="r", name="Lauf 🙂 'a' \"b\" \\", experiment="", config=odd))
    await store.add_run(Run(run_id="R.2-b_", name="", status="failed", start_time=-1.5, metadata={"λ": {}}))
    await store.add_run(Run(run_id="empty", name="x" * 300, start_time=2000, end_time=0.25))
    await store.add_metrics(
        "r",
        [
            StepMetrics(step=MOST, values={"loss": -0.0, "huge": 1.7e308, "tiny": 5e-324}),
            StepMetrics(step=0, time=7.0, notes={"alert/entropy": "es fällt\n🙂"}),
            StepMetrics(step=9),
        ],
    )
    await store.add_metrics("r", [StepMetrics(step=9, values={"late": 1})])
    await store.add_metrics("R.2-b_", [StepMetrics(step=10, values={"loss": 1.0})])
    await store.add_policy_versions(
        [
            PolicyVersion(run_id="r", version=MOST, parent=0, path="", metrics={"reward": 1}),
            PolicyVersion(run_id="R.2-b_", policy="p.1", version=10, metadata={"a": odd}, create_time=-3),
            PolicyVersion(run_id="r", version=0, note="ünï\u2028 'c'"),
        ]
    )
    await store.update_run("R.2-b_", status="stopped", experiment="später")
    await store.update_policy_version("r", 0, path="Qwen/Qwen3-0.6B", metadata=None)


async def read(store: LightningStore) -> list[str]:
    """All records as text, in which NaN equals itself and -0.0 differs from 0.0."""
    steps = [await store.query_metrics(run_id) for run_id in ("r", "R.2-b_", "empty")]
    pages = [await store.query_runs(), *steps, await store.query_policy_versions()]
    sorts = [await store.query_policy_versions(sort_by=name) for name in ("parent", "path", "note", "version")]
    return [repr(page.items) for page in [*pages, *sorts]]


async def go_on(store: LightningStore) -> None:
    """Change what is stored."""
    assert repr(await store.add_run(Run(run_id="r", name="another"))) == repr(await store.get_run_by_id("r"))
    assert await store.add_metrics("r", [StepMetrics(step=9, values={"late": 1}), StepMetrics(step=10)]) == 1
    await store.add_policy_versions([PolicyVersion(run_id="r", version=number) for number in (0, 7, 3)])
    await store.rewind_run("r", 7)
    assert [found.step for found in await store.query_metrics("r")] == [0]
    assert [found.version for found in await store.query_policy_versions(run_id="r")] == [0, 7, 3]
    assert [found.step for found in await store.query_metrics("R.2-b_")] == [10]


async def check_both_ways(
    uri_of: Callable[[str], str], load: Callable[[str], None], dump: Callable[[str], Any], stored: Any
) -> None:
    """Rows of an earlier version are read, and rows that are written now equal them."""
    written = await open_store(uri_of("written"), clock=clock)
    await write(written)
    assert dump("written") == stored
    memory = MemoryStore(clock)
    await write(memory)
    await (await open_store(uri_of("loaded"), clock=clock)).close()
    load("loaded")
    loaded = await open_store(uri_of("loaded"), clock=clock)
    assert await read(loaded) == await read(written) == await read(memory)
    for store in (loaded, written, memory):
        await go_on(store)
    assert await read(loaded) == await read(written) == await read(memory)
    for store in (loaded, written, memory):
        await store.close()


def as_text(value: Any) -> Any:
    """A value of a column as it is in the JSON file."""
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def as_value(text: Any) -> Any:
    """The value that `as_text` was given."""
    return text if text is None or isinstance(text, str | int | float) else bytes.fromhex(text["hex"])


async def test_rows_of_sqlite(tmp_path: Path) -> None:
    def dump(name: str) -> Any:
        with sqlite3.connect(tmp_path / name) as line:
            found = {
                table: line.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id").fetchall()
                for table, columns in COLUMNS.items()
            }
        line.close()
        return {table: [[as_text(value) for value in row] for row in rows] for table, rows in found.items()}

    def load(name: str) -> None:
        with sqlite3.connect(tmp_path / name) as line:
            for table, columns in COLUMNS.items():
                statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
                line.executemany(statement, [[as_value(text) for text in row] for row in STORED["tables"][table]])
        line.close()

    await check_both_ways(lambda name: f"sqlite:///{tmp_path}/{name}", load, dump, STORED["tables"])


async def test_rows_of_postgres(postgres: PostgresServer) -> None:
    databases = {name: postgres.create() for name in ("written", "loaded")}

    def dump(name: str) -> Any:
        with postgres.connect(databases[name]) as line:
            found = {
                table: line.execute(
                    SQL("SELECT {} FROM {} ORDER BY id").format(
                        SQL(", ").join(map(Identifier, columns)), Identifier(table)
                    )
                ).fetchall()
                for table, columns in COLUMNS.items()
            }
        return {table: [[as_text(value) for value in row] for row in rows] for table, rows in found.items()}

    def load(name: str) -> None:
        with postgres.connect(databases[name]) as line:
            for table, columns in COLUMNS.items():
                statement = SQL("INSERT INTO {} ({}) VALUES ({})").format(
                    Identifier(table),
                    SQL(", ").join(map(Identifier, columns)),
                    SQL(", ").join(SQL("%s") for _ in columns),
                )
                for row in STORED["tables"][table]:
                    line.execute(statement, [as_value(text) for text in row])

    await check_both_ways(lambda name: postgres.uri_of(databases[name]), load, dump, STORED["tables"])


async def test_keys_of_redis(redis: RedisServer) -> None:
    namespaces = {name: uuid4().hex for name in ("written", "loaded")}
    link = connected(address_of(redis.uri()))
    readers = {b"string": ("GET",), b"hash": ("HGETALL",), b"zset": ("ZRANGE", "0", "-1", "WITHSCORES")}

    def dump(name: str) -> Any:
        prefix, found = f"leyden:{namespaces[name]}:", dict[str, Any]()
        for key in link.call("KEYS", f"{prefix}*"):
            command, *rest = readers[link.call("TYPE", key)]
            value: Any = link.call(command, key, *rest)
            short = key.decode().removeprefix(prefix)
            if short.startswith("run:"):
                fields = dict(zip(value[::2], value[1::2], strict=True))
                assert fields.keys() == {b"v", b"row"}
                found[short] = ["HSET", ["v", "row"], [{"hex": b"1".hex()}, as_text(fields[b"row"])]]
            elif command == "ZRANGE":
                found[short] = [
                    "ZADD",
                    [score.decode() for score in value[1::2]],
                    [as_text(name) for name in value[::2]],
                ]
            elif short == "schema":  # an older store is upgraded when it is opened
                found[short] = STORED["redis"][short]
                assert int(value) >= int(bytes.fromhex(STORED["redis"][short][2][0]["hex"]))
            elif not short.startswith("last:"):
                found[short] = ["SET", [""], [as_text(value)]]
        return dict(sorted(found.items()))

    def load(name: str) -> None:
        for key, (command, firsts, seconds) in STORED["redis"].items():
            for first, second in zip(firsts, seconds, strict=True):
                link.call(command, f"leyden:{namespaces[name]}:{key}", *([first] if first else []), as_value(second))

    await check_both_ways(lambda name: redis.uri(namespaces[name]), load, dump, STORED["redis"])
    link.drop()
