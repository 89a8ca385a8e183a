"""`AdjustedResponses`: recomputes what changed the logits of recorded responses: grammars, penalties and biases.

All of it follows from the recorded ids and sampling parameters, so the trainer needs no masks from the engine.
"""

from collections import OrderedDict

from leyden.core.data.encoding.token_sets import unpack_token_sets
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Transition
from leyden.core.engine.embedded.adjusted_logits import Adjustment, ResponseSoFar
from leyden.core.errors import GrammarError, LeydenError, TrainingError
from leyden.core.grammar.compiler import Bits, GrammarCompiler, is_allowed

CACHED_BYTES = 256 << 20
"""Size of the adjustments that are kept; those of the least recently read response are dropped first."""


class AdjustedResponses:
    """Adjustments of the responses of one policy; `source` is the folder or hub name of its tokenizer."""

    def __init__(self, source: str, vocab_size: int) -> None:
        self._grammars = GrammarCompiler(source, vocab_size)
        self._source = source
        self._vocab_size = vocab_size
        self._kept: OrderedDict[str, tuple[Transition, list[Adjustment]]] = OrderedDict()
        self._kept_bytes = 0

    def __deepcopy__(self, memo: object) -> "AdjustedResponses":
        """Return an empty copy: a copy of a model computes the same, and locks cannot be copied."""
        return AdjustedResponses(self._source, self._vocab_size)

    def of(self, transition: Transition) -> list[Adjustment]:
        """Return the adjustment of each response token of a transition that has `sampling`.

        Raises TrainingError if its grammar cannot be used, or does not allow the response; see `why_not`.
        """
        kept = self._kept.get(transition.span_id)
        if kept is not None and _is_same(kept[0], transition):
            self._kept.move_to_end(transition.span_id)
            return kept[1]
        found = self._computed(transition)
        self._keep(transition, found)
        return found

    def why_not(self, transition: Transition) -> str:
        """Return why the distribution that a response was sampled from cannot be recomputed; empty if it can."""
        if transition.sampling is None:
            return ""
        try:
            self._check_ids(transition, transition.sampling)
            self.of(transition)
        except LeydenError as error:
            return str(error)
        return ""

    def masks(self, transition: Transition) -> Bits | None:
        """Return the tokens that could be sampled at each position of a transition's response; None if all could be.

        Raises GrammarError, TrainingError or ValueError if the distribution cannot be recomputed.
        """
        if transition.sampling is None:
            return None
        self._check_ids(transition, transition.sampling)
        return self._masks(transition, transition.sampling)

    def _check_ids(self, transition: Transition, sampling: Sampling) -> None:
        ids = [*(token for token, _ in sampling.logit_bias), *transition.response_ids]
        if not 0 <= min(ids, default=0) <= max(ids, default=0) < self._vocab_size:
            raise TrainingError("it has ids outside the policy's vocabulary")

    def _computed(self, transition: Transition) -> list[Adjustment]:
        sampling = transition.sampling
        assert sampling is not None
        try:
            masks = self._masks(transition, sampling)
        except (GrammarError, ValueError) as error:
            raise TrainingError(f"call {transition.span_id} of rollout {transition.rollout_id}: {error}") from error
        so_far = ResponseSoFar(transition.prompt_ids, sampling)
        found: list[Adjustment] = []
        for at, token in enumerate(transition.response_ids):
            found.append(so_far.adjustment(None if masks is None else masks[at]))
            so_far.take(token)
        return found

    def _masks(self, transition: Transition, sampling: Sampling) -> Bits | None:
        """Return the tokens that could be sampled at each position; None if all could be.

        Truncation left only tokens that the grammar allowed, so its record contains the grammar's masks.
        """
        ids = transition.response_ids
        if transition.kept is None:
            return self._grammars.masks(sampling.grammar, ids) if sampling.grammar else None
        bits_TW = unpack_token_sets(transition.kept, len(ids))
        if not all(is_allowed(bits_W, token) for bits_W, token in zip(bits_TW, ids, strict=True)):
            raise GrammarError("the response has a token that truncation had removed")
        return bits_TW

    def _keep(self, transition: Transition, found: list[Adjustment]) -> None:
        before = self._kept.pop(transition.span_id, None)
        self._kept_bytes += _size(found) - (0 if before is None else _size(before[1]))
        self._kept[transition.span_id] = (transition, found)
        while self._kept_bytes > CACHED_BYTES and len(self._kept) > 1:
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1][1])


def _is_same(one: Transition, other: Transition) -> bool:
    """Whether two transitions are copies of one call; `dataclasses.replace` keeps the ids themselves."""
    names = ("prompt_ids", "response_ids", "sampling", "kept")
    return all(getattr(one, name) is getattr(other, name) for name in names)


def _size(adjustments: list[Adjustment]) -> int:
    arrays = ((one.seen_K, one.counted_K, one.counts_K, one.bits_W) for one in adjustments)
    return sum(array.nbytes for one in arrays for array in one if array is not None)
