"""Entries: what a loss sees, one per trained token. Knows nothing of sequences sharing tokens, batches or models.

An entry is (transition, position, target, log-probability the ratio is taken against, advantage, weight), the
temperature the target was drawn at and, where one is used, a reference policy's log-probability. Weights are fixed
here, before anything is merged or batched, so that no later arrangement changes what the entries' sum means.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leyden.core.data.transition import Transition

Normalisation = Literal["token", "rollout", "constant"]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What a trainer found out, before a step, about the T response tokens of a transition."""

    proximal_T: Floats
    """Log-probabilities under the policy whose ratio to the trained one is clipped."""
    reference_T: Floats
    """Log-probabilities under the reference policy; NaN where there is none, so that none can be used by mistake."""
    adjustment_T: Floats
    """Added to the advantage."""
    factor_T: Floats
    """Multiplies the weight."""

    @classmethod
    def nothing(cls, transition: Transition) -> "Measured":
        """The behaviour policy is the proximal one, and nothing is adjusted."""
        behaviour_T = behaviour(transition)
        zeros_T = np.zeros_like(behaviour_T)
        return cls(behaviour_T, zeros_T + np.nan, zeros_T, zeros_T + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedTransition:
    """A transition and what the policy should make of it."""

    transition: Transition
    advantage: float
    measured: Measured | None = None
    """The trainer's own findings; None: there are none."""

    @property
    def rollout(self) -> tuple[str, str]:
        """(rollout id, attempt id): calls are merged, and rollouts counted, within one attempt."""
        return (self.transition.rollout_id, self.transition.attempt_id)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """N entries of one token sequence."""

    transition_N: Ints
    """Index of the transition in the list the entries were made from."""
    position_N: Ints
    """Index, in the sequence, of the token whose output predicts the target: the target stands at position + 1."""
    target_N: Ints
    proximal_N: Floats
    """The behaviour policy's log-probability, as recorded, unless the trainer measured another to compare with."""
    reference_N: Floats
    advantage_N: Floats
    weight_N: Floats
    temperature_N: Floats

    def __len__(self) -> int:
        return len(self.target_N)


def behaviour(transition: Transition) -> Floats:
    """Return the recorded log-probabilities of the response, `behaviour_T`; NaN where none were recorded."""
    if not transition.logprobs:
        return np.full(len(transition.response_ids), np.nan)
    return np.asarray(transition.logprobs, dtype=np.float64)


def step_weights(
    trained: Sequence[WeightedTransition], normalisation: Normalisation, tokens_per_rollout: int | None = None
) -> list[float]:
    """Return for each transition the weight of each of its response tokens, by `normalised` over the whole step."""
    lengths = [(item.rollout, len(item.transition.response_ids)) for item in trained]
    return normalised(lengths, normalisation, tokens_per_rollout)


def normalised(
    lengths: Sequence[tuple[Hashable, int]], normalisation: Normalisation, tokens_per_rollout: int | None = None
) -> list[float]:
    """Return, for transitions given as (rollout, number of response tokens), the weight of each one's tokens.

    `token`: every token of the step weighs the same. `rollout`: every rollout weighs the same, and so do its tokens.
    With either, a step's weights sum to 1. `constant`: every token weighs 1 / (rollouts × `tokens_per_rollout`), which
    no length enters (Dr. GRPO, arXiv 2503.20783).
    """
    tokens = Counter[Hashable]()
    for rollout, length in lengths:
        tokens[rollout] += length
    if normalisation == "rollout":
        return [1.0 / (len(tokens) * tokens[rollout]) for rollout, _ in lengths]
    if normalisation == "token":
        return [1.0 / tokens.total()] * len(lengths)
    if tokens_per_rollout is None:
        raise ValueError("constant normalisation needs tokens_per_rollout")
    return [1.0 / (len(tokens) * tokens_per_rollout)] * len(lengths)


def entries_of(index: int, item: WeightedTransition, weight: float) -> Entries:
    """Return the entries of transition number `index`, positioned in its own prompt followed by its response."""
    transition = item.transition
    count = len(transition.response_ids)
    first = len(transition.prompt_ids) - 1
    measured = item.measured or Measured.nothing(transition)
    return Entries(
        transition_N=np.full(count, index, dtype=np.int64),
        position_N=np.arange(first, first + count, dtype=np.int64),
        target_N=np.asarray(transition.response_ids, dtype=np.int64),
        proximal_N=measured.proximal_T,
        reference_N=measured.reference_T,
        advantage_N=item.advantage + measured.adjustment_T,
        weight_N=weight * measured.factor_T,
        temperature_N=np.full(count, transition.temperature, dtype=np.float64),
    )


def joined(parts: Sequence[Entries]) -> Entries:
    """Return the entries of all `parts`, in order."""
    names = [field.name for field in fields(Entries)]
    return Entries(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
