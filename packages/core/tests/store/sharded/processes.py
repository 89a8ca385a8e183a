"""A process that claims rollouts of a store until none is left, and prints their names, one a line."""

import asyncio
import sys

from leyden.core.store.open import open_store


async def main(uri: str, worker_id: str) -> None:
    store = await open_store(uri)
    while claims := await store.dequeue_many_rollouts(limit=5, worker_id=worker_id, timeout=1.0):
        for claim in claims:
            sys.stdout.write(f"{claim.rollout_id}\n")
            await store.update_attempt(claim.rollout_id, "latest", status="succeeded")
    await store.close()


asyncio.run(main(*sys.argv[1:]))
