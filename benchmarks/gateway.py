"""What the gateway adds to a call, beside what others add: all in one run, against an engine that answers at once.

Every target gets the same request of 1,000 prompt ids and gives the same answer of 200 tokens. `engine` is the
engine's own endpoint, called straight: the floor. `capture` is the least that captures (aiohttp, ids kept in memory),
`nginx` a plain reverse proxy. `gateway` does all it does in a run (checks the attempt, renders and encodes the prompt,
decodes the answer, records it) with its store in memory, `gateway-durable` with SQLite, durable before the answer ends.
LiteLLM and Agent Lightning take part when the Python of an environment that holds them is given.

    python benchmarks/gateway.py --json gateway.json --litellm ENV/bin/python --agent-lightning ENV/bin/python

Targets are called in turns by one client on the same machine, so that only ratios and differences count.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wire.load import Round, measure, memory
from wire.reference import ANSWER_IDS, PROMPT_IDS
from wire.servers import serve_capture, serve_engine, serve_gateway
from wire.targets import OwnServer, Target, agent_lightning, litellm, nginx

SLOW = {"litellm": 20, "agent-lightning-1.0": 4}
"""Targets that get so many times fewer calls."""
STREAMLESS = {"agent-lightning-1.0"}
"""Targets that refuse streams."""
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
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
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
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
