"""How soon who waits at a store is woken, by the same process and by another; and that other process.

Counted from before the call that changes something, so the change itself, and the claim, are in it.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from leyden.core.data.rollout import Attempt
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from stores.ingest import claim
from stores.places import SHARED, new_uris

_SETTLE_SECONDS = 0.05
"""After which who is to be woken has looked, found nothing, and waits."""
_PATIENCE_SECONDS = 20.0

Change = Callable[[Attempt | None], Awaitable[float]]
"""Finishes an attempt, or queues a rollout where there is none; returns when that began."""


def wake(backend: str, folder: Path, times: int) -> list[dict[str, Any]]:
    """Measure a claim and a wait that have nothing yet, `times` each."""
    with new_uris(backend, folder) as new_uri:
        return asyncio.run(_wake(backend, new_uri(), times))


async def _wake(backend: str, uri: str, times: int) -> list[dict[str, Any]]:
    store = await open_store(uri)
    found: list[dict[str, Any]] = []
    try:
        found += await _woken_by(store, lambda attempt: _change(store, attempt), times, backend, "itself")
        if backend in SHARED:
            other = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "stores.waking", uri),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                found += await _woken_by(
                    store, lambda attempt: _change_in_process(other, attempt), times, backend, "another"
                )
            finally:
                assert other.stdin is not None, "it was asked for"
                other.stdin.close()
                await other.wait()
    finally:
        await store.close()
    return found


async def _woken_by(store: LightningStore, change: Change, times: int, backend: str, by: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    await _claim_delay(store, change)  # connects, and lets who listens begin to
    for what, delay_of in (("dequeue", _claim_delay), ("wait", _finish_delay)):
        delays = sorted([1000 * await delay_of(store, change) for _ in range(times)])
        late = delays[min(round(0.95 * times), times - 1)]
        median = statistics.median(delays)
        found.append({"backend": backend, "waits": what, "woken_by": by, "median_ms": median, "p95_ms": late})
    return found


async def _claim_delay(store: LightningStore, change: Change) -> float:
    waiting = asyncio.create_task(_timed(store.dequeue_many_rollouts(timeout=_PATIENCE_SECONDS)))
    await asyncio.sleep(_SETTLE_SECONDS)
    return await _delay(waiting, change, None)


async def _finish_delay(store: LightningStore, change: Change) -> float:
    (attempt,) = await claim(store, 1)
    ids = [attempt.rollout_id]
    waiting = asyncio.create_task(_timed(store.wait_for_rollouts(rollout_ids=ids, timeout=_PATIENCE_SECONDS)))
    await asyncio.sleep(_SETTLE_SECONDS)
    return await _delay(waiting, change, attempt)


async def _timed(waits: Awaitable[Sequence[Any]]) -> float:
    """Return when there was an answer."""
    if not await waits:
        raise SystemExit(f"nobody was woken within {_PATIENCE_SECONDS} seconds")
    return time.monotonic()


async def _delay(waiting: "asyncio.Task[float]", change: Change, attempt: Attempt | None) -> float:
    began = await change(attempt)
    return await waiting - began


async def _change(store: LightningStore, attempt: Attempt | None) -> float:
    began = time.monotonic()
    if attempt is None:
        await store.enqueue_rollout({"question": 1})
    else:
        await store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")
    return began


async def _change_in_process(other: asyncio.subprocess.Process, attempt: Attempt | None) -> float:
    """Have the other process do it; every process of a machine has the same monotonic clock."""
    assert other.stdin is not None, "it was asked for"
    assert other.stdout is not None, "it was asked for"
    other.stdin.write(f"{attempt.rollout_id} {attempt.attempt_id}\n".encode() if attempt else b"\n")
    return float(await other.stdout.readline())


async def _follow_commands(uri: str) -> None:
    """Change what each line of standard input says, and say when that began."""
    store = await open_store(uri)
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.monotonic()
        if line.strip():
            await store.update_attempt(*line.split(), status="succeeded")
        else:
            await store.enqueue_rollout({"question": 1})
        print(began, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(_follow_commands(sys.argv[1]))
