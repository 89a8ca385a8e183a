"""What a store is asked all day: whole rollouts, and the spans of one attempt among those of many."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from leyden.core.data.rollout import Attempt
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from stores.ingest import claim
from stores.material import SPANS_OF_ATTEMPT, make_spans
from stores.places import new_uris

_SPANS, _WORKERS = 5, 8
_TOGETHER = 500
"""Rollouts that are claimed, and spans that are stored, at once while the query's store is filled."""
_QUERIES = 50
_PATIENCE_SECONDS = 20.0
"""Of a worker for a rollout: there is one for each, but another may hold it for a moment."""


def rollouts(backend: str, folder: Path, count: int) -> list[dict[str, Any]]:
    """Measure rollouts a second from enqueue to finish, with one worker and with several in one process."""

    async def run(uri: str) -> list[dict[str, Any]]:
        store = await open_store(uri)
        try:
            return [
                {"backend": backend, "workers": workers, "rollouts_per_s": await _rate(store, workers, count)}
                for workers in (1, _WORKERS)
            ]
        finally:
            await store.close()

    with new_uris(backend, folder) as new_uri:
        return asyncio.run(run(new_uri()))


async def _rate(store: LightningStore, workers: int, count: int) -> float:
    each = max(count // workers, 1)
    began = time.perf_counter()
    done = await asyncio.gather(*(_work(store, f"worker-{n}", each) for n in range(workers)))
    took = time.perf_counter() - began
    finished = await store.wait_for_rollouts(rollout_ids=[one for ids in done for one in ids], timeout=0)
    if len(finished) != workers * each:
        raise SystemExit(f"{len(finished)} of {workers * each} rollouts are finished")
    return workers * each / took


async def _work(store: LightningStore, worker: str, count: int) -> list[str]:
    done: list[str] = []
    for n in range(count):
        await store.enqueue_rollout({"question": n})
        (claimed,) = await store.dequeue_many_rollouts(worker_id=worker, timeout=_PATIENCE_SECONDS)
        for span in make_spans("light", [claimed.attempt], _SPANS):
            await store.add_span(span)
        await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="succeeded")
        done.append(claimed.rollout_id)
    return done


def query(backend: str, folder: Path, count: int) -> list[dict[str, Any]]:
    """Measure how long the spans of one attempt take to read among those of `count` rollouts, twenty each."""

    async def run(uri: str) -> list[dict[str, Any]]:
        store = await open_store(uri)
        try:
            attempts = await _fill(store, count)
            delays = sorted([await _read(store, attempts[n * len(attempts) // _QUERIES]) for n in range(_QUERIES)])
        finally:
            await store.close()
        late = delays[round(0.95 * _QUERIES)]
        return [{"backend": backend, "rollouts": count, "median_ms": statistics.median(delays), "p95_ms": late}]

    with new_uris(backend, folder) as new_uri:
        return asyncio.run(run(new_uri()))


async def _fill(store: LightningStore, count: int) -> list[Attempt]:
    attempts: list[Attempt] = []
    while len(attempts) < count:
        attempts += await claim(store, min(_TOGETHER, count - len(attempts)))
    step = _TOGETHER // SPANS_OF_ATTEMPT
    for start in range(0, count, step):
        part = attempts[start : start + step]
        await store.add_many_spans(make_spans("light", part, len(part) * SPANS_OF_ATTEMPT))
    return attempts


async def _read(store: LightningStore, attempt: Attempt) -> float:
    began = time.perf_counter()
    page = await store.query_spans(attempt.rollout_id, attempt.attempt_id)
    took = time.perf_counter() - began
    if len(page.items) != SPANS_OF_ATTEMPT:
        raise SystemExit(f"{len(page.items)} spans were read, not {SPANS_OF_ATTEMPT}")
    return 1000 * took
