"""What one abusive attempt costs seven honest ones at a store's server: p95 and throughput beside those without it.

    python benchmarks/fairness_store.py --json fairness.json
    python benchmarks/fairness_store.py --seconds 10 --abuses many_parts,stalled_bodies

`leyden store` over SQLite runs in a process of its own. Seven attempts, each with its own token, store ten light spans
(tool calls) at a time and pause; a trainer calls `statistics`, and somebody asks for `/healthz`. Then the same beside a
process that abuses the server with the token of an eighth attempt: `stores/abuses.py` has what it does. Each abuse is
measured in turn with a quiet time of the same length right before it, on a server of its own.

`p95 x` and `rate x` are p95 latency and throughput of the honest attempts by those of the quiet time. `longest_ms` is
the longest that any honest request, trainer's call or health check took, `failed` how many had no answer but an error.
All run on one machine: what the abuser itself takes of its processors is part of the figures.
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
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from stores.abuses import ABUSES
from stores.material import make_spans
from stores.places import TOKEN

from leyden.core.data.rollout import Attempt
from leyden.core.store.http.access import Access
from leyden.core.store.http.client import HttpStore

HERE = Path(__file__).parent
HONEST, SPANS, PAUSE_SECONDS, WARM_SECONDS = 7, 10, 0.05, 0.5
Row = dict[str, Any]


class Site:
    """A server with its attempts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.attempts: list[Attempt] = []
        self._numbers = iter(range(0, 1_000_000, SPANS))
        self._clients: list[HttpStore] = []

    async def open(self, closing: AsyncExitStack) -> None:
        """Begin the attempts, the last of which is the abusive one."""
        trainer = HttpStore(self.url, TOKEN)
        closing.push_async_callback(trainer.close)
        self.attempts = [(await trainer.start_rollout({"n": n})).attempt for n in range(HONEST + 1)]
        self._clients = [HttpStore(self.url, self.token_of(attempt)) for attempt in self.attempts[:-1]]
        for client in self._clients:
            closing.push_async_callback(client.close)
        self._trainer = trainer
        self._session = await closing.enter_async_context(aiohttp.ClientSession())

    def token_of(self, attempt: Attempt) -> str:
        """The token of an attempt's agent."""
        return Access(TOKEN).agent_token(attempt.rollout_id, attempt.attempt_id)

    async def measure(self, seconds: float) -> Row:
        """Have the honest ones work for a while."""
        latencies: list[float] = []
        beside: list[float] = []
        failed = 0
        end = time.perf_counter() + seconds

        async def repeat(into: list[float], call: Any) -> None:
            nonlocal failed
            while (began := time.perf_counter()) < end:
                try:
                    await call()
                except Exception as error:
                    print(f"  an honest call failed: {error!r}"[:200], file=sys.stderr)
                    failed += 1
                into.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE_SECONDS)

        async def health() -> None:
            async with self._session.get(f"{self.url}/healthz") as answer:
                answer.raise_for_status()

        def store(n: int) -> Any:
            attempt, client = self.attempts[n], self._clients[n]
            return lambda: client.add_many_spans(make_spans("light", [attempt], SPANS, next(self._numbers)))

        began = time.perf_counter()
        honest = [repeat(latencies, store(n)) for n in range(HONEST)]
        await asyncio.gather(*honest, repeat(beside, self._trainer.statistics), repeat(beside, health))
        return {
            "p50_ms": 1000 * statistics.median(latencies),
            "p95_ms": 1000 * sorted(latencies)[int(0.95 * len(latencies))],
            "longest_ms": 1000 * max(*latencies, *beside),
            "requests_per_s": len(latencies) / (time.perf_counter() - began),
            "failed": failed,
        }


@contextmanager
def served(uri: str) -> Generator[str]:
    """Serve a store as a user does; what the server logs of the abuser is not shown."""
    command = [sys.executable, "-m", "leyden.core.cli", "store", "--uri", uri, "--port", "0", "--json"]
    environment = {**os.environ, "LEYDEN_STORE_TOKEN": TOKEN}
    with subprocess.Popen(
        command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None, "it was asked for"
        try:
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.terminate()


async def compare(url: str, name: str, seconds: float) -> Row:
    """Measure one abuse, after a quiet time."""
    async with AsyncExitStack() as closing:
        site = Site(url)
        await site.open(closing)
        attempt = site.attempts[-1]
        ids = attempt.rollout_id, attempt.attempt_id
        command = [sys.executable, "-m", "stores.abuses", name, url, site.token_of(attempt), *ids]
        with subprocess.Popen(command, cwd=HERE, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as abuser:
            assert abuser.stdin is not None and abuser.stdout is not None, "both were asked for"
            try:
                await asyncio.to_thread(abuser.stdout.readline)
                await site.measure(WARM_SECONDS)
                quiet = await site.measure(seconds)
                abuser.stdin.write("\n")
                abuser.stdin.flush()
                await asyncio.sleep(2 * WARM_SECONDS)
                loud = await site.measure(seconds)
                abuser.stdin.write("\n")
                abuser.stdin.flush()
                answers = await asyncio.to_thread(abuser.stdout.readline)
            finally:
                abuser.kill()
    return {
        "abuse": name,
        "p95 x": loud["p95_ms"] / quiet["p95_ms"],
        "rate x": loud["requests_per_s"] / quiet["requests_per_s"],
        "p95_ms": loud["p95_ms"],
        "longest_ms": loud["longest_ms"],
        "failed": loud["failed"],
        "answers": json.loads(answers or "{}"),
        "quiet": quiet,
        "loud": loud,
    }


def main() -> None:
    """Run the comparison, print its table, write its JSON."""
    known = [abuse.__name__ for abuse in ABUSES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each abuse, and of the quiet time before it")
    parser.add_argument("--abuses", default=",".join(known), help="some of %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    chosen = options.abuses.split(",")
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"--abuses: there is no {', '.join(unknown)}; there are {', '.join(known)}")
    if options.seconds <= 0:
        parser.error(f"--seconds is {options.seconds:g}; it must be above 0")
    rows: list[Row] = []
    print(f"{'abuse':<22}{'p95 x':>8}{'rate x':>8}{'p95_ms':>10}{'longest_ms':>12}{'failed':>8}  answers to the abuser")
    with tempfile.TemporaryDirectory(prefix="leyden-bench-") as folder:
        for name in chosen:
            with served(f"sqlite:///{folder}/{name}.db") as url:
                row = asyncio.run(compare(url, name, options.seconds))
            rows.append(row)
            figures = f"{row['p95 x']:>8.2f}{row['rate x']:>8.2f}{row['p95_ms']:>10.1f}{row['longest_ms']:>12.1f}"
            print(f"{name:<22}{figures}{row['failed']:>8}  {row['answers']}", flush=True)
    if options.json:
        result = {"settings": {"seconds": options.seconds, "honest": HONEST, "spans": SPANS}, "rows": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
