"""Values of every kind, a hundred thousand of them, into a store and back: nothing raises, hangs or is lost.

With `--backend` of a store (`http` is `leyden store` over SQLite, in a process of its own) the values are Python's:
builtin ones at their limits, subclasses, records, arrays, and objects that raise, lie or block. They go in by every way
there is: as fields of spans, of OpenTelemetry's spans, through the recorder, through the emitters, as tasks, notes,
resources and arguments. With `--backend requests` they are raw requests to a server, in MessagePack, JSON and OTLP.
The exit code is 1 when something raised, hung, was lost, or reads otherwise than it was stored.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress

from kills.showing import Findings, show
from kills.store_backends import ServedBackend
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.run import Run
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.any_values import RELEASE, Draws
from leyden.core.testing.any_values.hostile import ReprBlocks
from leyden.core.testing.servers.postgres_server import PostgresServer
from leyden.core.testing.servers.redis_server import RedisServer
from values.raw import Raw
from values.ways import WAYS

BACKENDS = ("memory", "sqlite", "postgresql", "redis", "http", "requests")
HUNG_SECONDS = 120.0
"""Nothing takes as long, on a machine that has other things to do."""
_AT_ONCE = 4
_PER_ROLLOUT = 200
"""Values or requests, after which the next rollout begins."""
_PER_BLOCKING = 1000
"""Values, of which one blocks."""
_TICK = 0.01
_TAKEN, _REFUSED = 200, (400, 403, 404, 413, 415, 422)


class Campaign:
    """Puts values into one store."""

    def __init__(self, store: LightningStore, wanted: int, seed: int, told: Callable[[int], object]) -> None:
        self._store, self._wanted, self._told = store, wanted, told
        self._draws, self._random = Draws(seed), random.Random(seed)
        self._ways = [way for way, times in WAYS.items() for _ in range(times)]
        self._rollouts: list[str] = []
        self._blocked = 0
        self.happened: dict[str, Any] = {"values": 0, **{way.__name__: 0 for way in WAYS}, "blocking": 0}
        self.largest = self.busy = 0.0
        self.slowest = (0.0, "")
        self.wrong: dict[str, list[str]] = {"raised": [], "hung": [], "lost or changed": []}

    async def work(self) -> Findings:
        """Put the values in, and read everything once more."""
        RELEASE.set()
        await self._store.add_run(Run(run_id="run", name="run"))
        watching = asyncio.create_task(self._watch())
        began = time.monotonic()
        await asyncio.gather(*(self._worker() for _ in range(_AT_ONCE)))
        watching.cancel()
        self.happened |= {
            "values": self._draws.values,
            "spans there at the end": await self._read_again(),
            "slowest": _slowest(*self.slowest),
            "largest": f"{self.largest / 1e6:.1f} MB",
            "event loop computed at once, at most": f"{self.busy:.2f} s",
            "memory of this process, at most": _memory(),
            "took": f"{time.monotonic() - began:.0f} s",
        }
        return self.happened, self.wrong

    async def _worker(self) -> None:
        while self._draws.values < self._wanted:
            got = await self._store.start_rollout("values")
            self._rollouts.append(got.rollout_id)
            end = self._draws.values + _PER_ROLLOUT
            while self._draws.values < end:
                before = self._draws.values
                await self._one(got)
                self._told(self._draws.values - before)
            if self._draws.values // _PER_BLOCKING > self._blocked:
                self._blocked += 1
                await self._blocking(got)

    async def _one(self, got: AttemptedRollout) -> None:
        way = self._random.choice(self._ways)
        state = f"{way.__name__}, value {self._draws.values}"
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                taken = await way(self._store, got.attempt, self._draws)
        except TimeoutError:
            self.wrong["hung"].append(state)
        except AssertionError as error:
            self.wrong["lost or changed"].append(f"{state}: {error}")
        except Exception as error:  # whatever it raises is what the campaign is looking for
            self.wrong["raised"].append(f"{state}: {error!r}")
        else:
            self.slowest = max(self.slowest, (taken.seconds, state))
            self.largest = max(self.largest, taken.bytes)
        self.happened[way.__name__] += 1

    async def _blocking(self, got: AttemptedRollout) -> None:
        """Store a span with an object that blocks, of a class of its own, and another span beside it."""
        RELEASE.clear()
        blocks: Any = {"odd": type("Blocks", (ReprBlocks,), {})()}
        fields: dict[str, Any] = {"rollout_id": got.rollout_id, "attempt_id": got.attempt.attempt_id, "sequence_id": 0}
        fields |= {"trace_id": "1" * 32, "name": "blocking", "start_time": 1.0}
        one, other = (f"{self._random.getrandbits(64) or 1:016x}" for _ in range(2))
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                slow = asyncio.create_task(self._store.add_span(Span(**fields, span_id=one, attributes=blocks)))
                await asyncio.sleep(0)
                beside = await self._store.add_span(Span(**fields, span_id=other))
                was_done, stored = slow.done(), await slow
        except TimeoutError:
            self.wrong["hung"].append("a span with an object that blocks")
            return
        finally:
            RELEASE.set()
        if beside is None or stored is None or was_done:
            self.wrong["lost or changed"].append("a span with an object that blocks, or the one beside it")
        self.happened["blocking"] += 1

    async def _read_again(self) -> int:
        """Read every rollout's spans; returns how many there are."""
        count = 0
        for rollout_id in self._rollouts:
            found = await self._store.query_spans(rollout_id)
            count += found.total
            if len(found.items) != found.total:
                self.wrong["lost or changed"].append(
                    f"of {found.total} spans of {rollout_id}, {len(found.items)} are read"
                )
        return count

    async def _watch(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(_TICK)
            self.busy = max(self.busy, time.thread_time() - began)


class Requests:
    """Sends raw requests to a server."""

    def __init__(self, uri: str, wanted: int, seed: int, told: Callable[[int], object]) -> None:
        address = httpx.URL(uri)
        self._uri, self._url, self._wanted, self._told = uri, str(address.copy_with(username=None)), wanted, told
        self._headers = {"authorization": f"Bearer {address.username}", "accept": "application/msgpack"}
        self._raw = Raw(seed)
        self._statuses: dict[int, int] = {}
        self._rollouts: list[str] = []
        self.slowest = (0.0, "")
        self.wrong: dict[str, list[str]] = {"refused otherwise": [], "hung": [], "lost": []}

    async def work(self) -> Findings:
        """Send requests until they hold as many values, and read everything that was stored."""
        began = time.monotonic()
        store = await open_store(self._uri)
        await store.add_run(Run(run_id="run", name="run"))
        async with httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=HUNG_SECONDS) as client:
            await asyncio.gather(*(self._worker(client, store) for _ in range(_AT_ONCE)))
        spans = 0
        for rollout_id in self._rollouts:
            spans += len((await store.query_spans(rollout_id)).items)
            await store.get_rollout_by_id(rollout_id)
        total, kept = (await store.statistics())["total_spans"], len(await store.query_rollouts())
        if total != spans:
            self.wrong["lost"].append(f"of {total} spans, {spans} are read")
        await store.close()
        happened = {"values": self._raw.values, **{f"answered {s}": n for s, n in sorted(self._statuses.items())}}
        took = {"slowest": _slowest(*self.slowest), "took": f"{time.monotonic() - began:.0f} s"}
        return {**happened, "spans there at the end": spans, "rollouts there at the end": kept, **took}, self.wrong

    async def _worker(self, client: httpx.AsyncClient, store: LightningStore) -> None:
        while self._raw.values < self._wanted:
            got = await store.start_rollout("values")
            self._rollouts.append(got.rollout_id)
            end = self._raw.values + _PER_ROLLOUT
            while self._raw.values < end:
                before = self._raw.values
                await self._one(client, got)
                self._told(self._raw.values - before)

    async def _one(self, client: httpx.AsyncClient, got: AttemptedRollout) -> None:
        request = self._raw.request(got.attempt)
        shown = f"{request.path} ({request.kind}): {request.body[:300]!r}"
        began = time.monotonic()
        try:
            answer = await client.post(f"/{request.path}", content=request.body, headers={"content-type": request.kind})
        except httpx.HTTPError as error:
            self.wrong["hung"].append(f"{error!r}: {shown}")
            return
        state = f"/{request.path}, {len(request.body):,} bytes, value {self._raw.values}"
        self.slowest = max(self.slowest, (time.monotonic() - began, state))
        self._statuses[answer.status_code] = self._statuses.get(answer.status_code, 0) + 1
        if answer.status_code != _TAKEN and answer.status_code not in _REFUSED:
            self.wrong["refused otherwise"].append(f"{answer.status_code} {answer.text[:200]}: {shown}")


def _slowest(seconds: float, what: str) -> str:
    return f"{seconds:.2f} s ({what})"


def _memory() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"


@asynccontextmanager
async def opened(backend: str, folder: Path) -> AsyncGenerator[str]:
    """Start what the backend needs; gives the URI of an empty store."""
    if backend == "postgresql":
        with PostgresServer() as postgres:
            yield postgres.uri_of(postgres.create())
    elif backend == "redis":
        with RedisServer() as redis:
            yield redis.uri()
    elif backend in ("http", "requests"):
        with ServedBackend() as served:
            yield served.uri
    else:
        yield "memory://" if backend == "memory" else f"sqlite:///{folder}/store.db"


async def run(backend: str, values: int, seed: int, told: Callable[[int], object]) -> Findings:
    """Run a campaign."""
    with tempfile.TemporaryDirectory(prefix="leyden-values-") as folder:
        async with opened(backend, Path(folder)) as uri:
            if backend == "requests":
                return await Requests(uri, values, seed, told).work()
            store = await open_store(uri)
            try:
                return await Campaign(store, values, seed, told).work()
            finally:
                await store.close()


def main() -> None:
    """Put values in, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    parser.add_argument("--values", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what was found")
    options = parser.parse_args()
    console = Console()
    with Progress(console=console) as progress:
        bar = progress.add_task("values", total=options.values)
        happened, wrong = asyncio.run(
            run(options.backend, options.values, options.seed, lambda more: progress.advance(bar, more))
        )
    show(console, f"{options.backend}: values of every kind", happened, wrong)
    if options.json:
        result = {"backend": options.backend, "seed": options.seed, "happened": happened, "wrong": wrong}
        options.json.write_text(json.dumps(result, indent=1))
    sys.exit(1 if any(wrong.values()) else 0)


if __name__ == "__main__":
    main()
