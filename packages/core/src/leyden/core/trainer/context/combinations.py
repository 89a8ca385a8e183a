"""Evaluation of what weights and prompts contribute each: initial and final weights with initial and final prompts."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from leyden.core.trainer.context.resource_versions import ResourceVersions, version_id
from leyden.core.trainer.run_folder.report import CombinationResult
from leyden.core.trainer.run_folder.versions import Evaluation

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.trainer.config import RunConfig
    from leyden.core.trainer.context.run_journal import RunJournal
    from leyden.core.trainer.context.trained_policies import TrainedPolicies
    from leyden.core.trainer.serving.serving import Serving

Scores = dict[str, Evaluation]
"""What was earned, by held-out set."""


class TrainedRun(Protocol):
    """What is read of a run's context."""

    config: "RunConfig"
    serving: "Serving"
    models: "TrainedPolicies"
    journal: "RunJournal"
    step: int

    async def measure(self, name: str, label: str, resources_id: str | None, /) -> Evaluation:
        """Run the tasks of a held-out set with a version of the resources; None: the published one."""
        ...


async def evaluate_combinations(
    context: TrainedRun, versions: ResourceVersions, models: "Mapping[str, PolicyModel]"
) -> None:
    """Evaluate what `evaluate("before")` and `evaluate("after")` did not, and put all results into the report.

    The initial weights are served during their evaluation, as version 0, and `models` again afterwards. Prompts that
    did not change are not evaluated twice.
    """
    if not context.config.held_out:
        return
    initial = version_id(versions.initial)
    if initial == versions.resources_id:
        _report(context, {}, {})
        return
    with_initial_prompts = await _evaluate(context, "initial-prompts", initial)
    serving = context.serving
    first = {name: await asyncio.to_thread(context.models.initial, name) for name in models}
    await serving.serve(first, 0, first=True)
    try:
        with_initial_weights = await _evaluate(context, "initial-weights", None)
    finally:
        await serving.serve(models, context.step)
    _report(context, with_initial_weights, with_initial_prompts)


async def _evaluate(context: TrainedRun, label: str, resources_id: str | None) -> Scores:
    return {one.name: await context.measure(one.name, label, resources_id) for one in context.config.held_out}


def _report(context: TrainedRun, with_initial_weights: Scores, with_initial_prompts: Scores) -> None:
    report = context.journal.report
    for name, own in report.held_out.items():
        prompts, weights = with_initial_weights.get(name), with_initial_prompts.get(name)
        report.combinations[name] = CombinationResult(
            initial_weights_initial_prompts=own.before,
            initial_weights_final_prompts=own.before if prompts is None else prompts.success,
            final_weights_initial_prompts=own.after if weights is None else weights.success,
            final_weights_final_prompts=own.after,
            is_share=own.is_share and all(one.is_share for one in (prompts, weights) if one is not None),
        )
