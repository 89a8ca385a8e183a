"""Merging: turns a rollout's calls into as few token sequences as possible, by exact extension.

Invariant: merged or not, the entries are the same, and each has the same tokens before its target. The placeholder
tokens of an image are replaced by ids of their own, so different images are different tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leyden.core.data.encoding.images import FIRST_IMAGE_ID, PromptImage
from leyden.core.data.encoding.tokens import TokenIds, token_ids
from leyden.core.data.transition import Transition
from leyden.core.policy.update.entries import Entries, WeightedTransition, entries_of, joined


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """Tokens that the model reads once, and the entries trained on them."""

    ids: TokenIds
    entries: Entries
    images: Mapping[int, PromptImage] = field(default_factory=dict[int, PromptImage])
    """Images by the id of their first token; may have images of other sequences too."""


class ImageNumbers:
    """Ids for the tokens of the images of some transitions, from `FIRST_IMAGE_ID` on."""

    def __init__(self) -> None:
        self.images: dict[int, PromptImage] = {}
        """The images by the id of their first token."""
        self._firsts: dict[tuple[str, int], int] = {}
        self._next = FIRST_IMAGE_ID

    def prompt(self, transition: Transition) -> TokenIds:
        """Return the ids of a transition's prompt, with those of its images in place of the placeholders."""
        if not transition.images:
            return transition.prompt_ids
        ids = transition.prompt_ids[:]
        for image in transition.images:
            first = self._first(image)
            ids[image.start : image.start + image.tokens] = token_ids(range(first, first + image.tokens))
        return ids

    def _first(self, image: PromptImage) -> int:
        key = (image.digest, image.tokens)
        if key not in self._firsts:
            self._firsts[key] = self._next
            self.images[self._next] = image
            self._next += image.tokens
        return self._firsts[key]


@dataclass(slots=True)
class _Open:
    """A sequence that later calls may still extend."""

    ids: TokenIds
    parts: list[Entries] = field(default_factory=list[Entries])

    def closed(self, images: Mapping[int, PromptImage]) -> TokenSequence:
        return TokenSequence(ids=self.ids, entries=joined(self.parts), images=images)


def unmerged(trained: Sequence[WeightedTransition], weights: Sequence[float]) -> list[TokenSequence]:
    """Return one sequence per transition: its prompt followed by its response."""
    numbers = ImageNumbers()
    return [
        TokenSequence(
            ids=numbers.prompt(item.transition) + item.transition.response_ids,
            entries=entries_of(i, item, weight),
            images=numbers.images,
        )
        for i, (item, weight) in enumerate(zip(trained, weights, strict=True))
    ]


def merged(trained: Sequence[WeightedTransition], weights: Sequence[float]) -> list[TokenSequence]:
    """Return sequences in which a call continues the longest earlier sequence that its prompt extends exactly.

    Only calls of the same attempt are merged, in the given order. They need not be consecutive: a sub-agent's call in
    between does not break the sequence. If two calls extend the same sequence, the first continues it.
    """
    open_by_rollout: dict[tuple[str, str], list[_Open]] = {}
    numbers = ImageNumbers()
    for index, (item, weight) in enumerate(zip(trained, weights, strict=True)):
        sequences = open_by_rollout.setdefault(item.rollout, [])
        prompt_ids = numbers.prompt(item.transition)
        extended = [sequence for sequence in sequences if prompt_ids[: len(sequence.ids)] == sequence.ids]
        if extended:
            sequence = max(extended, key=lambda candidate: len(candidate.ids))
        else:
            sequence = _Open(prompt_ids)
            sequences.append(sequence)
        sequence.ids = prompt_ids + item.transition.response_ids
        sequence.parts.append(entries_of(index, item, weight))
    return [sequence.closed(numbers.images) for sequences in open_by_rollout.values() for sequence in sequences]
