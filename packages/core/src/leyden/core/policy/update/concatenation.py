"""Concatenate and mask: a rollout's calls as one training sequence, in which only the responses are trained.

Other trainers make their data in this way. Leyden has it for comparison, because its own transitions are exact: a token
is trained after the tokens that it was sampled after. A concatenated call may be trained after others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from leyden.core.data.encoding.images import PromptImage
from leyden.core.data.encoding.tokens import TokenIds, token_ids
from leyden.core.data.transition import Transition
from leyden.core.policy.update.entries import WeightedTransition


@dataclass(frozen=True, slots=True)
class Concatenated:
    """The calls of a batch as one sequence for each rollout.

    Invariant: the prompt of a call is the prompt and the response of the call before it, and then its own new part. The
    update therefore reads the calls of a rollout as one sequence.
    """

    transitions: list[WeightedTransition]
    cut: list[Transition]
    """Calls that lie beyond the model's context in their sequence, as they were sampled."""
    moved: int
    """Number of trained calls whose context is not the one that they were sampled in."""
    moved_tokens: int
    """Number of response tokens of these calls."""

    def metrics(self) -> dict[str, float]:
        """Return what the mask trains, as metrics for a log; lengths are in tokens, and shares are of tokens."""
        ends = {item.rollout: item.transition for item in self.transitions}
        lengths_S = np.array([len(last.prompt_ids) + len(last.response_ids) for last in ends.values()])
        trained = sum(len(item.transition.response_ids) for item in self.transitions)
        if not trained:
            return {}
        return {
            "concatenated_sequences": len(lengths_S),
            "concatenated_tokens_mean": float(lengths_S.mean()),
            "concatenated_tokens_max": int(lengths_S.max()),
            "masked_share": 1 - trained / int(lengths_S.sum()),
            "calls_out_of_context": self.moved,
            "out_of_context_share": self.moved_tokens / trained,
        }


class _Sequence:
    """The tokens of one rollout so far, and where a whole prompt begins in them."""

    def __init__(self) -> None:
        self.ids: TokenIds = token_ids(())
        self._images: list[PromptImage] = []
        self._starts: list[int] = [0]
        self.is_cut = False

    def add(self, call: Transition, limit: int | None) -> tuple[Transition, bool] | None:
        """Append a call, and return it with the sequence as its prompt, and whether its context is another one now.

        Returns None, as for every call after it, if the call does not end within `limit` tokens.
        """
        start = next((at for at in self._starts if self._continues(call, at)), None)
        moved = start != 0
        if start is None:
            start = len(self.ids)
        known = len(self.ids) - start
        prompt_ids = self.ids + call.prompt_ids[known:]
        self.is_cut = self.is_cut or (limit is not None and len(prompt_ids) + len(call.response_ids) > limit)
        if self.is_cut:
            return None
        if start == len(self.ids) and start > 0:
            self._starts.append(start)
        self._images += [_shifted(image, start) for image in call.images if image.start >= known]
        self.ids = prompt_ids + call.response_ids
        return replace(call, prompt_ids=prompt_ids, images=tuple(self._images)), moved

    def _continues(self, call: Transition, start: int) -> bool:
        """Return whether the prompt of `call` begins with the sequence from `start` to its end, images included."""
        length = len(self.ids) - start
        if call.prompt_ids[:length] != self.ids[start:]:
            return False
        known = [_place(_shifted(image, -start)) for image in self._images if image.start >= start]
        return known == [_place(image) for image in call.images if image.start < length]


def _shifted(image: PromptImage, by: int) -> PromptImage:
    return msgspec.structs.replace(image, start=image.start + by)


def _place(image: PromptImage) -> tuple[str, int, int]:
    return (image.digest, image.start, image.tokens)


def concatenated(trained: Sequence[WeightedTransition], limit: int | None) -> Concatenated:
    """Return the calls of each attempt, in the given order, with the attempt's sequence so far as their prompts.

    A prompt that begins with the whole sequence adds only what is new in it. A prompt that begins with its end, from
    the place on where an earlier prompt was appended, does so, too. Any other prompt is appended as a whole. A sequence
    ends before the first call that would not end within `limit` tokens, the model's context; None: no limit.
    """
    sequences: dict[tuple[str, str], _Sequence] = {}
    found: list[WeightedTransition] = []
    cut: list[Transition] = []
    moved_calls = moved_tokens = 0
    for item in trained:
        added = sequences.setdefault(item.rollout, _Sequence()).add(item.transition, limit)
        if added is None:
            cut.append(item.transition)
            continue
        call, moved = added
        found.append(replace(item, transition=call))
        moved_calls += moved
        moved_tokens += moved * len(call.response_ids)
    return Concatenated(found, cut, moved_calls, moved_tokens)
