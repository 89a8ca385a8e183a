"""Kills writers of a store in Redis, or Redis itself, at random moments, and holds the store to what it acknowledged.

`rounds` is what tests and campaigns call; run as a program, this file is one of the writers, which notes in a file of
its own what was acknowledged to it.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from leyden.core.data.rollout import Attempt, AttemptedRollout, EnqueueRollout
from leyden.core.errors import StoreError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.redis_server import RedisServer
from leyden.core.testing.store_contract.shared import span_of

WRITERS = 3
USABLE_SECONDS = 5.0
"""After Redis is back, a writer must have stored something within so many seconds."""
_SPANS = 4
_BEGIN_SECONDS = 60.0


@dataclass
class Outcome:
    """What a round did and found."""

    killed: str
    """`writer` or `server`."""
    acknowledged: Counter[str] = field(default_factory=Counter[str])
    """By kind."""
    usable_after: float = 0.0
    """Seconds between the return of Redis and the next thing stored; 0 where a writer was killed."""


def rounds(count: int, folder: Path, seed: int = 0, report: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """Run `count` rounds, which kill a writer and Redis in turn; raises AssertionError when anything was lost."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    with RedisServer() as server:
        for number in range(count):
            place = folder / f"round-{number}"
            place.mkdir()
            outcome = _round(server, f"n{number}", place, ("server", "writer")[number % 2], chance)
            outcomes.append(outcome)
            if report is not None:
                report(outcome)
    return outcomes


def _round(server: RedisServer, namespace: str, folder: Path, killed: str, chance: random.Random) -> Outcome:
    uri = server.uri(namespace)
    outcome = Outcome(killed)
    writers = [subprocess.Popen([sys.executable, __file__, uri, str(folder / f"w{n}")]) for n in range(WRITERS)]
    try:
        _await_all(folder)
        time.sleep(chance.random() * 0.5)
        if killed == "server":
            server.kill()
            server.start()
            back, stored = time.monotonic(), _size(folder)
            _await_more(folder, stored + 1, USABLE_SECONDS)
            outcome.usable_after = time.monotonic() - back
        else:
            writers[0].kill()
            _await_more(folder, _size(folder) + 50, USABLE_SECONDS)
        assert all(writer.poll() is None for writer in writers[killed == "writer" :]), "a writer ended by itself"
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    asyncio.run(_check(uri, folder, outcome))
    return outcome


def _await_all(folder: Path) -> None:
    """Return when every writer has stored something."""
    give_up = time.monotonic() + _BEGIN_SECONDS
    while sum(path.stat().st_size > 0 for path in folder.iterdir()) < WRITERS:
        assert time.monotonic() < give_up, "a writer did not begin"
        time.sleep(0.01)


def _size(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.iterdir())


def _await_more(folder: Path, lines: int, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while _size(folder) < lines:
        assert time.monotonic() < give_up, f"nothing was stored for {seconds} s"
        time.sleep(0.01)


def _noted(folder: Path) -> Iterator[list[str]]:
    for path in sorted(folder.iterdir()):
        yield from (line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))


async def _check(uri: str, folder: Path, outcome: Outcome) -> None:
    """Hold the store to every note, and to itself."""
    store = await open_store(uri)
    claims: Counter[str] = Counter()
    wanted: dict[str, set[str]] = {}
    for kind, rollout_id, *rest in _noted(folder):
        outcome.acknowledged[kind] += 1
        rollout = await store.get_rollout_by_id(rollout_id)
        assert rollout is not None, f"{rollout_id} was acknowledged and is not there"
        if kind == "claimed":
            claims[rest[0]] += 1
            assert isinstance(rollout, AttemptedRollout) and rollout.attempt.attempt_id == rest[0]
        elif kind == "stored":
            wanted.setdefault(rollout_id, set()).add(rest[0])
        elif kind == "finished":
            assert rollout.status == "succeeded", f"{rollout_id} was finished and is {rollout.status}"
    assert not [attempt for attempt, times in claims.items() if times > 1], "claimed twice"
    for rollout_id, span_ids in wanted.items():
        found = list(await store.query_spans(rollout_id))
        assert span_ids <= {span.span_id for span in found}, f"{rollout_id} has lost spans"
        assert [span.sequence_id for span in found] == list(range(1, len(found) + 1))
    await _check_whole(store)
    await store.close()


async def _check_whole(store: LightningStore) -> None:
    """No commit was half made: the queue, the counts and the rollouts agree."""
    counts = await store.statistics()
    rollouts = list(await store.query_rollouts())
    assert counts["total_rollouts"] == len(rollouts)
    assert counts["queue_length"] == sum(rollout.status in ("queuing", "requeuing") for rollout in rollouts)
    assert counts["total_attempts"] == sum(isinstance(rollout, AttemptedRollout) for rollout in rollouts)
    pages = [await store.query_spans(rollout.rollout_id) for rollout in rollouts]
    assert counts["total_spans"] == sum(page.total for page in pages)
    for rollout, spans in zip(rollouts, pages, strict=True):
        if rollout.status == "queuing":
            assert not spans.total
    left = counts["queue_length"]
    while left:  # what was held for one who was killed comes after a moment
        claims = await store.dequeue_many_rollouts(limit=left, timeout=USABLE_SECONDS)
        assert claims, f"{left} rollouts cannot be claimed"
        left -= len(claims)


async def _write(uri: str, path: Path) -> None:
    store = await open_store(uri)
    notes = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def note(*words: str) -> None:
        os.write(notes, (" ".join(words) + "\n").encode())

    await asyncio.gather(*(_lane(store, note, n) for n in range(4)))


async def _lane(store: LightningStore, note: Callable[..., None], lane: int) -> None:
    serial = 0
    while True:
        try:
            for rollout in await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(2)]):
                note("queued", rollout.rollout_id)
            for claim in await store.dequeue_many_rollouts(limit=2, worker_id=f"{os.getpid()}-{lane}"):
                note("claimed", claim.rollout_id, claim.attempt.attempt_id)
                serial += 1
                await _work(store, note, claim.attempt)
        except StoreError as error:
            sys.stderr.write(f"a writer goes on after: {error}\n")


async def _work(store: LightningStore, note: Callable[..., None], attempt: Attempt) -> None:
    for n in range(_SPANS):
        stored = await store.add_span(span_of(attempt, f"{n:x}"))
        assert stored is not None
        note("stored", attempt.rollout_id, stored.span_id)
    await store.update_attempt(attempt.rollout_id, attempt.attempt_id, status="succeeded")
    note("finished", attempt.rollout_id)


if __name__ == "__main__":
    asyncio.run(_write(sys.argv[1], Path(sys.argv[2])))
