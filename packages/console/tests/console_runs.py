"""Runs for tests, as their folders hold them: two steps, a group of four rollouts, and one held-out rollout."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from leyden.core.algorithm.account import Account
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.span import Span, SpanStatus
from leyden.core.policy.update.token_record import PolicyTokens, TokenNumbers, TrainedCall
from leyden.core.store.base import LightningStore
from leyden.core.testing.factories import transition
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import HeldOutResult, KeptVersion, RunReport
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile

GROUP = "train-v0-b0-0"
CALL = f"{1:016x}"
"""Id of the model call of each rollout."""


def call_attributes() -> dict[str, Any]:
    """Attributes of the gateway's record of a call with three tokens."""
    return {
        semconv.OPERATION: "chat",
        semconv.CALL_ID: "c",
        semconv.POLICY: "policy",
        semconv.POLICY_VERSION: 0,
        semconv.POLICY_VERSIONS: [0, 3],
        semconv.AGENT_NAME: "solver",
        semconv.INPUT_TOKENS: 2,
        semconv.OUTPUT_TOKENS: 3,
        semconv.FINISH_REASONS: ["stop"],
        semconv.INPUT_MESSAGES: '[{"role": "user", "content": "What is 1 + 1?"}]',
        semconv.OUTPUT_MESSAGES: '[{"role": "assistant", "content": "It is 2."}]',
        semconv.PROMPT_IDS: pack_ids([5, 6]),
        semconv.RESPONSE_IDS: pack_ids([7, 8, 9]),
        semconv.RESPONSE_LOGPROBS: pack_log_probs([-0.5, -1.0, -2.0]),
        semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.5, -1.0, -2.0]),
        semconv.SAMPLING_USED: '{"temperature": 1.0}',
    }


def numbers(losses: list[float], weights: list[float] | None = None) -> TokenNumbers:
    """Numbers of a call's tokens."""
    count = len(losses)
    return TokenNumbers(
        logprobs=np.full(count, -1.0),
        log_ratios=np.zeros(count),
        advantages=np.full(count, 0.5),
        weights=np.full(count, 0.1) if weights is None else np.array(weights),
        losses=np.array(losses),
        clipped=np.zeros(count),
        entropy=np.full(count, 0.2),
    )


def run_apart(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: Playwright has an event loop in that of the test."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


async def add_rollout(
    store: LightningStore,
    rollout_id: str,
    mode: Any = "train",
    reward: float | None = 1.0,
    error: str = "",
    metadata: dict[str, Any] | None = None,
    question: str = "What is 1 + 1?",
    attributes: dict[str, Any] | None = None,
) -> None:
    """Store a finished rollout: an agent that calls a model, a tool and a reward."""
    await store.enqueue_rollout(
        {"question": question}, mode=mode, rollout_id=rollout_id, metadata=metadata or {"task": "0/0", "row": 3}
    )
    claimed = await store.dequeue_rollout("worker-1")
    assert claimed is not None
    attempt = claimed.attempt.attempt_id
    agent = f"{2:016x}"

    def span(number: int, name: str, parent: str | None = agent, **fields: Any) -> Span:
        fields = {"span_id": f"{number:016x}", "start_time": float(number), "end_time": number + 0.5, **fields}
        return Span(
            rollout_id=rollout_id,
            attempt_id=attempt,
            sequence_id=0,
            trace_id="0" * 32,
            parent_id=parent,
            name=name,
            **fields,
        )

    spans = [
        span(
            2, "invoke_agent solver", None, attributes={semconv.OPERATION: "invoke_agent", semconv.AGENT_NAME: "solver"}
        ),
        span(1, "chat model", attributes=call_attributes() | (attributes or {})),
        span(
            3,
            "execute_tool calculator",
            status=SpanStatus(code="error", description="division by zero"),
            attributes={
                semconv.OPERATION: "execute_tool",
                semconv.TOOL_NAME: "calculator",
                semconv.TOOL_ARGUMENTS: '{"expression": "1 / 0"}',
            },
        ),
    ]
    if reward is not None:
        spans.append(span(4, semconv.REWARD, None, attributes={semconv.REWARD_VALUE: reward}))
    await store.add_many_spans(spans)
    if error:
        failure = {"kind": "agent", "type": "ValueError", "message": error}
        await store.update_attempt(rollout_id, attempt, "failed", metadata={"error": failure})
    else:
        await store.update_attempt(rollout_id, attempt, "succeeded")


async def fill(store: LightningStore) -> None:
    """Store the rollouts of the run."""
    await add_rollout(store, "val-val-before-v0-agent-0", "val", 0.0, metadata={"task": 0})
    for number, reward in enumerate([1.0, 0.0, None]):
        await add_rollout(store, f"{GROUP}-{number}", reward=reward)
    await add_rollout(store, f"{GROUP}-3", reward=None, error="<img src=x onerror=alert(1)>")


def made_run(runs: Path, name: str = "small", *, finished: bool = True) -> RunFolder:
    """Write a run of two steps."""
    config = RunConfig(
        name=name,
        experiment="first",
        agent="agent.py:agent",
        policy="policy",
        steps=2,
        held_out=(EvaluationSet(name="val", source="val.jsonl"),),
        algorithm_config={"learning_rate": 1e-4},
    )
    folder = RunFolder.create(runs, config, [{"question": "What is 1 + 1?"}], {"val": [{"question": "What is 2 + 2?"}]})
    folder.append_metrics({"step": 0, "held_out": "val", "success": 0.25})
    trained = [f"{GROUP}-{number}" for number in range(2)]
    for step in (1, 2):
        loss = 0.3 * step
        folder.append_learned(
            step, [Account(trained=trained if step == 1 else [], rollouts={"no reward": [f"{GROUP}-2"]})]
        )
        calls = [
            TrainedCall(transition(rollout_id=name, attempt_id=f"{name}-a1", span_id=CALL), numbers([loss / 6] * 3))
            for name in trained
        ]
        folder.token_records.write(step, {"policy": PolicyTokens.of(loss, 1, calls)})
        folder.append_metrics(
            {"step": step, "reward": step / 4, "groups": 4, "groups_with_spread": 1, "loss": loss, "seconds": 2.0}
        )
    folder.append_metrics({"step": 2, "alert": "entropy_collapse", "message": "entropy is low"})
    folder.append_metrics({"step": 2, "held_out": "val", "success": 0.75})
    for number, success in ((0, 0.25), (2, 0.75)):
        evaluation = Evaluation(success=success, rewards={str(task): float(task < 4 * success) for task in range(4)})
        VersionFile(folder.path).append(
            ModelVersion(
                run=name,
                version=number,
                parent=None,
                created=1.0,
                algorithm="lightning_rl",
                seed=0,
                held_out={"val": evaluation},
            )
        )
    if finished:
        report = RunReport(
            name=name,
            seed=0,
            steps=2,
            seconds=4.0,
            held_out={"val": HeldOutResult(tasks=4, before=0.25, after=0.75)},
            kept=KeptVersion(version=2, success=0.75, why="the last one"),
            seconds_by_phase={"rollouts": 3.0, "update": 1.0},
        )
        folder.write_report(report)

    async def stored() -> None:
        store = await folder.store_location.open()
        await fill(store)
        await store.close()

    run_apart(stored())
    return folder
