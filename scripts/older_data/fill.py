"""Fills a store with records of every kind, and prints them as JSON: `python -m older_data.fill URI`.

It only uses what the earlier version has, whose environment runs this file as it is.
"""

import asyncio
import itertools
import json
import sys
from typing import Any

from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.data.rollout import Attempt, AttemptedRollout, EnqueueRollout, RolloutConfig
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.data.span import Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from older_data.records import records_of

BEGAN, READ = 1000.0, 2000.0
"""Unix seconds by the clock of the store while it is filled, and while it is read."""
TURNS = 4


def packed(numbers: list[int]) -> bytes:
    """Return token ids as they are stored."""
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def span(attempt: Attempt, number: int, name: str, **fields: Any) -> Span:
    """Return a span of an attempt."""
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=0,
        trace_id=f"{attempt.sequence_id:032x}",
        span_id=f"{number:016x}",
        name=name,
        start_time=BEGAN + number / 8,
        end_time=BEGAN + number / 8 + 0.0625,
        **fields,
    )


def call(attempt: Attempt, turn: int) -> Span:
    """Return a model call whose prompt and messages continue those of the call before."""
    messages = [{"role": "user", "content": "What is 2 + 3? " * 400}]
    messages += [{"role": "assistant", "content": f"turn {n}: naïve 🙂"} for n in range(turn)]
    ids = list(range(200 + 40 * turn))
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.agent.name": "calculator",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": len(ids),
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": f"turn {turn}: naïve 🙂"}]),
        "leyden.call.id": f"call-{turn}",
        "leyden.policy.name": "policy",
        "leyden.policy.version": 2,
        "leyden.policy.versions": [2, 12, 3, 8],
        "leyden.prompt.token_ids": packed(ids),
        "leyden.response.token_ids": packed([500 + n for n in range(20)]),
        "leyden.response.logprobs": b"\x00\x00\x00\xbf" * 20,
        "leyden.response.sampling_logprobs": b"\x00\x00\x00\xbf" * 20,
        "leyden.sampling.used": json.dumps({"temperature": 1.0, "top_p": 1.0}),
    }
    return span(attempt, 10 + turn, "chat gpt-4o", parent_id=f"{1:016x}", attributes=attributes, resource={"host": "a"})


def spans_of(attempt: Attempt) -> list[Span]:
    """Return a span of every kind that an agent leaves."""
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "gen_ai.tool.call.arguments": "{}"}
    odd = {"flag": True, "none at all": "", "floats": [0.5, -1.0], "flags": [True, False], "bytes": b"\x00\xff"}
    return [
        span(attempt, 1, "invoke_agent calculator", attributes={"gen_ai.agent.name": "calculator"}),
        *(call(attempt, turn) for turn in range(TURNS)),
        span(attempt, 2, "execute_tool add", parent_id=f"{1:016x}", attributes={**tool, "leyden.node": "tools"}),
        span(
            attempt,
            3,
            "leyden.exception",
            status=SpanStatus(code="error", description="ValueError: \u0000 is no number"),
            events=[SpanEvent(name="exception", time=BEGAN, attributes={"exception.type": "ValueError"})],
            links=[SpanLink(trace_id="f" * 32, span_id="e" * 16, attributes={"why": "handoff"})],
        ),
        span(attempt, 4, "leyden.object", attributes=odd),
        span(attempt, 5, "leyden.message", attributes={"leyden.role": "user", "leyden.content": "large " * 40_000}),
        span(attempt, 6, "leyden.reward", attributes={"leyden.reward.value": 0.5, "leyden.reward.dimension.exact": 1}),
    ]


async def claim(store: LightningStore, name: str, worker: str = "w-1", **config: Any) -> Attempt:
    """Queue a rollout and claim it."""
    await store.enqueue_rollout({"question": name}, mode="train", config=RolloutConfig(**config), rollout_id=name)
    return await claimed(store, name, worker)


async def claimed(store: LightningStore, name: str, worker: str = "w-1") -> Attempt:
    """Claim the rollout, which is the only one in the queue."""
    rollout = await store.dequeue_rollout(worker)
    assert isinstance(rollout, AttemptedRollout) and rollout.rollout_id == name
    return rollout.attempt


async def end(store: LightningStore, attempt: Attempt, status: Any, **metadata: Any) -> None:
    """End an attempt."""
    await store.update_attempt(attempt.rollout_id, attempt.attempt_id, status=status, metadata=metadata)


async def fill_rollouts(store: LightningStore) -> None:
    """Store rollouts and attempts of every status, and a queue."""
    retried: dict[str, Any] = {"max_attempts": 2, "retry_condition": ("failed", "timeout")}
    attempt = await claim(store, "succeeded")
    for one in spans_of(attempt):
        await store.add_span(one)
    await end(store, attempt, "succeeded", result={"answer": [5, None, "naïve"]})
    attempt = await claim(store, "failed")
    await store.add_many_spans(spans_of(attempt)[:3])
    await end(store, attempt, "failed", error="ValueError: no number")
    attempt = await claim(store, "dropped")
    await store.add_many_spans(spans_of(attempt))
    await end(store, attempt, "succeeded")
    await store.drop_spans("dropped")
    attempt = await claim(store, "cancelled")
    await store.add_span(spans_of(attempt)[0])
    await store.update_rollout("cancelled", status="cancelled")
    await store.enqueue_rollout("cancelled in the queue", rollout_id="never begun")
    await store.update_rollout("never begun", status="cancelled")
    for status in ("failed", "timeout"):
        attempt = await claim(store, f"again after {status}", **retried)
        await store.add_many_spans(spans_of(attempt)[:2])
        await end(store, attempt, status)
        attempt = await claimed(store, f"again after {status}", "w-2")
        await store.add_many_spans(spans_of(attempt)[:4])
        await end(store, attempt, "succeeded")
    by_hand = await store.start_rollout("by hand", mode="test", worker_id="w-3", metadata={"rank": 1, "no": None})
    await end(store, by_hand.attempt, "unresponsive")
    await store.start_attempt(by_hand.rollout_id, worker_id="w-3")
    await claim(store, "preparing", "w-4")
    attempt = await claim(store, "running", "w-5", timeout_seconds=5000.0, unresponsive_seconds=4000.0)
    await store.add_many_spans(spans_of(attempt)[:3])
    await store.get_next_span_sequence_id("running", attempt.attempt_id)
    await store.add_span(call(attempt, 2))
    attempt = await claim(store, "requeuing", **retried)
    await store.add_span(spans_of(attempt)[0])
    await end(store, attempt, "failed", error="lost")
    config = RolloutConfig(max_attempts=3, retry_condition=("unresponsive",), unresponsive_seconds=60.0)
    more = [
        EnqueueRollout(
            input=[1, {"a": None}], mode="val", resources_id="prompts", config=config, rollout_id="queued-1"
        ),
        EnqueueRollout(input="naïve 🙂", metadata={"tags": ["x"], "at": 1.5}, rollout_id="queued-2"),
    ]
    await store.enqueue_many_rollouts(more)


async def fill_the_rest(store: LightningStore) -> None:
    """Store resources, workers and runs."""
    endpoint = LLM(endpoint="http://127.0.0.1:1/v1", model="policy", sampling_parameters={"temperature": 0.5})
    await store.add_resources({"main": endpoint})
    for version in range(3):
        await store.update_resources("prompts", {"prompt": PromptTemplate(template=f"{version}: {{question}}")})
    await store.update_worker("w-2", {"cpu": 0.5, "tags": ["a"]})
    await store.update_worker("w-6", {})
    await store.add_run(Run(run_id="calculator-1", name="calculator", experiment="rates", config={"rate": 1e-4}))
    steps = [StepMetrics(step=step, values={"reward": step / 4}, notes={"alert": "naïve"}) for step in range(3)]
    await store.add_metrics("calculator-1", steps)
    await store.add_metrics("calculator-1", [StepMetrics(step=2, values={"loss": -0.5})])
    versions = [PolicyVersion(run_id="calculator-1", version=n, parent=n - 1, path=f"/runs/{n}") for n in (1, 2)]
    await store.add_policy_versions([*versions, PolicyVersion(run_id="calculator-1", policy="judge", version=0)])
    await store.update_policy_version("calculator-1", 2, note="the best", metrics={"reward": 0.5})
    await store.add_run(Run(run_id="other", name="calculator", metadata={"machine": "a"}))
    await store.update_run("other", status="failed")


async def main(uri: str) -> None:
    """Fill the store at `uri`, and print what it holds then."""
    ticks = itertools.count()
    store = await open_store(uri, clock=lambda: BEGAN + next(ticks) / 64)
    await fill_the_rest(store)
    await fill_rollouts(store)
    await store.close()
    store = await open_store(uri, clock=lambda: READ)
    print(json.dumps(await records_of(store), indent=1))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
