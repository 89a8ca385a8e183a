"""Discovery service: runs an agent on a few tasks, and finds the prompt components in what it sent."""

from collections.abc import Sequence
from typing import Any

from leyden.core.data.rollout import Task
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trainer.services.dev import DevPlan, dry_run
from leyden.core.trajectory.prompts.discover import FoundPrompts, RecordedCalls, find_prompts


def discover_prompts(
    plan: DevPlan, agent: Any, tasks: Sequence[Task]
) -> tuple[FoundPrompts, Sequence[RecordedRollout]]:
    """Run `agent` once on each task; return the prompt components in its model calls, and the recorded rollouts.

    `agent` is a live object, an import string, or the words of a command line. Raises what `dry_run` raises.
    """
    results = dry_run(plan, agent, tasks, show=False)
    return find_prompts([_calls_of(result) for result in results]), results


def _calls_of(result: RecordedRollout) -> RecordedCalls:
    spans = [span for _, of_attempt in result.attempts for span in of_attempt]
    return RecordedCalls(task=result.rollout.input, spans=spans)
