"""How much one abusive attempt slows down seven others: p95 and throughput beside each abuse, over those without.

Seven attempts make short calls, one after the other, to an engine that answers at once. The gateway has the tokenizer
and the chat template of a real policy, and a context so long that nothing is refused for its length. Each abuse runs
in a process of its own against a fresh gateway, after a round without it. Client, abuser and gateway share the
machine: on few cores what they take from each other counts as well.

    python benchmarks/fairness_gateway.py --json fairness.json
    python benchmarks/fairness_gateway.py --abuses long_prompts counts --seconds 10
"""

import argparse
import asyncio
import json
import multiprocessing
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from wire.abuses import ABUSES, Aim, chat
from wire.servers import serve_gateway, serve_real_prompts
from wire.targets import OwnServer

HONEST = 7
GOAL = 3.0
"""Times the p95 without abuse."""
PATIENCE_SECONDS = 60.0
POLICY = Path(__file__).parents[1] / "examples" / "calculator_langgraph" / "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What honest attempts saw."""

    calls: int
    failed: int
    """Calls that were refused, broken off, or not answered in a minute."""
    requests_per_s: float
    p50_ms: float
    p95_ms: float
    worst_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One abuse."""

    abuse: str
    p95_ratio: float
    throughput_ratio: float
    alone: Load
    beside: Load
    abuser_got: dict[str, int]
    """Answers by status."""


async def honest(server: OwnServer, paths: list[str], seconds: float, abuse: Connection | None = None) -> Load:
    """Make short calls for so long, one at a time for each attempt; `abuse` begins, and counting, when they are going.

    The first calls of the abuser would otherwise find nobody else.
    """
    latencies: list[float] = []
    failed = 0
    before = seconds / 4
    counted = time.perf_counter() + before
    end = counted + seconds
    body = chat("What is 12 + 30?")

    def note(start: float, *, good: bool) -> None:
        nonlocal failed
        if time.perf_counter() >= counted:
            latencies.append(time.perf_counter() - start)
            failed += not good

    async def attempt(path: str) -> None:
        request = Aim(server.port, path, 0).request(body)
        while time.perf_counter() < end:
            start = time.perf_counter()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    while time.perf_counter() < end:
                        start = time.perf_counter()
                        writer.write(request)
                        head = (await reader.readuntil(b"\r\n\r\n")).lower()
                        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
                        note(start, good=head.startswith(b"http/1.1 200"))
                    writer.close()
            except (OSError, EOFError):  # a timeout is an OSError
                note(start, good=False)

    async def begin() -> None:
        await asyncio.sleep(before)
        if abuse is not None:
            abuse.send(None)

    await asyncio.gather(begin(), *map(attempt, paths))
    elapsed = time.perf_counter() - counted
    ordered = sorted(latencies)
    return Load(
        calls=len(ordered),
        failed=failed,
        requests_per_s=(len(ordered) - failed) / elapsed,
        p50_ms=1000 * ordered[len(ordered) // 2],
        p95_ms=1000 * ordered[int(0.95 * len(ordered))],
        worst_ms=1000 * ordered[-1],
    )


def measure(name: str, policy: str, seconds: float) -> Row:
    """Measure one abuse, against a gateway of its own."""
    server = OwnServer(name, serve_real_prompts, policy) if policy else OwnServer(name, serve_gateway, "memory://")
    paths = server.paths[:HONEST]
    alone = asyncio.run(honest(server, paths, seconds))
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_abuse, args=(name, server.port, server.paths[HONEST], seconds, there))
    process.start()
    here.recv()  # it could begin now
    beside = asyncio.run(honest(server, paths, seconds, here))
    answers: dict[str, int] = here.recv() if here.poll(PATIENCE_SECONDS) else {}
    process.kill()
    process.join()
    server.stop()
    return Row(
        abuse=name,
        p95_ratio=beside.p95_ms / alone.p95_ms,
        throughput_ratio=beside.requests_per_s / alone.requests_per_s,
        alone=alone,
        beside=beside,
        abuser_got=answers,
    )


def _abuse(name: str, port: int, path: str, seconds: float, pipe: Connection) -> None:
    pipe.send(None)
    pipe.recv()
    aim = Aim(port, path, time.monotonic() + seconds)

    async def abuse() -> None:
        await asyncio.wait([asyncio.ensure_future(ABUSES[name](aim))], timeout=seconds + 1)
        pipe.send(aim.answers)

    asyncio.run(abuse())


def main() -> None:
    """Measure every abuse, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--abuses", nargs="+", choices=ABUSES, default=[*ABUSES], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round; there are two for every abuse")
    parser.add_argument("--policy", default=str(POLICY), help="folder of the tokenizer; empty: bytes, 4096 of them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    rows: list[Row] = []
    print(f"{'abuse':<20}{'p95 ratio':>12}{'calls ratio':>12}  {'p95 alone, beside, worst (ms)':<34}failed  abuser got")
    for name in arguments.abuses:
        row = measure(name, arguments.policy, arguments.seconds)
        rows.append(row)
        shown = f"{row.alone.p95_ms:.1f}, {row.beside.p95_ms:.1f}, {row.beside.worst_ms:.1f}"
        print(
            f"{name:<20}{row.p95_ratio:>12.2f}{row.throughput_ratio:>12.2f}  {shown:<34}{row.beside.failed:>6}  "
            f"{row.abuser_got}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"honest_attempts": HONEST, "goal": GOAL, "rows": list(map(asdict, rows))}, indent=1)
        )


if __name__ == "__main__":
    main()
