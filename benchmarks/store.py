"""What each store takes and gives, beside the raw floor of its engine and a peer's store, all in one run.

    python benchmarks/store.py --json store.json
    python benchmarks/store.py --rounds 5 --spans 4000 --query-rollouts 10000 --peer-python PEER/bin/python

Backends are memory, SQLite, PostgreSQL, Redis and HTTP, which is `leyden store` over SQLite in a process of its own.
PostgreSQL and Redis are servers that the benchmark starts, and that wait for the disk as they do by default; where
their program is missing they are left out, and it is said why. Measured are:

- ingest: spans a second from Python objects, until they are durable, at 1 and at 100 spans a commit, by 1 and by 8
  writers (tasks of one process), of light spans (a tool call, half a kilobyte as JSON) and of chat spans (1,000 prompt
  ids, 200 response ids with log-probabilities, messages: 11 kB). A floor packs the same spans and writes the same rows
  to the same tables and indexes in commits of the same size, through the engine's own driver, with a connection for
  each writer: `stores/floors.py`. `share` is the store's speed by that of the faster floor of the backend, packing
  included; `of rows` by that of the same floor with rows that were packed before. Over HTTP the floor is SQLite's.
  `cpu_us` is what a span costs the process that stores it, in microseconds of CPU time, the least of the rounds: other
  work hardly moves it, so it shows what a change of the store costs, where both versions run in turn.
- rollouts: from enqueue by claim and five spans to finish, a second.
- waking: from before the change until who waits has its answer, changed by the same process and by another. Who waits
  began 50 ms before: a store that looks again only now and then shows nearly all of that time.
- query: the spans of one attempt among those of many.
- room: bytes on disk a span (in memory: allocated); and of a conversation of 30 turns by those of its unique tokens
  (8 each) and messages, its calls stored one by one, as they are made, or all at once.
- steady: what the process of a server holds while it takes light spans of rollouts that end, at ten points.

With `--peer-python`, of an environment that holds agentlightning==0.3.0, the same chat spans go to its store in memory
and to its server, single and batched.

Every measurement is a fresh process; backends take turns, floors and stores within one process too, and a share is the
median of those of the rounds, so that what else the machine does slows both. Only shares and ratios count.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stores.ingest import SIDE
from stores.material import make_spans
from stores.places import BACKENDS, missing

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Span

HERE = Path(__file__).parent
INGEST, ONCE = "ingest", ("rollouts", "waking", "query", "room", "steady")
"""What is measured in every round, and what once."""
NOT_OF = {"room": ("http",), "steady": ("memory", "sqlite", "postgresql", "redis")}
"""What takes room behind a server is another backend's; what a server holds is the server's."""
PLACE = "backend", "kind", "per_commit", "writers"
PEER_SPANS = 160
LIMIT_SECONDS = 1800

Row = dict[str, Any]


class Failed(Exception):
    """A measurement that ended otherwise than with figures."""


def measure(what: str, backend: str, options: dict[str, int]) -> list[Row]:
    """Measure in a fresh process."""
    done = _run([sys.executable, "-m", "stores.worker", what, backend, json.dumps(options)], f"{what}, {backend}")
    return json.loads(done.splitlines()[-1])


def measure_peer(python: str, number: int) -> list[Row]:
    """Have the peer store the same chat spans."""
    attempt = Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0, status="running")
    spans = [as_peer(span) for span in make_spans("chat", [attempt] * PEER_SPANS, PEER_SPANS)]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "spans.json"
        file.write_text(json.dumps(spans))
        python = os.path.abspath(python)  # not resolved: a link says which environment
        done = _run([python, str(HERE / "stores/peer.py"), str(file)], "the peer")
    rows = [json.loads(line) for line in done.splitlines() if line.startswith('{"backend"')]
    return [{**row, "kind": "chat", "side": "peer", "round": number} for row in rows]


def as_peer(span: Span) -> Row:
    """Return what the peer makes its span of; it has no bytes, so ids and log-probabilities are lists."""
    unpack = {semconv.RESPONSE_LOGPROBS: unpack_log_probs}
    attributes = {
        name: list(unpack.get(name, unpack_ids)(value)) if isinstance(value, bytes) else value
        for name, value in span.attributes.items()
    }
    fields = ("trace_id", "span_id", "parent_id", "name", "start_time", "end_time")
    return {**{name: getattr(span, name) for name in fields}, "attributes": attributes}


def _run(command: list[str], what: str) -> str:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or the peer's import asks the network
    done = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    if done.returncode:
        raise Failed(f"{what}: {done.stderr[-3000:]}")
    return done.stdout


def compare(backends: list[str], options: argparse.Namespace) -> tuple[dict[str, list[Row]], list[str]]:
    """Measure everything; returns rows by measurement, and what failed."""
    sizes = {name: getattr(options, name) for name in ("spans", "rollouts", "wakes", "query_rollouts", "steady_spans")}
    found: dict[str, list[Row]] = {what: [] for what in options.measurements}
    failed: list[str] = []

    def keep(what: str, work: Callable[[], list[Row]]) -> None:
        try:
            found[what] += work()
        except (Failed, subprocess.TimeoutExpired) as error:
            failed.append(str(error))
            print(error, file=sys.stderr)

    for number in range(options.rounds if INGEST in found else 0):
        for backend in backends:
            keep(INGEST, lambda b=backend, n=number: measure(INGEST, b, {**sizes, "round": n}))
        if options.peer_python:
            keep(INGEST, lambda n=number: measure_peer(options.peer_python, n))
        print(f"round {number + 1} of {options.rounds} is done", file=sys.stderr)
    for what in (each for each in ONCE if each in found):
        for backend in backends:
            if backend not in NOT_OF.get(what, ()):
                keep(what, lambda w=what, b=backend: measure(w, b, sizes))
    return found, failed


def summarise(rounds: list[Row]) -> list[Row]:
    """Medians over the rounds, and shares of the faster floor in the same round."""
    rows: list[Row] = []
    for place in dict.fromkeys(map(_place, rounds)):
        mine = [row for row in rounds if _place(row) == place]
        sides = {side: [row for row in mine if row["side"] == side] for side in dict.fromkeys(r["side"] for r in mine)}
        speed = {side: statistics.median(row["spans_per_s"] for row in found) for side, found in sides.items()}
        if SIDE not in sides:
            continue
        floors = [side for side in sides if side not in (SIDE, "peer")]
        floor = max(floors, key=lambda side: speed[side])
        row = dict(zip(PLACE, place, strict=True)) | {"floor": floor, "floor_per_s": speed[floor]}
        row |= {"store_per_s": speed[SIDE], "share": _share(sides[SIDE], sides[floor], "spans_per_s")}
        row |= {"of_rows": _share(sides[SIDE], sides[floor], "rows_per_s")}
        row |= {"cpu_us": min(row["cpu_us"] for row in sides[SIDE])}
        if "peer" in sides:
            row |= {"peer_per_s": speed["peer"], "over_peer": _share(sides[SIDE], sides["peer"], "spans_per_s")}
        rows.append(row)
    return rows


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _share(ours: list[Row], theirs: list[Row], of: str) -> float:
    """Median over the rounds of what is ours by what is theirs in the same round."""
    beside = {row["round"]: row[of] for row in theirs}
    return statistics.median(row["spans_per_s"] / beside[row["round"]] for row in ours if row["round"] in beside)


def show(what: str, rows: list[Row]) -> None:
    """Print a table; columns are those that any row has."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    width = {title: max(len(title), *(len(_text(row.get(title))) for row in rows)) + 2 for title in titles}
    print(f"\n{what}\n" + "".join(f"{title:>{width[title]}}" for title in titles))
    for row in rows:
        print("".join(f"{_text(row.get(title)):>{width[title]}}" for title in titles))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    return str(value)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS), help="some of %(default)s")
    parser.add_argument("--measurements", default=",".join((INGEST, *ONCE)), help="some of %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of ingest; the others are measured once")
    parser.add_argument(
        "--spans", type=int, default=800, help="light ones, 100 a commit; chat spans and single are fewer"
    )
    parser.add_argument("--rollouts", type=int, default=160, help="from enqueue to finish")
    parser.add_argument("--wakes", type=int, default=10, help="of each kind")
    parser.add_argument("--query-rollouts", type=int, default=1000, help="of 20 spans each, among which one is read")
    parser.add_argument("--steady-spans", type=int, default=20_000, help="through a server whose memory is watched")
    parser.add_argument("--peer-python", metavar="PYTHON", help="of an environment with agentlightning==0.3.0")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.backends, options.measurements = options.backends.split(","), options.measurements.split(",")
    for name, known in (("backends", BACKENDS), ("measurements", (INGEST, *ONCE))):
        unknown = [each for each in getattr(options, name) if each not in known]
        if unknown:
            parser.error(f"--{name}: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    for name in ("rounds", "spans", "rollouts", "wakes", "query_rollouts", "steady_spans"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be at least 1")
    return options


def main() -> None:
    """Run the comparison, print its tables, write its JSON."""
    options = arguments()
    reasons = {backend: reason for backend in options.backends if (reason := missing(backend))}
    backends = [backend for backend in options.backends if backend not in reasons]
    found, failed = compare(backends, options)
    tables = {what: summarise(rows) if what == INGEST else rows for what, rows in found.items()}
    for what, rows in tables.items():
        if rows:
            show(what, rows)
    for backend, reason in reasons.items():
        print(f"\n{backend} was not measured: {reason}")
    if options.json:
        names = "backends", "measurements", "rounds", "spans", "rollouts", "wakes", "query_rollouts", "steady_spans"
        settings: Row = {name: getattr(options, name) for name in names}
        result: Row = {
            "settings": settings,
            "missing": reasons,
            "failed": failed,
            **tables,
            "rounds": found.get(INGEST, []),
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        raise SystemExit(f"{len(failed)} of the measurements failed: {failed[0].splitlines()[-1]}")


if __name__ == "__main__":
    main()
