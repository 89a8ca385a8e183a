"""Entries: the inputs of a loss, one for each trained token.

An entry has a transition, a position, a target, a proximal log-probability for the ratio, an advantage and a weight. It
also has the temperature at which the target was sampled, and a reference policy's log-probability if one is used.
Weights are fixed here, before sequences are merged or batched, so that neither changes the sum over the entries.
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
Objects: TypeAlias = NDArray[np.object_]


@dataclass(frozen=True, slots=True, eq=False)
class TokenMeasures:
    """What a trainer computes, before a step, about the T response tokens of a transition."""

    proximal_T: Floats
    """Log-probabilities under the policy in the denominator of the clipped ratio."""
    reference_T: Floats
    """Log-probabilities under the reference policy; NaN without one, so that accidental use is visible."""
    adjustment_T: Floats
    """Added to the advantage."""
    factor_T: Floats
    """Multiplied with the weight."""

    @classmethod
    def nothing(cls, transition: Transition) -> "TokenMeasures":
        """Return the defaults: the behaviour policy is the proximal one, and nothing is adjusted."""
        behaviour_T = behaviour(transition)
        zeros_T = np.zeros_like(behaviour_T)
        return cls(behaviour_T, zeros_T + np.nan, zeros_T, zeros_T + 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedTransition:
    """A transition and its advantage."""

    transition: Transition
    advantage: float
    measured: TokenMeasures | None = None
    """The trainer's measurements; None: not measured."""

    @property
    def rollout(self) -> tuple[str, str]:
        """(rollout id, attempt id): calls are merged, and rollouts counted, within one attempt."""
        return (self.transition.rollout_id, self.transition.attempt_id)


@dataclass(frozen=True, slots=True, eq=False)
class AdjustedEntry:
    """A response token whose logits a grammar, a penalty or a bias changed."""

    transition: Transition
    index: int
    """Index in the response."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """N entries of one token sequence."""

    transition_N: Ints
    """Index of the transition in the list from which the entries were made."""
    position_N: Ints
    """Index in the sequence of the token whose output predicts the target; the target is at position + 1."""
    target_N: Ints
    proximal_N: Floats
    """The behaviour policy's recorded log-probability, unless the trainer measured another one."""
    reference_N: Floats
    advantage_N: Floats
    weight_N: Floats
    temperature_N: Floats
    adjusted_N: Objects
    """The transition and the index in its response of each entry whose logits were adjusted; None for others."""

    def __len__(self) -> int:
        return len(self.target_N)


def behaviour(transition: Transition) -> Floats:
    """Return the recorded log-probabilities of the response, `behaviour_T`; NaN if none were recorded."""
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
    """Return the weight of each transition's tokens; `lengths` are (rollout, number of response tokens).

    `token`: every token of the step has the same weight. `rollout`: every rollout has the same weight, and so have its
    tokens. With both, a step's weights sum to 1. `constant`: every token has weight 1 / (rollouts ×
    `tokens_per_rollout`), which does not depend on any length (Dr. GRPO, arXiv 2503.20783). Raises ValueError for
    `constant` without `tokens_per_rollout`.
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
    """Return the entries of transition number `index`; positions are in its own prompt followed by its response."""
    transition = item.transition
    count = len(transition.response_ids)
    first = len(transition.prompt_ids) - 1
    measured = item.measured or TokenMeasures.nothing(transition)
    return Entries(
        transition_N=np.full(count, index, dtype=np.int64),
        position_N=np.arange(first, first + count, dtype=np.int64),
        target_N=np.asarray(transition.response_ids, dtype=np.int64),
        proximal_N=measured.proximal_T,
        reference_N=measured.reference_T,
        advantage_N=item.advantage + measured.adjustment_T,
        weight_N=weight * measured.factor_T,
        temperature_N=np.full(count, transition.temperature, dtype=np.float64),
        adjusted_N=adjusted_entries(transition),
    )


def adjusted_entries(transition: Transition) -> Objects:
    """Return `Entries.adjusted_N` of a transition."""
    found: Objects = np.full(len(transition.response_ids), None)
    if transition.sampling is not None:
        for at in range(len(found)):
            found[at] = AdjustedEntry(transition, at)
    return found


def joined(parts: Sequence[Entries]) -> Entries:
    """Return the entries of all `parts`, in order."""
    names = [field.name for field in fields(Entries)]
    return Entries(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
