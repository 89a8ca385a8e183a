"""What a store over 1, 2 and 4 shards takes, beside the same store without `shard://`, all in one run.

    python benchmarks/shards.py --json shards.json
    python benchmarks/shards.py --backends redis --spans 1000000 --shards 1,2,4

Every shard is a server or a file of its own on this machine. Measured are:

- write: spans a second of several processes, each of which stores light spans (a tool call), a hundred in a call, four
  calls at once. `x plain` is the rate by that of the store without `shard://`, which takes its turn beside them, and
  `cpu x plain` the same of the processor time of the writers for a span, which other load hardly changes.
- claim: rollouts a second that eight processes claim and end one by one, until none is left. `once` is whether every
  rollout was claimed, and by one process only.
- killed: two shards in Redis; one is killed while processes write, and started again a few seconds later. `lost` is the
  number of acknowledged spans that are not there afterwards, and `named` the number of errors that name the shard.

Shards share the machine's processors with the writers: where those are busy, more shards do not make it faster.
`busy` is the share of all processors that the writers alone have used.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stores.places import missing

from leyden.core.data.rollout import EnqueueRollout
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from leyden.core.testing.shard_lists import write_list

HERE = Path(__file__).parent
BACKENDS = ("sqlite", "redis", "postgresql")
PLAIN = 0
"""Number of shards that stands for the store without `shard://`."""
AWAY_SECONDS, BEFORE_SECONDS = 3.0, 1.0
Row = dict[str, Any]


@contextmanager
def started(backend: str, count: int, folder: Path) -> Generator[tuple[list[str], list[RedisServer]]]:
    """Start a server for each shard; yield their URIs, and the Redis servers."""
    with ExitStack() as stack:
        if backend == "sqlite":
            yield [f"sqlite:///{folder}/{number}.db" for number in range(count)], []
        elif backend == "redis":
            servers = [stack.enter_context(RedisServer()) for _ in range(count)]
            yield [server.uri() for server in servers], servers
        else:
            databases = [stack.enter_context(PostgresServer(durable=True)) for _ in range(count)]
            yield [server.uri_of(server.create()) for server in databases], []


@contextmanager
def placed(backend: str, shards: int) -> Generator[tuple[str, list[RedisServer]]]:
    """Yield the URI of an empty store over so many shards, or of a plain one, and the Redis servers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with started(backend, max(shards, 1), folder) as (uris, servers):
            named = {f"shard-{number}": uri for number, uri in enumerate(uris)}
            yield (uris[0] if shards == PLAIN else write_list(folder / "shards.yaml", named)), servers


@contextmanager
def running(processes: int, *arguments: str) -> Generator[list["subprocess.Popen[str]"]]:
    """Start processes of `stores.sharding`, and yield them when all are ready."""
    command = [sys.executable, "-m", "stores.sharding", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": HERE}
    found = [subprocess.Popen[str](command, **pipes) for _ in range(processes)]
    try:
        for process in found:
            assert process.stdout is not None, "it was asked for"
            if not process.stdout.readline():
                raise SystemExit("a process of the benchmark has failed")
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def begin(processes: "Sequence[subprocess.Popen[str]]") -> None:
    """Begin the measurement in all processes."""
    for process in processes:
        assert process.stdin is not None, "it was asked for"
        process.stdin.write("\n")
        process.stdin.flush()


def answers(processes: "Sequence[subprocess.Popen[str]]") -> list[Row]:
    """Return what the processes print at their end."""
    return [json.loads(process.communicate()[0]) for process in processes]


def write(backend: str, shards: int, spans: int, writers: int) -> Row:
    """Measure writers once."""
    with placed(backend, shards) as (uri, _), running(writers, "write", uri, str(spans // writers)) as processes:
        begin(processes)
        found = answers(processes)
    if any(each["errors"] for each in found):
        raise SystemExit(f"a writer has failed: {found[0]['errors'][:1]}")
    seconds = max(each["seconds"] for each in found)
    cpu = sum(each["cpu_seconds"] for each in found)
    return {
        "rate": sum(each["spans"] for each in found) / seconds,
        "seconds": seconds,
        "cpu_us": 1e6 * cpu / sum(each["spans"] for each in found),
        "busy": cpu / seconds / (os.cpu_count() or 1),
    }


def compare_writes(backend: str, counts: Sequence[int], spans: int, writers: int, rounds: int) -> list[Row]:
    """Measure each number of shards, and the plain store, in turn."""
    measured: dict[int, list[Row]] = {shards: [] for shards in (PLAIN, *counts)}
    for _ in range(rounds):
        for shards, rows in measured.items():
            rows.append(write(backend, shards, spans, writers))
            print(f"write {backend} {shards or 'plain'}: {rows[-1]['rate']:,.0f} spans a second", file=sys.stderr)
    return [
        {
            "backend": backend,
            "shards": shards,
            "spans": spans,
            "writers": writers,
            "x plain": by_plain(rows, measured[PLAIN], "rate"),
            "cpu x plain": by_plain(rows, measured[PLAIN], "cpu_us"),
            "spans_per_s": statistics.median(row["rate"] for row in rows),
            "busy": statistics.median(row["busy"] for row in rows),
        }
        for shards, rows in measured.items()
    ]


def by_plain(rows: Sequence[Row], plain: Sequence[Row], name: str) -> float:
    """Return the median of the figures of each round by those of the plain store in the same round."""
    return statistics.median(row[name] / other[name] for row, other in zip(rows, plain, strict=True))


async def enqueue(uri: str, rollouts: int) -> set[str]:
    """Queue so many rollouts, and return their ids."""
    store = await open_store(uri)
    queued = await store.enqueue_many_rollouts([EnqueueRollout(input=number) for number in range(rollouts)])
    await store.close()
    return {rollout.rollout_id for rollout in queued}


def claim(backend: str, shards: int, rollouts: int, processes: int) -> Row:
    """Measure claims once."""
    with placed(backend, shards) as (uri, _):
        queued = asyncio.run(enqueue(uri, rollouts))
        with running(processes, "claim", uri) as claiming:
            begin(claiming)
            found = answers(claiming)
    counted = Counter(name for each in found for name in each["claimed"])
    seconds = max(each["seconds"] for each in found)
    once = counted.keys() == queued and set(counted.values()) == {1}
    print(f"claim {backend} {shards or 'plain'}: {rollouts / seconds:,.0f} rollouts a second", file=sys.stderr)
    return {
        "backend": backend,
        "shards": shards,
        "rollouts": rollouts,
        "processes": processes,
        "once": once,
        "rollouts_per_s": rollouts / seconds,
        "cpu_us": 1e6 * sum(each["cpu_seconds"] for each in found) / rollouts,
        "fewest": min(len(each["claimed"]) for each in found),
        "most": max(len(each["claimed"]) for each in found),
    }


async def count_spans(uri: str) -> int:
    """Return the number of spans, once all shards can be reached."""
    store = await open_store(uri)
    found = await store.statistics()
    while any("problem" in shard for shard in found["shards"].values()):
        await asyncio.sleep(0.1)
        found = await store.statistics()
    await store.close()
    return found["total_spans"]


def kill(spans: int, writers: int) -> Row:
    """Kill one of two shards while processes write, and start it again."""
    with placed("redis", 2) as (uri, servers), running(writers, "write", uri, str(spans // writers)) as processes:
        begin(processes)
        time.sleep(BEFORE_SECONDS)
        servers[1].kill()
        time.sleep(AWAY_SECONDS)
        servers[1].start()
        found = answers(processes)
        there = asyncio.run(count_spans(uri))
    acknowledged = sum(each["spans"] for each in found)
    errors = [error for each in found for error in each["errors"]]
    return {
        "spans": spans,
        "acknowledged": acknowledged,
        "there": there,
        "lost": max(acknowledged - there, 0),
        "errors": len(errors),
        "named": sum("shard shard-1" in error for error in errors),
        "seconds": max(each["seconds"] for each in found),
        "away_seconds": AWAY_SECONDS,
    }


def number(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def show(found: Mapping[str, Any]) -> None:
    """Print all figures, and whether something was lost or was claimed twice."""
    for name in ("write", "claim", "killed"):
        for row in found[name]:
            print(
                name,
                json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}),
            )
    if any(row["lost"] for row in found["killed"]) or not all(row["once"] for row in found["claim"]):
        print("acknowledged spans were lost, or rollouts were not claimed once", file=sys.stderr)


def main() -> None:
    """Measure, and print tables of figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", default=",".join(BACKENDS), help="of " + ", ".join(BACKENDS))
    parser.add_argument("--shards", default="1,2,4", help="numbers of shards")
    parser.add_argument("--spans", type=number, default=100_000, help="spans that the writers store together")
    parser.add_argument("--writers", type=number, default=4, help="processes that write")
    parser.add_argument("--rollouts", type=number, default=8000, help="rollouts that are claimed")
    parser.add_argument("--claimers", type=number, default=8, help="processes that claim")
    parser.add_argument("--rounds", type=number, default=1, help="how often each rate of spans is measured")
    parser.add_argument("--measurements", default="write,claim,killed", help="of write, claim, killed")
    parser.add_argument("--json", type=Path, help="file for all figures")
    given = parser.parse_args()
    backends = given.backends.split(",")
    try:
        counts = [number(text) for text in given.shards.split(",")]
    except argparse.ArgumentTypeError as error:
        parser.error(f"--shards: {error}")
    if unknown := next((name for name in backends if name not in BACKENDS), None):
        parser.error(f"there is no {unknown} among the backends; use {', '.join(BACKENDS)}")
    left_out = {name: reason for name in backends if (reason := missing(name)) is not None}
    found: dict[str, Any] = {"missing": left_out, "processors": os.cpu_count(), "write": [], "claim": [], "killed": []}
    for backend in (name for name in backends if name not in left_out):
        if "write" in given.measurements:
            found["write"] += compare_writes(backend, counts, given.spans, given.writers, given.rounds)
        if "claim" in given.measurements:
            found["claim"] += [claim(backend, shards, given.rollouts, given.claimers) for shards in (PLAIN, *counts)]
    if "killed" in given.measurements and missing("redis") is None:
        found["killed"] = [kill(given.spans, given.writers)]
    show(found)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
