"""What the gateway adds to a call, beside what others add: all in one run, against an engine that answers at once.

Every target gets the same request of 1,000 prompt ids and gives the same answer of 200 tokens. `engine` is the
engine's own endpoint, called straight: the floor. `capture` is the least that captures (aiohttp, ids kept in memory),
`nginx` a plain reverse proxy. `gateway` does all it does in a run (checks the attempt, renders and encodes the prompt,
decodes the answer, records it) with its store in memory, `gateway-durable` with SQLite, durable before the answer ends.
LiteLLM and Agent Lightning take part when the Python of an environment that holds them is given. With `--workers`, only
`leyden gateway` is measured, with one and with two worker processes in front of the engine's endpoint. This needs a
core for the client, one for the engine and one for each worker.

    python benchmarks/gateway.py --json gateway.json --litellm ENV/bin/python --agent-lightning ENV/bin/python
    python benchmarks/gateway.py --json workers.json --workers [--store postgresql://…]

Targets are called in turns by one client on the same machine, so that only ratios and differences count.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wire.load import Round, measure, memory
from wire.reference import ANSWER_IDS, PROMPT_IDS
from wire.servers import serve_capture, serve_engine, serve_gateway
from wire.targets import OwnServer, Target, agent_lightning, leyden_gateway, litellm, nginx

SLOW = {"litellm": 20, "agent-lightning-1.0": 4}
"""Targets that get so many times fewer calls."""
STREAMLESS = {"agent-lightning-1.0"}
"""Targets that refuse streams."""
WORKERS_CONCURRENCY = 64
COLUMNS = ("requests_per_s", "p50_ms", "p95_ms", "first_p50_ms", "cpu_ms")


async def compare(targets: list[Target], rounds: int, requests: int) -> list[Round]:
    """Measure every target at every concurrency, in turns; the first round only warms up."""
    found: list[Round] = []
    for n in range(rounds + 1):
        for stream in (False, True):
            for concurrency in (1, 16, 64):
                for target in targets:
                    if stream and target.name in STREAMLESS:
                        continue
                    calls = max(requests // SLOW.get(target.name, 1), concurrency)
                    result = await measure(target, concurrency, calls, stream=stream)
                    found += [result] if n else []
    return found


def summarise(rounds: list[Round]) -> list[dict[str, Any]]:
    """Medians over the rounds, and what is added to the straight call of the same kind."""
    rows: list[dict[str, Any]] = []
    kinds = sorted({(r.stream, r.concurrency) for r in rounds})
    for stream, concurrency in kinds:
        mine = [r for r in rounds if (r.stream, r.concurrency) == (stream, concurrency)]
        floor = _medians([r for r in mine if r.target == "engine"])
        for target in dict.fromkeys(r.target for r in mine):
            row = _medians([r for r in mine if r.target == target])
            added = {f"added_{key}": row[key] - floor[key] for key in ("p50_ms", "p95_ms")}
            rows.append({"stream": stream, "concurrency": concurrency, "target": target, **row, **added})
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Requests per second of the durable gateway over those of the others, plain calls: by concurrency, and most."""
    rate = {(row["target"], row["concurrency"]): row["requests_per_s"] for row in rows if not row["stream"]}
    others = [(target, n) for target, n in rate if not target.startswith("gateway") and target != "engine"]
    found = {f"over {target} at {n}": rate["gateway-durable", n] / rate[target, n] for target, n in others}
    most = {target: max(rate[each, n] for each, n in rate if each == target) for target, _ in rate}
    found |= {f"most over most of {target}": most["gateway-durable"] / most[target] for target, _ in others}
    return found | {"at 64 over at 1": rate["gateway-durable", 64] / rate["gateway-durable", 1]}


def compare_workers(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure `leyden gateway` with one and with two workers, in turns; the first round only warms up."""
    engine = OwnServer("engine", serve_engine)
    store = arguments.store or f"sqlite:///{folder}/workers.db"
    targets = [leyden_gateway(folder, engine.port, store, workers) for workers in (1, 2)]
    rounds: list[Round] = []
    try:
        for n in range(arguments.rounds + 1):
            for target in targets:
                result = asyncio.run(measure(target, WORKERS_CONCURRENCY, arguments.requests, stream=False))
                rounds += [result] if n else []
    finally:
        for target in (*targets, engine):
            target.stop()
    rate = {t.name: _medians([r for r in rounds if r.target == t.name])["requests_per_s"] for t in targets}
    return {
        "concurrency": WORKERS_CONCURRENCY,
        "store": store.partition("://")[0],
        "cores": len(os.sched_getaffinity(0)),
        "requests_per_s": rate,
        "two_over_one": rate["gateway-workers-2"] / rate["gateway-workers-1"],
        "rounds": [asdict(each) for each in rounds],
    }


def _write(path: Path | None, result: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(result, indent=1))


def _medians(rounds: list[Round]) -> dict[str, float]:
    values: Callable[[str], list[float]] = lambda key: [getattr(r, key) for r in rounds]  # noqa: E731
    return {key: statistics.median(values(key)) for key in COLUMNS}


def start(folder: Path, arguments: argparse.Namespace) -> list[Target]:
    """Bring the targets up."""
    engine = OwnServer("engine", serve_engine)
    targets: list[Target] = [
        engine,
        OwnServer("capture", serve_capture, f"http://127.0.0.1:{engine.port}"),
        OwnServer("gateway", serve_gateway, "memory://"),
        OwnServer("gateway-durable", serve_gateway, f"sqlite:///{folder}/store.db"),
    ]
    proxy = nginx(folder, engine.port)
    targets += [proxy] if proxy else []
    if arguments.litellm:
        targets.append(litellm(arguments.litellm, folder, engine.port))
    if arguments.agent_lightning:
        targets.append(agent_lightning(arguments.agent_lightning, folder, engine.port))
    return targets


def main() -> None:
    """Run the comparison, print its table, write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=640, help="calls in each measurement")
    parser.add_argument("--memory-calls", type=int, default=0, help="then so many calls, watching memory")
    parser.add_argument("--litellm", type=Path, metavar="PYTHON")
    parser.add_argument("--agent-lightning", type=Path, metavar="PYTHON")
    parser.add_argument("--workers", action="store_true", help="measure one and two workers of leyden gateway")
    parser.add_argument("--store", metavar="URI", help="store of --workers instead of a SQLite file")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if arguments.workers:
            result = compare_workers(Path(name), arguments)
            print(f"two workers over one: {result['two_over_one']:.2f} x on {result['cores']} cores")
            return _write(arguments.json, result)
        targets = start(Path(name), arguments)
        rounds = asyncio.run(compare(targets, arguments.rounds, arguments.requests))
        durable = next(target for target in targets if target.name == "gateway-durable")
        calls = arguments.memory_calls
        grown = asyncio.run(memory(durable, calls)) if calls else []
        for target in reversed(targets):
            target.stop()
    rows = summarise(rounds)
    print("".join(f"{title:>20}" for title in rows[0]))
    for row in rows:
        print("".join(f"{value:>20,.3f}" if isinstance(value, float) else f"{value!s:>20}" for value in row.values()))
    print("\nrequests/s of gateway-durable, plain calls:")
    print("\n".join(f"  {name:<32}{ratio:8.2f} x" for name, ratio in ratios(rows).items()))
    for done, size in grown:
        print(f"  after {done:>9,} calls {size:10.1f} MiB")
    if arguments.json:
        result = {"prompt_ids": PROMPT_IDS, "answer_ids": ANSWER_IDS, "rows": rows, "ratios": ratios(rows)}
        result |= {"memory": grown, "rounds": list(map(asdict, rounds))}
        _write(arguments.json, result)


if __name__ == "__main__":
    main()
