"""Writes the fixtures of tests that read data of an earlier version: stores of three kinds, and a run that was killed.

`python scripts/write_older_data.py ../older/.venv/bin/python` runs the code of that environment, which belongs to a
checkout of the earlier version. This checkout provides the servers, the tasks and the fixtures' folders.
"""

import argparse
import gzip
import os
import signal
import sqlite3
import subprocess
import tarfile
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import redis

from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.servers.server_programs import postgres_folder

ROOT = Path(__file__).parents[1]
STORES = ROOT / "packages/core/tests/store/older"
RUN = ROOT / "tests/older_run"
EXAMPLE = "examples/calculator_langgraph"
NAME, STEPS, TAKEN = "killed", 4, 2
LORA = '{"rank": 1, "target_modules": ["q_proj", "v_proj"]}'
"""Adapters instead of all weights, so that a checkpoint has a few kilobytes."""
ENDED = "SELECT count(*) FROM rollouts WHERE rollout_id LIKE ? AND status = 'succeeded'"


def compressed(path: Path, data: bytes) -> None:
    """Write `data`; the same data gives the same file."""
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def fill(older: Path, uri: str, kind: str) -> None:
    """Fill the store, and keep what the earlier version reads from it."""
    command = [older, "-m", "older_data.fill", uri]
    done = subprocess.run(command, cwd=ROOT / "scripts", stdout=subprocess.PIPE, check=True)
    compressed(STORES / f"{kind}.json.gz", done.stdout)


def write_sqlite(older: Path) -> None:
    """Write the file itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        fill(older, f"sqlite:///{path}", "sqlite")
        compressed(STORES / "sqlite.db.gz", path.read_bytes())


def write_postgres(older: Path) -> None:
    """Write the SQL of `pg_dump`, without the commands that only psql knows."""
    with PostgresServer() as server:
        uri = server.uri_of(server.create())
        fill(older, uri, "postgresql")
        program = (postgres_folder() or Path()) / "pg_dump"
        options = ("--inserts", "--no-owner", "--no-comments")
        dumped = subprocess.run([program, *options, uri], stdout=subprocess.PIPE, check=True).stdout
    lines = [line for line in dumped.splitlines(keepends=True) if not line.startswith(b"\\")]
    compressed(STORES / "postgresql.sql.gz", b"".join(lines))


def write_redis(older: Path) -> None:
    """Write the commands that make every lasting key, as MessagePack; files of Redis need a Redis as new."""
    with RedisServer() as server:
        fill(older, server.uri(), "redis")
        path = server.uri().removeprefix("redis+unix://").partition("?")[0]
        client: Any = redis.Redis(unix_socket_path=path)
        commands = [_command(client, key) for key in sorted(client.keys("*")) if client.ttl(key) < 0]
        client.close()
    compressed(STORES / "redis.msgpack.gz", msgspec.msgpack.encode(commands))


def _command(client: Any, key: bytes) -> list[bytes]:
    kind = client.type(key).decode()
    if kind == "string":
        return [b"SET", key, client.get(key)]
    if kind == "hash":
        return [b"HSET", key, *(part for pair in client.hgetall(key).items() for part in pair)]
    if kind == "list":
        return [b"RPUSH", key, *client.lrange(key, 0, -1)]
    if kind == "set":
        return [b"SADD", key, *sorted(client.smembers(key))]
    assert kind == "zset", kind
    pairs = client.zrange(key, 0, -1, withscores=True)
    return [b"ZADD", key, *(part for member, score in pairs for part in (repr(score).encode(), member))]


def write_run(older: Path) -> None:
    """Train the example, kill the run in the middle of a step, and keep its folder and what it exports."""
    leyden = [older, "-m", "leyden.core.cli"]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        tasks = (ROOT / EXAMPLE / "train.jsonl").read_text().splitlines(keepends=True)
        (runs / "tasks.jsonl").write_text("".join(tasks[:12]))
        (runs / "val.jsonl").write_text("".join(tasks[12:16]))
        command = [
            *(*leyden, "train", f"{EXAMPLE}/agent.py:agent", "--runs", runs, "--name", NAME),
            *("--tasks", runs / "tasks.jsonl", "--val", runs / "val.jsonl", "--reward", f"{EXAMPLE}/reward.py:score"),
            *("--policy", f"{EXAMPLE}/policy", "--learning-rate", "6e-4", "--set", f"lora={LORA}"),
            *("--steps", str(STEPS), "--tasks-per-step", "2", "--group-size", "4"),
            *("--concurrency", "2", "--keep-checkpoints", "1"),
        ]
        _kill_in_step(command, runs / NAME / "store.db", quiet)
        exporting = [*leyden, "export", runs / NAME, "--format", "jsonl", "--to", runs / "rows"]
        subprocess.run(exporting, cwd=ROOT, env=quiet, check=True)
        for table in ("rollouts", "transitions"):
            compressed(RUN / f"{table}.jsonl.gz", (runs / "rows" / f"{table}.jsonl").read_bytes())
        with tarfile.open(RUN / f"{NAME}.tar.xz", "w:xz", preset=9) as archive:
            archive.add(runs / NAME, NAME)


def _kill_in_step(command: list[Any], store: Path, environment: dict[str, str]) -> None:
    """Kill the run when some rollouts of the step after `TAKEN` have ended, and others have not."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    ended = 0
    while not ended:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.02)
        if store.exists():
            reading = f"file:{store}?mode=ro"
            with suppress(sqlite3.OperationalError), closing(sqlite3.connect(reading, uri=True)) as connection:
                (ended,) = connection.execute(ENDED, [f"train-v{TAKEN}-%"]).fetchone()  # fails while tables are made
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(20)  # its workers notice, and end


WRITERS = {"sqlite": write_sqlite, "postgresql": write_postgres, "redis": write_redis, "run": write_run}


def main() -> None:
    """Read the options and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path, help="python of the earlier version's environment")
    parser.add_argument("--only", choices=WRITERS, action="append", help="write only this; may be repeated")
    arguments = parser.parse_args()
    for folder in (STORES, RUN):
        folder.mkdir(exist_ok=True)
    for name in arguments.only or WRITERS:
        WRITERS[name](arguments.python.absolute())


if __name__ == "__main__":
    main()
