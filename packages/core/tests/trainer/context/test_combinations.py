"""What a run's table of weights and prompts holds, and that prompts which did not change are not evaluated twice."""

from typing import Any, cast

from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.context.combinations import CombinationEvaluation
from leyden.core.trainer.context.resource_versions import ResourceVersions
from leyden.core.trainer.run_folder.report import HeldOutResult, RunReport
from leyden.core.trainer.run_folder.versions import Evaluation

REWARDS = {"initial-prompts": 0.25, "initial-weights": 0.5}


class RecordingServing:
    """Records which version is served, in place of a run's serving side."""

    def __init__(self) -> None:
        self.served: list[tuple[str, int, bool]] = []

    async def serve(self, models: dict[str, str], version: int, *, first: bool = False) -> None:
        self.served.append((models["policy"], version, first))


async def evaluated(*, changes: bool) -> tuple[RunReport, RecordingServing, list[tuple[str, str, str | None, int]]]:
    """Return the report, what was served, and each evaluation with the version that was served during it."""
    store, serving = MemoryStore(), RecordingServing()
    prompt: NamedResources = {"prompt": PromptTemplate(template="old")}
    versions = ResourceVersions(store, prompt, lambda given: given)
    if changes:
        await versions.publish(versions.changed({"prompt": PromptTemplate(template="new")}))
    seen: list[tuple[str, str, str | None, int]] = []

    async def measure(name: str, label: str, resources_id: str | None = None) -> Evaluation:
        version = serving.served[-1][1] if serving.served else 7
        seen.append((name, label, "old" if resources_id else resources_id, version))
        return Evaluation(success=REWARDS[label], rewards={"0": REWARDS[label]})

    report = RunReport(name="r", seed=0, held_out={"val": HeldOutResult(tasks=2, before=0.0, after=1.0)})
    evaluation = CombinationEvaluation(
        held_out=("val",),
        measure=measure,
        serving=cast("Any", serving),
        initial=lambda name: cast("Any", f"initial {name}"),
        versions=versions,
    )
    await evaluation.run(cast("Any", {"policy": "trained"}), 7, report)
    await store.close()
    return report, serving, seen


async def test_two_of_four_combinations_are_evaluated_and_the_trained_weights_are_served_again() -> None:
    report, serving, seen = await evaluated(changes=True)
    found = report.combinations["val"]
    assert found.initial_weights_initial_prompts == 0.0
    assert found.initial_weights_final_prompts == REWARDS["initial-weights"]
    assert found.final_weights_initial_prompts == REWARDS["initial-prompts"]
    assert found.final_weights_final_prompts == 1.0
    assert not found.is_share
    assert serving.served == [("initial policy", 0, True), ("trained", 7, False)]
    assert seen == [("val", "initial-prompts", "old", 7), ("val", "initial-weights", None, 0)]


async def test_prompts_that_did_not_change_are_not_evaluated_again() -> None:
    report, serving, seen = await evaluated(changes=False)
    found = report.combinations["val"]
    assert (found.initial_weights_final_prompts, found.final_weights_initial_prompts) == (0.0, 1.0)
    assert (serving.served, seen) == ([], [])
