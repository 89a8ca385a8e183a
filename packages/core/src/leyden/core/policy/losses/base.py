"""`Loss`, the interface of all losses: turns log-probabilities and advantages of entries into values to minimise.

Invariant: a step's loss is the sum over entries of weight × the entry's loss, and an entry's loss depends only on its
unit. If the entries are divided into whole units, the losses of the parts therefore add up to the loss of all. A unit
is a transition, or `together` consecutive ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from leyden.core.policy.update.ratios import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossEntries:
    """N entries of whole units, as tensors of one device and type."""

    transition_N: "Tensor"
    """Number of the transition of each entry; the numbers are arbitrary, but `together` > 1 depends on their order."""
    logprobs_N: "Tensor"
    """Log-probabilities under the trained policy; with `entropy_N`, the only tensor with a gradient."""
    entropy_N: "Tensor"
    """Entropy, in nats, of the distribution at each target's position."""
    proximal_N: "Tensor"
    """Denominator of the ratios: log-probabilities of the behaviour policy, or the trainer's own before the step.

    NaN if none were recorded; only a loss that uses no ratios gets such values.
    """
    reference_N: "Tensor"
    """Log-probabilities under the reference policy, NaN without one."""
    advantages_N: "Tensor"
    weights_N: "Tensor"

    @property
    def log_ratio_N(self) -> "Tensor":
        """The log-ratio of π to π_proximal, limited to ±20 so that its exponential and its gradient stay finite."""
        return (self.logprobs_N - self.proximal_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryLosses:
    """The loss of each entry, before weights."""

    loss_N: "Tensor"
    clipped_N: "Tensor | None" = None
    """Which entries the loss clips, so that they change the policy less or not at all; None: it clips none."""
    noted: "Mapping[str, Tensor]" = field(default_factory=dict[str, "Tensor"])
    """Numbers of the U units by name, all of length U; the log shows their means."""


class Loss(ABC):
    """One loss; its fields are its options."""

    together: ClassVar[int] = 1
    """Consecutive transitions that form one unit."""
    reads_advantages: ClassVar[bool] = True
    reads_ratios: ClassVar[bool] = True
    """Whether it uses `proximal_N`."""
    reads_reference: ClassVar[bool] = False

    @abstractmethod
    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""


def clipped_surrogate(ratio_N: "Tensor", advantages_N: "Tensor", low: float, high: float) -> "tuple[Tensor, Tensor]":
    """Return PPO's clipped surrogate, negated, -min(r A, clip(r, 1 - low, 1 + high) A), and where it clips."""
    plain_N = ratio_N * advantages_N
    held_N = ratio_N.clamp(1.0 - low, 1.0 + high) * advantages_N
    return -plain_N.minimum(held_N), (held_N < plain_N).detach()
