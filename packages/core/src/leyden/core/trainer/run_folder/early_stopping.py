"""Which version of a policy a run keeps, and when it may stop, from what each earned on held-out tasks.

Pure functions. A version is better when its mean reward is higher; at a tie the earlier stays, as nothing shows that
more training helped. For stopping early, a rise counts only beyond chance: see `Kept.judged`.
"""

import math
from statistics import fmean, stdev

import msgspec

from leyden.core.trainer.run_folder.versions import Evaluation


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The best version so far, and how long nothing noticeable has come of going on."""

    version: int
    success: float
    """Mean reward."""
    evaluations: int = 1
    """How many versions have been evaluated."""
    reference: dict[str, float]
    """Rewards by task of the version that last rose noticeably; the next has to rise above it."""
    without_rise: int = 0
    """Evaluations since then."""

    @classmethod
    def first(cls, version: int, evaluation: Evaluation) -> "Kept":
        """The first version that is evaluated."""
        return cls(version=version, success=_success(evaluation), reference=evaluation.rewards)

    def judged(self, version: int, evaluation: Evaluation) -> "Kept":
        """What is kept once `version` is evaluated.

        Its rewards are compared task by task with the reference's: the mean difference has to be above 0, and above
        its own standard error, which that of a single task more never is. The reference is the version that rose last,
        not the best so far, so that slow but steady gains add up until they are noticed; a best that came of luck
        resets nothing.
        """
        success = _success(evaluation)
        better = success > self.success
        rose = rises(self.reference, evaluation.rewards)
        return Kept(
            version=version if better else self.version,
            success=success if better else self.success,
            evaluations=self.evaluations + 1,
            reference=evaluation.rewards if rose else self.reference,
            without_rise=0 if rose else self.without_rise + 1,
        )


def _success(evaluation: Evaluation) -> float:
    if evaluation.success is None:
        raise ValueError("a version that earned nothing at all cannot be compared")
    return evaluation.success


def rises(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether the mean difference over the tasks of both is positive and larger than its standard error."""
    differences = [after[task] - before[task] for task in before.keys() & after.keys()]
    if not differences:
        return False
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return fmean(differences) > error * (1 + 1e-9)  # equal, up to rounding, where a single task was won
