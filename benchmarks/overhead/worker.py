"""One fresh process: imports a framework, lets something record it, and measures calls, rollouts and memory.

    python -m overhead.worker FRAMEWORK WAY CALLS ROLLOUTS

It runs under any Python that holds the framework and what records; of Leyden it needs nothing by itself.
"""

import asyncio
import gc
import json
import logging
import statistics
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from overhead import model
from overhead.driver import driver_for
from overhead.ways import WAYS, Work, tally

BLOCKS = 16
"""The measured runs are done in so many blocks. Neighbours on the machine only ever add, and for seconds at a time:
what a run takes is read from the quickest quarter of the blocks."""
WARM_UP = 10
"""One in so many of the measured runs comes before, unmeasured, and at least three do."""


async def main(framework: str, way: str, calls: int, rollouts: int) -> dict[str, Any]:
    """Measure; microseconds, seconds and bytes."""
    began = time.process_time()
    driver = driver_for(framework)
    imported = time.process_time()
    async with WAYS[way](driver) as work:
        ready = time.process_time()
        found = {"framework_s": imported - began, "import_s": ready - imported}
        found |= {f"call_{key}": value for key, value in (await _timed(work.call, work, calls)).items()}
        found |= {f"rollout_{key}": value for key, value in (await _timed(work.run, work, rollouts)).items()}
        return found | await _memory(work, rollouts)


async def _timed(make: Callable[[], Awaitable[object]], work: Work, count: int) -> dict[str, float]:
    """CPU time of this process and spans for each run, and the median by the clock, of the quickest blocks."""
    for _ in range(max(3, count // WARM_UP)):
        await make()
    await work.settle()
    gc.collect()
    spans, done = tally.spans, 0
    clock, spent = list[float](), list[float]()
    for block in range(1, min(BLOCKS, count) + 1):
        size = count * block // min(BLOCKS, count) - done
        done += size
        began = time.process_time()
        clock.append(statistics.median([await _once(make) for _ in range(size)]))
        await work.settle()
        spent.append((time.process_time() - began) / size)
    return {
        "cpu_us": 1e6 * _quickest(spent),
        "p50_us": 1e6 * _quickest(clock),
        "spans": (tally.spans - spans) / count,
    }


async def _once(make: Callable[[], Awaitable[object]]) -> float:
    """Run, and return the seconds by the clock."""
    started = time.perf_counter()
    await make()
    return time.perf_counter() - started


def _quickest(seconds: list[float]) -> float:
    """The mean of the quickest quarter."""
    return statistics.mean(sorted(seconds)[: max(1, len(seconds) // 4)])


async def _memory(work: Work, rollouts: int) -> dict[str, float]:
    """Bytes that a rollout holds while it waits for its model, and that it leaves behind."""
    tracemalloc.start()
    await work.run()
    before = await _settled(work)
    model.gate.shut()
    running = [asyncio.ensure_future(work.run()) for _ in range(model.CROWD)]
    while model.gate.waiting < model.CROWD:
        await asyncio.sleep(0.01)
    held = await _settled(work) - before
    model.gate.let_go()
    await asyncio.gather(*running)
    del running
    sizes: list[int] = []
    for _ in range(2):  # after the first, what is made once is made
        for _ in range(rollouts):
            await work.run()
        sizes.append(await _settled(work))
    kept = sizes[1] - sizes[0]
    return {"held_bytes": held / model.CROWD, "kept_bytes": kept / rollouts}


async def _settled(work: Work) -> int:
    await work.settle()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # what the others say of themselves is not compared
    _, framework, way, calls, rollouts = sys.argv
    print(json.dumps(asyncio.run(main(framework, way, int(calls), int(rollouts)))))
