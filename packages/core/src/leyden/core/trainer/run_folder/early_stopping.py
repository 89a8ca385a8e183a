"""Early stopping: chooses the version that a run keeps, and when it may stop, from rewards on held-out tasks.

The functions are pure. A version is better when its mean reward is higher. On a tie the earlier version stays, because
nothing shows that more training helped. For early stopping, a rise counts only beyond chance; see `BestVersion.judged`.
"""

import math
from statistics import fmean, stdev

import msgspec

from leyden.core.trainer.run_folder.versions import Evaluation


class BestVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The best version so far, and the number of evaluations without a noticeable rise."""

    version: int
    success: float
    """Mean reward."""
    evaluations: int = 1
    """Number of versions evaluated."""
    reference: dict[str, float]
    """Rewards by task of the last version with a noticeable rise; the next rise is measured against it."""
    without_rise: int = 0
    """Number of evaluations since that version."""

    @classmethod
    def first(cls, version: int, evaluation: Evaluation) -> "BestVersion":
        """Return the state after the first evaluated version."""
        return cls(version=version, success=_success(evaluation), reference=evaluation.rewards)

    def judged(self, version: int, evaluation: Evaluation) -> "BestVersion":
        """Return the state after the evaluation of `version`.

        Its rewards are compared with those of the reference, task by task. A rise is noticeable if the mean difference
        is above 0 and above its standard error. One more solved task alone never meets this. The reference is the
        version of the last rise, not the best version: slow but steady gains then add up until they are noticeable, and
        a best version that was lucky resets nothing.
        """
        success = _success(evaluation)
        better = success > self.success
        rose = rises(self.reference, evaluation.rewards)
        return BestVersion(
            version=version if better else self.version,
            success=success if better else self.success,
            evaluations=self.evaluations + 1,
            reference=evaluation.rewards if rose else self.reference,
            without_rise=0 if rose else self.without_rise + 1,
        )


def _success(evaluation: Evaluation) -> float:
    if evaluation.success is None:
        raise ValueError("a version without any reward cannot be compared")
    return evaluation.success


def rises(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether the mean difference over the common tasks is positive and larger than its standard error."""
    differences = [after[task] - before[task] for task in before.keys() & after.keys()]
    if not differences:
        return False
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences) > error * (1 + 1e-9)  # a single gained task makes both equal, up to rounding
