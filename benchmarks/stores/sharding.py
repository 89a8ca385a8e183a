"""One process of `benchmarks/shards.py`: it stores spans, or claims rollouts, once it gets a line on standard input.

python -m stores.sharding write URI SPANS
python -m stores.sharding claim URI
"""

import asyncio
import json
import sys
import time
from typing import Any

from leyden.core.data.rollout import Attempt
from leyden.core.errors import StoreError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from stores.material import SPANS_OF_ATTEMPT, make_spans

BATCH, TASKS = 100, 4
"""Spans of a call, and calls at once."""
AWAY_SECONDS = 0.05
"""Pause after a call that failed."""


async def write(store: LightningStore, count: int) -> dict[str, Any]:
    """Store so many light spans, each batch of an attempt of its own; return how many were acknowledged."""
    waiting: list[tuple[Attempt, int]] = []
    for first in range(0, count, BATCH):
        waiting.append(((await store.start_rollout({"n": first})).attempt, first))
    ready()
    began, used = time.perf_counter(), time.process_time()
    stored = 0
    errors: list[str] = []

    async def work() -> None:
        nonlocal stored
        while waiting:
            attempt, first = waiting.pop()
            spans = make_spans("light", [attempt] * (BATCH // SPANS_OF_ATTEMPT), min(BATCH, count - first), first)
            try:
                answer = await store.add_many_spans(spans)
                stored += len(answer)
            except StoreError as error:
                errors.append(str(error))
                await asyncio.sleep(AWAY_SECONDS)

    await asyncio.gather(*(work() for _ in range(TASKS)))
    used = time.process_time() - used
    return {"seconds": time.perf_counter() - began, "spans": stored, "errors": errors, "cpu_seconds": used}


async def claim(store: LightningStore) -> dict[str, Any]:
    """Claim one rollout after the other until there is none, and end each; return their ids."""
    ready()
    began, used = time.perf_counter(), time.process_time()
    claimed: list[str] = []
    while (found := await store.dequeue_rollout(worker_id=f"w{began}")) is not None:
        claimed.append(found.rollout_id)
        await store.update_attempt(found.rollout_id, found.attempt.attempt_id, status="succeeded")
    used = time.process_time() - used
    return {"seconds": time.perf_counter() - began, "claimed": claimed, "cpu_seconds": used}


def ready() -> None:
    """Report that the measurement may begin, and wait for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


async def main(what: str, uri: str, *count: str) -> None:
    """Do one of both, and print what came out as JSON."""
    store = await open_store(uri)
    found = await (write(store, int(count[0])) if what == "write" else claim(store))
    await store.close()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
