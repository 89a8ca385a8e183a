"""Merging: turns a rollout's calls into as few token sequences as possible, by exact extension.

Invariant: merged or not, the entries are the same, and each has the same tokens before its target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from leyden.core.data.encoding.tokens import TokenIds
from leyden.core.policy.update.entries import Entries, WeightedTransition, entries_of, joined


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """Tokens that the model reads once, and the entries trained on them."""

    ids: TokenIds
    entries: Entries


@dataclass(slots=True)
class _Open:
    """A sequence that later calls may still extend."""

    ids: TokenIds
    parts: list[Entries] = field(default_factory=list[Entries])

    def closed(self) -> TokenSequence:
        return TokenSequence(ids=self.ids, entries=joined(self.parts))


def unmerged(trained: Sequence[WeightedTransition], weights: Sequence[float]) -> list[TokenSequence]:
    """Return one sequence per transition: its prompt followed by its response."""
    return [
        TokenSequence(
            ids=item.transition.prompt_ids + item.transition.response_ids, entries=entries_of(i, item, weight)
        )
        for i, (item, weight) in enumerate(zip(trained, weights, strict=True))
    ]


def merged(trained: Sequence[WeightedTransition], weights: Sequence[float]) -> list[TokenSequence]:
    """Return sequences in which a call continues the longest earlier sequence that its prompt extends exactly.

    Only calls of the same attempt are merged, in the given order. They need not be consecutive: a sub-agent's call in
    between does not break the sequence. If two calls extend the same sequence, the first continues it.
    """
    open_by_rollout: dict[tuple[str, str], list[_Open]] = {}
    for index, (item, weight) in enumerate(zip(trained, weights, strict=True)):
        sequences = open_by_rollout.setdefault(item.rollout, [])
        prompt_ids = item.transition.prompt_ids
        extended = [sequence for sequence in sequences if prompt_ids[: len(sequence.ids)] == sequence.ids]
        if extended:
            sequence = max(extended, key=lambda candidate: len(candidate.ids))
        else:
            sequence = _Open(prompt_ids)
            sequences.append(sequence)
        sequence.ids = prompt_ids + item.transition.response_ids
        sequence.parts.append(entries_of(index, item, weight))
    return [sequence.closed() for sequences in open_by_rollout.values() for sequence in sequences]
