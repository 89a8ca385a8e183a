"""Evaluation of what weights and prompts contribute each: initial and final weights with initial and final prompts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from leyden.core.trainer.context.resource_versions import ResourceVersions, version_id
from leyden.core.trainer.run_folder.report import CombinationResult, RunReport
from leyden.core.trainer.run_folder.versions import Evaluation
from leyden.core.trainer.serving.serving import Serving

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel

Scores = dict[str, Evaluation]
"""What was earned, by held-out set."""


class Measure(Protocol):
    """Evaluates the served weights on a held-out set, with a version of the resources; None: the published one."""

    async def __call__(self, name: str, label: str, resources_id: str | None = None) -> Evaluation:
        """Return what was earned."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationEvaluation:
    """What the evaluation needs of a run."""

    held_out: Sequence[str]
    """Names of the held-out sets."""
    measure: Measure
    serving: Serving
    initial: "Callable[[str], PolicyModel]"
    """Returns the policy of a name with the weights that the run began with."""
    versions: ResourceVersions

    async def run(self, models: "Mapping[str, PolicyModel]", step: int, report: RunReport) -> None:
        """Evaluate what `evaluate("before")` and `evaluate("after")` did not, and put all results into the report.

        The initial weights are served during their evaluation, as version 0, and `models` again afterwards, as version
        `step`. Prompts that did not change are not evaluated twice.
        """
        first = version_id(self.versions.initial)
        if not self.held_out or first == self.versions.resources_id:
            _note(report, {}, {})
            return
        with_initial_prompts = await self._scores("initial-prompts", first)
        initial = {name: await asyncio.to_thread(self.initial, name) for name in models}
        await self.serving.serve(initial, 0, first=True)
        try:
            with_initial_weights = await self._scores("initial-weights", None)
        finally:
            await self.serving.serve(models, step)
        _note(report, with_initial_weights, with_initial_prompts)

    async def _scores(self, label: str, resources_id: str | None) -> Scores:
        return {name: await self.measure(name, label, resources_id) for name in self.held_out}


def _note(report: RunReport, with_initial_weights: Scores, with_initial_prompts: Scores) -> None:
    for name, own in report.held_out.items():
        prompts, weights = with_initial_weights.get(name), with_initial_prompts.get(name)
        report.combinations[name] = CombinationResult(
            initial_weights_initial_prompts=own.before,
            initial_weights_final_prompts=own.before if prompts is None else prompts.success,
            final_weights_initial_prompts=own.after if weights is None else weights.success,
            final_weights_final_prompts=own.after,
            is_share=own.is_share and all(one.is_share for one in (prompts, weights) if one is not None),
        )
