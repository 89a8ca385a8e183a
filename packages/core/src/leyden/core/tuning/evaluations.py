"""Evaluations of a trial's runs: the scores that pruning looks at, and those that trials are compared by."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from leyden.core.experiments.definition import Measure
from leyden.core.experiments.results import scores_by_step

STEPS_OF_A_SEED = 1_000_000
"""Positions that the evaluations of one seed take, more than a run has steps."""

Scores = Mapping[str, float]
"""Scores by held-out task."""


def position(seed_number: int, step: int) -> int:
    """Return the position of an evaluation in a trial whose seeds are run one after another."""
    return seed_number * STEPS_OF_A_SEED + step


def described(place: int, seeds: Sequence[int]) -> str:
    """Return a position for display: its step, and the seed if there are several."""
    number, step = divmod(place, STEPS_OF_A_SEED)
    return f"step {step}" + (f" of seed {seeds[number]}" if len(seeds) > 1 else "")


def last_scores(folder: Path, measure: Measure) -> Scores | None:
    """Return the scores by task of the last version of a run that was evaluated; None if none was.

    It is the version after the last step, unless nothing was left to learn before.
    """
    found = scores_by_step(folder, measure)
    return found[max(found)] or None if found else None


def scores_on_the_way(folders: Sequence[Path], measure: Measure) -> dict[int, float]:
    """Return the scores of a trial by position; `folders` are those of its runs so far, in the order of the seeds.

    Each score is the mean over the final scores of the seeds before and the one at this step. The initial policy is
    left out, since it is the same in most trials.
    """
    reported: dict[int, float] = {}
    before: list[float] = []
    for number, folder in enumerate(folders):
        steps = {step: fmean(scores.values()) for step, scores in scores_by_step(folder, measure).items() if scores}
        for step, score in steps.items():
            if step:
                reported[position(number, step)] = fmean([*before, score])
        if steps:
            before.append(steps[max(steps)])
    return reported
