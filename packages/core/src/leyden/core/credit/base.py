"""`CreditAssigner`: the interface of credit schemes, which turn a trajectory's reward into a return per transition."""

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
    """Returns and weights of the N transitions of one trajectory. Raises TrainingError for invalid numbers.

    Returns are complete: they are not added up along the trajectory. An advantage estimator compares each of them with
    a baseline.
    """

    returns_N: Floats
    """The return of each transition."""
    weights_N: Floats
    """Training weight of each transition, which multiplies its advantage. 0 leaves it out, also from baselines."""

    def __post_init__(self) -> None:
        if self.returns_N.ndim != 1 or self.returns_N.shape != self.weights_N.shape:
            raise TrainingError(f"{self.returns_N.shape} returns and {self.weights_N.shape} weights do not match")
        if not np.isfinite(self.returns_N).all():
            raise TrainingError(f"returns must be finite numbers, got {self.returns_N.tolist()}")
        if not (np.isfinite(self.weights_N) & (self.weights_N >= 0)).all():
            raise TrainingError(f"weights must be finite and not negative, got {self.weights_N.tolist()}")

    @classmethod
    def of(cls, returns_N: ArrayLike, weights_N: ArrayLike = 1.0) -> "Credit":
        """Return the credit with these returns; a single weight applies to all transitions."""
        returns = np.array(returns_N, dtype=np.float64)
        return cls(returns_N=returns, weights_N=np.broadcast_to(np.array(weights_N, dtype=np.float64), returns.shape))


class CreditAssigner(ABC):
    """Assigns a return and a weight to each call of a trajectory. Its fields are its options."""

    @abstractmethod
    def assign(self, trajectory: Trajectory) -> Credit | None:
        """Return the credit of the trajectory's transitions, in their order.

        Returns None if the trajectory has no reward: such trajectories are excluded and counted, never scored.
        """

    @property
    def roles(self) -> frozenset[str]:
        """Roles named in the options, so that a run can warn if no transition has one of them."""
        return frozenset()

    def learned(self) -> "CreditAssigner":
        """Return the scheme whose returns a critic should learn: this one, unless it reads values itself."""
        return self


def roles_of(transition: Transition) -> tuple[str, ...]:
    """Return the names under which a call was made, the most specific first: its node, its agent."""
    return tuple(name for name in (transition.node, transition.agent) if name is not None)


def distances_to_end(transitions: Sequence[Transition]) -> NDArray[np.int64]:
    """Return for each of N transitions how many follow it: N - 1, ..., 1, 0."""
    return np.arange(len(transitions) - 1, -1, -1, dtype=np.int64)


def returns_to_go(rewards_N: Floats, gamma: float) -> Floats:
    """Return G_n = r_n + gamma G_(n+1): each transition's own reward plus the discounted rewards after it."""
    returns_N = np.zeros_like(rewards_N)
    following = 0.0
    for n in range(len(rewards_N) - 1, -1, -1):
        following = rewards_N[n] + gamma * following
        returns_N[n] = following
    return returns_N
