"""Several processes over one PostgreSQL database: every rollout is claimed once, and every span has its own number."""

import asyncio
import subprocess
import sys
from collections import Counter

import pytest

from leyden.core.data.rollout import EnqueueRollout
from leyden.core.store.open import open_store
from leyden.core.testing.servers.postgres_server import PostgresServer

CLAIM = """
import asyncio, sys
from leyden.core.store.open import open_store
from leyden.core.testing.store_contract.shared import span_of

async def work(store, name):
    while claims := await store.dequeue_many_rollouts(limit=2, worker_id=name):
        for claim in claims:
            print(claim.attempt.attempt_id, flush=True)
            await store.add_many_spans([span_of(claim.attempt, "1"), span_of(claim.attempt, "2")])
            await store.update_attempt(claim.rollout_id, "latest", status="succeeded")

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    await asyncio.gather(*(work(store, f"{sys.argv[2]}-{n}") for n in range(4)))
    await store.close()

asyncio.run(main())
"""


def process(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLAIM, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("processes", "rollouts"),
    [(3, 60), pytest.param(8, 8000, marks=[pytest.mark.long, pytest.mark.campaign, pytest.mark.timeout(400)])],
)
async def test_each_rollout_is_claimed_once(postgres: PostgresServer, processes: int, rollouts: int) -> None:
    uri = postgres.uri_of(postgres.create())
    store = await open_store(uri)
    workers = [process(uri, f"w{n}") for n in range(processes)]
    queued = await store.enqueue_many_rollouts([EnqueueRollout(input=n) for n in range(rollouts)])
    for worker in workers:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == "open\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    claims = Counter[str]()
    for output, _ in await asyncio.gather(*(asyncio.to_thread(worker.communicate) for worker in workers)):
        claims.update(output.split())
    assert [worker.returncode for worker in workers] == [0] * processes
    assert claims == Counter(f"{rollout.rollout_id}-a1" for rollout in queued)
    statistics = await store.statistics()
    assert (statistics["queue_length"], statistics["total_spans"]) == (0, 2 * rollouts)
    assert {rollout.status for rollout in await store.query_rollouts()} == {"succeeded"}
    await store.close()
