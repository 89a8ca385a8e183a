"""`CreditAssigner`, the seam between what a trajectory earned and what each of its transitions is answerable for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leyden.core.data.transition import Trajectory, Transition
from leyden.core.errors import TrainingError

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credit:
    """What the N transitions of one trajectory are answerable for. Raises TrainingError for numbers that cannot be.

    Returns are whole: nothing is added up along the trajectory any more. An advantage estimator compares them with a
    baseline, each on its own.
    """

    returns_N: Floats
    """What followed from each transition."""
    weights_N: Floats
    """How strongly each is trained: multiplies its advantage. 0 leaves it out, of baselines too."""

    def __post_init__(self) -> None:
        if self.returns_N.ndim != 1 or self.returns_N.shape != self.weights_N.shape:
            raise TrainingError(f"{self.returns_N.shape} returns and {self.weights_N.shape} weights do not match")
        if not np.isfinite(self.returns_N).all():
            raise TrainingError(f"returns must be finite numbers, got {self.returns_N.tolist()}")
        if not (np.isfinite(self.weights_N) & (self.weights_N >= 0)).all():
            raise TrainingError(f"weights must be finite and not negative, got {self.weights_N.tolist()}")

    @classmethod
    def of(cls, returns_N: ArrayLike, weights_N: ArrayLike = 1.0) -> "Credit":
        """Return the credit with these returns; a single weight is everyone's."""
        returns = np.array(returns_N, dtype=np.float64)
        return cls(returns_N=returns, weights_N=np.broadcast_to(np.array(weights_N, dtype=np.float64), returns.shape))


class CreditAssigner(ABC):
    """Says what each call of a trajectory is answerable for. Its fields are its options."""

    @abstractmethod
    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the credit of the trajectory's transitions, in their order.

        None when the trajectory has no reward: silence is excluded and counted, never scored.
        """

    @property
    def roles(self) -> frozenset[str]:
        """Roles that the options name, so that a run can say when nobody speaks in one of them."""
        return frozenset()

    def learned(self) -> "CreditAssigner":
        """Return the scheme whose returns a critic should learn to expect: this one, unless it reads values itself."""
        return self


def roles_of(transition: Transition) -> tuple[str, ...]:
    """The names a call was made under, the most specific first: its node's, its agent's."""
    return tuple(name for name in (transition.node, transition.agent) if name is not None)


def distances_to_end(transitions: Sequence[Transition]) -> NDArray[np.int64]:
    """How many transitions follow each of N: N - 1, ..., 1, 0."""
    return np.arange(len(transitions) - 1, -1, -1, dtype=np.int64)


def returns_to_go(rewards_N: Floats, gamma: float) -> Floats:
    """G_n = r_n + gamma G_(n+1): what is still to come from each transition on, its own reward included."""
    returns_N = np.zeros_like(rewards_N)
    following = 0.0
    for n in range(len(rewards_N) - 1, -1, -1):
        following = rewards_N[n] + gamma * following
        returns_N[n] = following
    return returns_N
