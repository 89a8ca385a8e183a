"""A real runner over a store in memory: runs an agent's attempts without worker processes or a gateway.

Model calls fail unless a gateway is given; everything else is as in training.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout, RolloutConfig, RolloutMode, Task
from leyden.core.data.span import Span
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.config import RunnerConfig
from leyden.core.runner.runner import Runner
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore

TEST_KEY = b"leyden-testing-key-of-32-bytes.."
NO_GATEWAY = "http://127.0.0.1:9"
"""A URL at which no server listens."""
PATIENCE_SECONDS = 10.0


def runner_config(**changes: Any) -> RunnerConfig:
    """Return a configuration whose runner stops quickly; `changes` are fields of `RunnerConfig`."""
    given: dict[str, Any] = {
        "worker_id": "worker",
        "gateway_url": NO_GATEWAY,
        "key": TEST_KEY,
        "poll_seconds": 0.05,
        "cancel_seconds": 0.1,
    }
    return RunnerConfig(**{**given, **changes})


@contextlib.asynccontextmanager
async def running(
    store: LightningStore, agent: Any, *, runner: Runner | None = None, **changes: Any
) -> AsyncGenerator[Runner]:
    """Run `agent` on the queued rollouts of `store`, inside the block; `changes` as in `runner_config`.

    `agent` may be an `AgentSource`. A given `runner` is used instead of a new one.
    """
    stopped = asyncio.Event()
    source = agent if isinstance(agent, AgentSource) else AgentSource.of(agent)
    runner = runner or Runner(store, source, config=runner_config(**changes))
    task = asyncio.create_task(runner.run_until(stopped))
    try:
        yield runner
    finally:
        stopped.set()
        await asyncio.wait_for(task, PATIENCE_SECONDS)


def patient_store() -> MemoryStore:
    """Return a store whose clock stands still.

    Only the runner then ends attempts that take too long, however busy the machine is.
    """
    began = time.time()
    return MemoryStore(lambda: began)


async def finished(store: LightningStore, rollout_ids: Sequence[str]) -> list[AttemptedRollout]:
    """Return the rollouts with their latest attempts, once all have ended; raises TimeoutError when one does not."""
    found = await store.wait_for_rollouts(rollout_ids=rollout_ids, timeout=PATIENCE_SECONDS)
    if len(found) < len(rollout_ids):
        raise TimeoutError(f"{len(rollout_ids) - len(found)} of {len(rollout_ids)} rollouts did not end")
    return [rollout for rollout in found if isinstance(rollout, AttemptedRollout)]


async def run_one(
    agent: Any,
    task: Task = "task",
    *,
    mode: RolloutMode | None = None,
    config: RolloutConfig | None = None,
    store: LightningStore | None = None,
    **changes: Any,
) -> tuple[AttemptedRollout, list[Span]]:
    """Run one rollout to its end and return it with the spans of all its attempts; `changes` as in `runner_config`."""
    store = store or MemoryStore()
    rollout = await store.enqueue_rollout(task, mode=mode, config=config)
    async with running(store, agent, **changes):
        (ended,) = await finished(store, [rollout.rollout_id])
    return ended, (await store.query_spans(rollout.rollout_id)).items


def error_of(rollout: AttemptedRollout) -> dict[str, str]:
    """Return why the latest attempt failed: `kind`, `type` and `message`; empty when it did not fail."""
    return rollout.attempt.metadata.get("error", {})


def rewards_in(spans: Sequence[Span]) -> list[Any]:
    """Return the values of all reward spans, in order."""
    return [span.attributes[semconv.REWARD_VALUE] for span in spans if span.name == semconv.REWARD]
