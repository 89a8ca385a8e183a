"""`kill -9` of a store's server and of its writers at random moments under load: nothing acknowledged is lost.

Three writers queue, claim, add spans and finish; in every round one of them, or the server, is killed and started
again. Afterwards the writers go on until every rollout is finished. What they noted is then held against the store. The
exit code is 1 when something does not hold, or the store was not usable within five seconds of its server's return.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kills import store_checks
from kills.journal import read
from kills.showing import Findings, show
from kills.store_backends import BACKENDS, Backend
from kills.store_writer import CONFIG
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store

WRITERS = 3
USABLE_SECONDS = 5.0
"""Within which a store is usable after its server has come back."""
ENDING_SECONDS = 120.0
SCRIPTS = Path(__file__).parent


class StoreCampaign:
    """Rounds of kills on one backend."""

    def __init__(self, backend: Backend, folder: Path, seed: int) -> None:
        self._backend, self._random = backend, random.Random(seed)
        self._stop, self._folder = folder / "stop", folder
        self.journal = folder / "journal.jsonl"
        self._writers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.servers = self.killed_writers = 0
        self.slowest = 0.0
        self.wrong: list[str] = []

    async def work(self, rounds: int, told: Callable[[], object]) -> Findings:
        """Kill, let the writers come to their end, and check."""
        store = await open_store(self._backend.uri)
        try:
            for _ in range(WRITERS):
                self._start_writer()
            await self._written(WRITERS)
            for n in range(rounds):
                await asyncio.sleep(self._random.uniform(0.05, 1.0))
                await self._round(store, n)
                told()
            self._stop.touch()
            self._end()
            kept = await store_checks.read_kept(store)
        finally:
            for writer in self._writers:
                writer.kill()
                writer.wait()
            await store.close()
        return self._findings(kept)

    async def _round(self, store: LightningStore, n: int) -> None:
        if n % 2:
            writer = self._writers.pop(self._random.randrange(WRITERS))
            writer.kill()
            writer.wait()
            self.killed_writers += 1
            self._start_writer()
            return
        await asyncio.to_thread(self._backend.kill)
        await asyncio.sleep(self._random.uniform(0, 0.5))
        await asyncio.to_thread(self._backend.start)
        self.servers += 1
        back = time.monotonic()
        await store.enqueue_rollout("usable", config=CONFIG)
        self.slowest = max(self.slowest, time.monotonic() - back)

    def _start_writer(self) -> None:
        uris = self._backend.uris
        uri = uris[self._started % len(uris)]
        self._started += 1
        command = [sys.executable, "-m", "kills.store_writer", uri, str(self.journal)]
        paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with (self._folder / "writers.log").open("ab") as log:
            writer = subprocess.Popen(
                [*command, f"w{self._started}", str(self._stop)], env=environment, stdout=log, stderr=log
            )
        self._writers.append(writer)

    async def _written(self, count: int) -> None:
        """Wait until so many writers have opened the store, and something was finished."""
        async with asyncio.timeout(ENDING_SECONDS):
            while True:
                kinds = [event["kind"] for event in read(self.journal)]
                if kinds.count("open") >= count and "end" in kinds:
                    return
                await asyncio.sleep(0.05)

    def _end(self) -> None:
        give_up = time.monotonic() + ENDING_SECONDS
        for writer in self._writers:
            try:
                code = writer.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.wrong.append("a writer does not come to its end")
                continue
            if code:
                self.wrong.append(f"a writer ended with {code}: {(self._folder / 'writers.log').read_text()[-2000:]}")

    def _findings(self, kept: store_checks.Kept) -> Findings:
        events = read(self.journal)
        kinds = [event["kind"] for event in events]
        if self.slowest > USABLE_SECONDS:
            self.wrong.append(f"the store was usable only {self.slowest:.1f} s after its server came back")
        happened: dict[str, Any] = {
            "servers killed": self.servers,
            "writers killed": self.killed_writers,
            "rollouts": len(kept.rollouts),
            "attempts": sum(map(len, kept.attempts.values())),
            "spans": sum(map(len, kept.spans.values())),
            "acknowledgements noted": len(kinds) - kinds.count("error") - kinds.count("open"),
            "errors of the store": kinds.count("error"),
            "of these with an unknown end": sum("unknown whether" in event.get("text", "") for event in events),
            "usable after, at most": f"{self.slowest:.2f} s",
        }
        happened |= {f"told: {text}": count for text, count in store_checks.told(events).items()}
        return happened, {
            "on the way": self.wrong,
            "lost": store_checks.lost(events, kept),
            "claimed twice": store_checks.claimed_twice(events),
            "unfinished": store_checks.unfinished(kept),
            "out of order": store_checks.out_of_order(kept),
        }


def kill_store(name: str, rounds: int, seed: int, told: Callable[[], object]) -> Findings:
    """Run the campaign on the backend of this name."""
    with tempfile.TemporaryDirectory(prefix="leyden-store-") as folder, BACKENDS[name]() as backend:
        return asyncio.run(StoreCampaign(backend, Path(folder), seed).work(rounds, told))


def main() -> None:
    """Kill, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=sorted(BACKENDS), required=True)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    options = parser.parse_args()
    console = Console()
    with Progress(console=console) as progress:
        bar = progress.add_task("kills", total=options.rounds)
        happened, wrong = kill_store(options.backend, options.rounds, options.seed, lambda: progress.advance(bar))
    show(console, f"{options.backend}: killed under load", happened, wrong)
    if options.json:
        result = {"backend": options.backend, "seed": options.seed, "happened": happened, "wrong": wrong}
        options.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
