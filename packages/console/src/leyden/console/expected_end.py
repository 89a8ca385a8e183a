"""When a running run will end, from the wall-clock time of its steps and evaluations so far."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

RECENT = 10
"""Steps, and evaluations, from which the time of one is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do."""

    steps: int
    eval_every: int = 0
    has_held_out: bool = False

    def evaluations_after(self, version: int) -> int:
        """Return the number of later versions that will be evaluated, with the last one in any case."""
        if not self.has_held_out:
            return 0
        every = self.eval_every or self.steps
        return sum(one == self.steps or one % every == 0 for one in range(version + 1, self.steps + 1))


def expected_end(
    plan: Plan, created: Mapping[int, float], seconds: Mapping[int, float], evaluated: Collection[int]
) -> float | None:
    """Return when the run will end, in seconds since the epoch; None if an evaluation is to come and none was timed.

    `created` has the time at which each version of the current session was recorded, `seconds` those of each step,
    which do not include evaluations, and `evaluated` the versions that were evaluated.
    """
    steps, evaluations = list[float](), list[float]()
    for before, version in pairwise(sorted(created)):
        if version != before + 1 or version not in seconds:
            continue
        whole = created[version] - created[before]
        # a version is recorded after its evaluation, but the first one before it
        measured = (version in evaluated) + (before == 0 and 0 in evaluated)
        if measured:
            steps.append(seconds[version])
            evaluations += [max(0.0, whole - seconds[version]) / measured] * measured
        else:
            steps.append(whole)
    if not steps:
        return None
    last = max(created)
    due = plan.evaluations_after(last)
    if last == plan.steps and plan.has_held_out and last not in evaluated:
        due = 1
    if due and not evaluations:
        return None
    left = (plan.steps - last) * _recent(steps) + due * _recent(evaluations)
    return created[last] + left if left > 0 else None


def _recent(values: Sequence[float]) -> float:
    return mean(values[-RECENT:]) if values else 0.0
