"""Prompt services: find the prompt components of an agent, and compare two prompts on the same tasks."""

from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

import msgspec

from leyden.core.data.bounds import check_bound
from leyden.core.data.resources import LLM, PromptTemplate
from leyden.core.data.rollout import Rollout, Task
from leyden.core.errors import UsageError
from leyden.core.gateway.upstream.prices import PriceList
from leyden.core.trainer.rollouts.interrupted import fatal_error
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.services.dev import DevPlan, DryRollout, dry_rollouts, dry_run
from leyden.core.trainer.services.prompt_trial import (
    VARIANTS,
    Prompts,
    PromptTrial,
    Variant,
    VariantName,
    check_variants,
    compare_variants,
)
from leyden.core.trajectory.prompts.discover import FoundPrompts, RecordedCalls, find_prompts


def discover_prompts(
    plan: DevPlan, agent: Any, tasks: Sequence[Task]
) -> tuple[FoundPrompts, Sequence[RecordedRollout]]:
    """Run `agent` once on each task; return the prompt components in its model calls, and the recorded rollouts.

    `agent` is a live object, an import string, or the words of a command line. Raises what `dry_run` raises.
    """
    results = dry_run(plan, agent, tasks, show=False)
    return find_prompts([_calls_of(result) for result in results]), results


def try_prompts(
    plan: DevPlan,
    agent: Any,
    tasks: Sequence[Task],
    reward: Any = None,
    *,
    a: Variant | Prompts | None = None,
    b: Variant | Prompts | None = None,
    repeats: int = 1,
    on_progress: Callable[[int], None] = lambda _: None,
) -> PromptTrial:
    """Run `agent` on each task as both variants say, `repeats` times, and compare B with A.

    Prompts alone are a variant that the plan's policy answers. A variant that is not given is the agent with its own
    prompts. The rollouts of a task follow each other in the queue, and the variant that comes first alternates. Their
    metadata have `trial`, `variant`, `row` and `repeat`. `on_progress` receives the number of finished rollouts.

    Raises UsageError for variants that cannot be compared, and what `dry_rollouts` raises. A reward function that fails
    ends the trial with RewardError, and a task that does not fit the agent with TaskError.
    """
    check_bound("repeats", repeats)
    given: dict[VariantName, Variant] = {"a": _variant(a), "b": _variant(b)}
    variants: dict[VariantName, Prompts] = {name: variant.prompts for name, variant in given.items()}
    policies: dict[VariantName, str | None] = {name: own.policy or plan.policy for name, own in given.items()}
    check_variants(variants["a"], variants["b"], same_policy=policies["a"] == policies["b"])
    for resources in variants.values():
        for name, resource in resources.items():
            if isinstance(resource, LLM):
                raise UsageError(
                    f"the resource {name!r} of a variant is an LLM: both variants use the endpoint of the plan"
                )
            if isinstance(resource, PromptTemplate):
                resource.variables()
    order: list[tuple[VariantName, int, int]] = [
        (variant, row, repeat)
        for repeat in range(repeats)
        for row in range(len(tasks))
        for variant in (VARIANTS if (row + repeat) % 2 == 0 else VARIANTS[::-1])
    ]
    trial_id = token_hex(4)
    rollouts = [
        DryRollout(
            task=tasks[row],
            resources=dict(variants[variant]),
            rollout_id=f"try-{trial_id}-{variant}-{row}-{repeat}",
            policy=policies[variant],
            policy_version=given[variant].policy_version,
            metadata={"trial": trial_id, "variant": variant, "row": row, "repeat": repeat},
        )
        for variant, row, repeat in order
    ]

    def watch(finished: Sequence[Rollout]) -> None:
        for rollout in finished:
            if (error := fatal_error(rollout)) is not None:
                raise error
        on_progress(len(finished))

    recorded = dict(zip(order, dry_rollouts(plan, agent, rollouts, reward, watch), strict=True))
    prices = PriceList(next((one for one in plan.resources.values() if isinstance(one, LLM)), None))
    trial = compare_variants(tasks, repeats, variants, recorded, prices.call_cost)
    if trial.a.cost is None or trial.b.cost is None:
        why = prices.unknown or "the price list does not have the model, or a call has no count of its tokens"
        trial = msgspec.structs.replace(trial, cost_unknown=why)
    return trial


def _variant(given: Variant | Prompts | None) -> Variant:
    return given if isinstance(given, Variant) else Variant(prompts=given or {})


def _calls_of(result: RecordedRollout) -> RecordedCalls:
    spans = [span for _, of_attempt in result.attempts for span in of_attempt]
    return RecordedCalls(task=result.rollout.input, spans=spans)
