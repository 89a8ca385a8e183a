"""Whether a server's memory stays flat: `leyden store` over SQLite takes light spans by the HTTP client, all day long.

Rollouts are queued, claimed, given their spans in commits of a hundred, and finished, so that nothing has to stay. What
a server holds resident is read at ten points (Linux alone says it of another process).
"""

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from stores.ingest import claim
from stores.material import SPANS_OF_ATTEMPT, make_spans
from stores.places import served

POINTS = 10
_COMMIT, _ROLLOUTS = 100, 50
"""Spans in a request, and rollouts that are under way at once."""
_AT_ONCE = _ROLLOUTS * SPANS_OF_ATTEMPT


def steady(backend: str, folder: Path, spans: int) -> list[dict[str, Any]]:
    """Measure resident megabytes of the server of one backend, which is `http`, while it takes `spans` spans."""
    servers: list[subprocess.Popen[str]] = []
    try:
        uri = served(f"sqlite:///{folder}/steady.db", servers)
        return asyncio.run(_steady(backend, uri, servers[0].pid, spans))
    finally:
        for process in servers:
            process.terminate()
            process.wait()


async def _steady(backend: str, uri: str, pid: int, spans: int) -> list[dict[str, Any]]:
    store = await open_store(uri)
    found: list[dict[str, Any]] = []
    rounds = max(-(-spans // _AT_ONCE), POINTS)
    began = time.perf_counter()
    try:
        for number in range(rounds):
            await _round(store, number)
            if (number + 1) * POINTS // rounds > number * POINTS // rounds:
                stored = (number + 1) * _AT_ONCE
                speed = stored / (time.perf_counter() - began)
                found.append({"backend": backend, "spans": stored, "spans_per_s": speed, **_resident(pid)})
        total = (await store.statistics())["total_spans"]
    finally:
        await store.close()
    if total != rounds * _AT_ONCE:
        raise SystemExit(f"{total} spans were stored, not {rounds * _AT_ONCE}")
    return found


async def _round(store: LightningStore, number: int) -> None:
    """Bring some rollouts from their beginning to their end."""
    attempts = await claim(store, _ROLLOUTS)
    spans = make_spans("light", attempts, _AT_ONCE, number * _AT_ONCE)
    commits = [spans[start : start + _COMMIT] for start in range(0, len(spans), _COMMIT)]
    await asyncio.gather(*(store.add_many_spans(commit) for commit in commits))
    ends = [store.update_attempt(one.rollout_id, one.attempt_id, status="succeeded") for one in attempts]
    await asyncio.gather(*ends)


def _resident(pid: int) -> dict[str, float]:
    """What the process holds now, and the most it has ever held."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        raise SystemExit("what a process holds is read from /proc, which this system does not have")
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    kilobytes = {"resident_mb": lines["VmRSS"], "peak_mb": lines["VmHWM"]}
    return {name: int(value.split()[0]) / 1024 for name, value in kilobytes.items()}
