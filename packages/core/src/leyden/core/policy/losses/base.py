"""`Loss`, the seam between what the policy should make of its tokens and a number to minimise.

Invariant: a step's loss is the sum over entries of weight × the entry's loss, and an entry's loss depends on nothing
outside its unit. So the losses of any partition of the entries into whole units add up to the loss of all of them. A
unit is a transition, or `together` consecutive ones. Losses know nothing of models, sequences or batches.
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
    """Which transition each entry belongs to; any numbers, but `together` > 1 counts on their order."""
    logprobs_N: "Tensor"
    """Under the policy being trained; the one tensor, with `entropy_N`, that carries a gradient."""
    entropy_N: "Tensor"
    """Entropy, in nats, of the distribution each target was drawn from."""
    proximal_N: "Tensor"
    """Log-probabilities that ratios are taken against: the behaviour policy's, or the trainer's own before the step.
    NaN where none were recorded, which only a loss that takes no ratios is shown."""
    reference_N: "Tensor"
    """Log-probabilities under the reference policy, NaN where there is none."""
    advantages_N: "Tensor"
    weights_N: "Tensor"

    @property
    def log_ratio_N(self) -> "Tensor":
        """The log-ratio of π to π_proximal, held within ±20 so that its exponential and its gradient stay finite."""
        return (self.logprobs_N - self.proximal_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryLosses:
    """The loss of each entry, before weights."""

    loss_N: "Tensor"
    clipped_N: "Tensor | None" = None
    """Which entries the loss holds back from moving the policy as they would; None: it holds none back."""
    noted: "Mapping[str, Tensor]" = field(default_factory=dict[str, "Tensor"])
    """Numbers of the U units, by name, for the log, which shows their means; all of one length."""


class Loss(ABC):
    """One loss; its fields are its options."""

    together: ClassVar[int] = 1
    """Consecutive transitions that make one unit."""
    reads_advantages: ClassVar[bool] = True
    reads_ratios: ClassVar[bool] = True
    """Whether it compares with `proximal_N`."""
    reads_reference: ClassVar[bool] = False

    @abstractmethod
    def of(self, seen: LossEntries) -> EntryLosses:
        """Return the loss of each entry."""


def clipped_surrogate(ratio_N: "Tensor", advantages_N: "Tensor", low: float, high: float) -> "tuple[Tensor, Tensor]":
    """Return PPO's pessimistic bound, negated, -min(r A, clip(r, 1 - low, 1 + high) A), and where it clips."""
    plain_N = ratio_N * advantages_N
    held_N = ratio_N.clamp(1.0 - low, 1.0 + high) * advantages_N
    return -plain_N.minimum(held_N), (held_N < plain_N).detach()
