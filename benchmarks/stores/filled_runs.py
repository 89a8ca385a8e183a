"""Runs with finished rollouts, as training would have left them: folders, stores, steps and spans."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from leyden.core.algorithm.account import Account
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.data.span import Span
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder

SPANS = 20
"""Spans of a rollout."""
GROUP = 8
"""Rollouts of a group."""


def new_run(runs: Path, name: str) -> RunFolder:
    """Make the folder of a run."""
    config = RunConfig(name=name, agent="agent.py:agent", policy="policy", tasks="tasks.jsonl", steps=100_000)
    return RunFolder.create(runs, config, [{"question": f"What is {number}?"} for number in range(64)], {})


def fill(folder: RunFolder, count: int, step: int = 1) -> None:
    """Write `count` finished rollouts, a hundred a step, into a run. In a thread: Playwright has a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _fill(folder, count, step)).result()


async def _fill(folder: RunFolder, count: int, step: int) -> None:
    store = await folder.store_location.open()
    try:
        for first in range(0, count, 100):
            await add(store, folder, step + first // 100, min(100, count - first))
    finally:
        await store.close()


async def add(store: LightningStore, folder: RunFolder, step: int, count: int) -> None:
    """Write a step and its rollouts."""
    ids = [f"train-v{step}-b{step}-{number // GROUP}-{number % GROUP}" for number in range(count)]
    await store.enqueue_many_rollouts(
        [
            EnqueueRollout(
                input={"question": f"What is {number}?"},
                mode="train",
                rollout_id=rollout,
                metadata={"task": f"{step}/{number // GROUP}", "row": number // GROUP},
            )
            for number, rollout in enumerate(ids)
        ]
    )
    claimed = await store.dequeue_many_rollouts(limit=count, worker_id="benchmark")
    spans = [span_of(one.rollout_id, one.attempt.attempt_id, number) for one in claimed for number in range(SPANS)]
    await store.add_many_spans(spans)
    for one in claimed:
        await store.update_attempt(one.rollout_id, one.attempt.attempt_id, "succeeded")
    folder.append_learned(step, [Account(trained=ids[: count // 2], rollouts={"no spread": ids[count // 2 :]})])
    folder.append_metrics(
        {"step": step, "reward": 0.5, "groups": 13, "groups_with_spread": 8, "loss": 0.1, "seconds": 1.0}
    )


def span_of(rollout: str, attempt: str, number: int) -> Span:
    """Return one span of a rollout: model calls, tools, and at the end the reward."""
    attributes: dict[str, Any] = {semconv.OPERATION: "execute_tool", semconv.TOOL_NAME: "calculator"}
    name = "tool"
    if number == SPANS - 1:
        name, attributes = semconv.REWARD, {semconv.REWARD_VALUE: float(hash(rollout) % 3) / 2}
    elif number % 3 == 0:
        name, attributes = (
            "chat",
            {
                semconv.OPERATION: "chat",
                semconv.CALL_ID: f"c{number}",
                semconv.POLICY: "policy",
                semconv.POLICY_VERSION: 0,
                semconv.AGENT_NAME: "solver",
                semconv.INPUT_MESSAGES: '[{"role": "user", "content": "What is 1 + 1?"}]',
                semconv.OUTPUT_MESSAGES: '[{"role": "assistant", "content": "It is 2."}]',
                semconv.PROMPT_IDS: pack_ids(range(100)),
                semconv.RESPONSE_IDS: pack_ids(range(20)),
                semconv.RESPONSE_LOGPROBS: pack_log_probs([-0.5] * 20),
            },
        )
    return Span(
        rollout_id=rollout,
        attempt_id=attempt,
        sequence_id=0,
        trace_id="0" * 32,
        span_id=f"{number + 1:016x}",
        parent_id=None if number == 0 else f"{1:016x}",
        name=name,
        attributes=attributes,
        start_time=float(number),
        end_time=number + 0.5,
    )
