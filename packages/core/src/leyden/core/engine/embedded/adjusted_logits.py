"""Adjusted logits: applies a grammar, a bias and penalties to the logits of a response's next tokens.

The engine applies them while it samples, and the trainer when it recomputes a response. Both use these functions, so
that both compute the same distribution. `Sampling` defines the order.

Shape suffixes: B positions, V vocabulary, W integers of mask bits, K tokens.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leyden.core.data.sampling import Sampling
from leyden.core.grammar.compiler import Bits, GrammarState

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.floating[Any]]


class Adjustment(NamedTuple):
    """What changes the logits at one position of a response."""

    sampling: Sampling
    seen_K: Ints
    """Ids in the prompt or in the response so far; empty without a repetition penalty."""
    counted_K: Ints
    """Ids in the response so far; empty without a presence or frequency penalty."""
    counts_K: Ints
    """How often each of `counted_K` is in the response so far."""
    bits_W: Bits | None = None
    """Tokens that the grammar allows; None without a grammar."""


_NONE: Ints = np.empty(0, dtype=np.int64)


class ResponseSoFar:
    """The tokens of one response, as far as they change the logits of the next one."""

    def __init__(self, prompt_ids: Sequence[int], sampling: Sampling, grammar: GrammarState | None = None) -> None:
        self.grammar = grammar
        self._sampling = sampling
        self._seen = dict.fromkeys(prompt_ids) if sampling.repetition_penalty != 1 else None
        self._counts = Counter[int]() if sampling.presence_penalty or sampling.frequency_penalty else None

    def take(self, token: int) -> bool:
        """Add a token; return False if the grammar does not allow it."""
        if self._seen is not None:
            self._seen[token] = None
        if self._counts is not None:
            self._counts[token] += 1
        return self.grammar is None or self.grammar.take(token)

    @property
    def penalises(self) -> bool:
        """Whether a penalty or a bias changes the next logits."""
        return self._sampling.penalises

    @property
    def error(self) -> str:
        """Why the grammar failed; empty if it did not."""
        return "" if self.grammar is None else self.grammar.error

    def adjustment(self, bits_W: Bits | None = None) -> Adjustment:
        """Return what changes the logits of the next token; `bits_W` are the tokens that the grammar allows."""
        counts = self._counts
        return Adjustment(
            sampling=self._sampling,
            seen_K=_NONE if self._seen is None else np.fromiter(self._seen, np.int64, len(self._seen)),
            counted_K=_NONE if counts is None else np.fromiter(counts, np.int64, len(counts)),
            counts_K=_NONE if counts is None else np.fromiter(counts.values(), np.int64, len(counts)),
            bits_W=bits_W,
        )


def adjusted(logits_BV: Tensor, adjustments: Sequence[Adjustment | None]) -> Tensor:
    """Return `logits_BV` with the adjustment of each position; a token that a grammar does not allow gets -inf.

    `logits_BV` itself does not change. The result carries its gradient.
    """
    given = [(row, one) for row, one in enumerate(adjustments) if one is not None]
    logits_BV = adjust_rows(logits_BV, given)
    masks = [(row, one.bits_W) for row, one in given if one.bits_W is not None]
    if not masks:
        return logits_BV
    return logits_BV.masked_fill(
        _blocked(logits_BV, [row for row, _ in masks], np.stack([bits for _, bits in masks])), -torch.inf
    )


def adjust_rows(logits_BV: Tensor, given: Sequence[tuple[int, Adjustment]]) -> Tensor:
    """Return `logits_BV` with the biases and penalties of the given rows."""
    logits_BV = _biased(logits_BV, given)
    logits_BV = _less_repetitive(logits_BV, given)
    return _less_frequent(logits_BV, given)


def mask_rows(logits_BV: Tensor, rows: Sequence[int], bits_MW: Bits) -> Tensor:
    """Set the logits of the tokens that the M masks of `rows` do not allow to -inf, in place; return the logits."""
    return logits_BV.masked_fill_(_blocked(logits_BV, rows, bits_MW), -torch.inf)


def _biased(logits_BV: Tensor, given: Sequence[tuple[int, Adjustment]]) -> Tensor:
    vocabulary = logits_BV.shape[1]
    cells = [(row, token, bias) for row, one in given for token, bias in one.sampling.logit_bias if token < vocabulary]
    if not cells:
        return logits_BV
    rows, tokens, biases = zip(*cells, strict=True)
    return logits_BV.index_put(_at(logits_BV, rows, tokens), logits_BV.new_tensor(biases), accumulate=True)


def _less_repetitive(logits_BV: Tensor, given: Sequence[tuple[int, Adjustment]]) -> Tensor:
    rows_N, tokens_N, penalty_N = _cells((row, one.seen_K, one.sampling.repetition_penalty) for row, one in given)
    if not len(rows_N):
        return logits_BV
    at = _at(logits_BV, rows_N, tokens_N)
    before_N, penalties_N = logits_BV[at], logits_BV.new_tensor(penalty_N)
    return logits_BV.index_put(at, torch.where(before_N > 0, before_N / penalties_N, before_N * penalties_N))


def _less_frequent(logits_BV: Tensor, given: Sequence[tuple[int, Adjustment]]) -> Tensor:
    rows_N, tokens_N, less_N = _cells(
        (row, one.counted_K, one.counts_K * one.sampling.frequency_penalty + one.sampling.presence_penalty)
        for row, one in given
    )
    if not len(rows_N):
        return logits_BV
    return logits_BV.index_put(_at(logits_BV, rows_N, tokens_N), -logits_BV.new_tensor(less_N), accumulate=True)


def _blocked(logits_BV: Tensor, rows: Sequence[int], bits_MW: Bits) -> Tensor:
    """Return `blocked_BV`: whether a mask does not allow a token."""
    bytes_MX = bits_MW.astype("<i4", copy=False).view(np.uint8)
    blocked_MV = np.unpackbits(~bytes_MX, axis=1, bitorder="little").view(np.bool_)
    missing = logits_BV.shape[1] - blocked_MV.shape[1]
    if missing > 0:
        blocked_MV = np.pad(blocked_MV, ((0, 0), (0, missing)), constant_values=True)
    blocked = torch.as_tensor(blocked_MV[:, : logits_BV.shape[1]], device=logits_BV.device)
    if len(rows) == len(logits_BV):
        return blocked
    blocked_BV = blocked.new_zeros(logits_BV.shape)
    blocked_BV[torch.as_tensor(rows, device=logits_BV.device)] = blocked
    return blocked_BV


def _cells(parts: Iterable[tuple[int, Ints, float | Floats]]) -> tuple[Ints, Ints, Floats]:
    """Return row, token and value of each cell; a part is a row, its tokens, and one value or one for each token."""
    found = [(row, tokens_K, value) for row, tokens_K, value in parts if len(tokens_K)]
    if not found:
        return _NONE, _NONE, np.empty(0)
    return (
        np.repeat([row for row, _, _ in found], [len(tokens_K) for _, tokens_K, _ in found]),
        np.concatenate([tokens_K for _, tokens_K, _ in found]),
        np.concatenate([np.broadcast_to(value, len(tokens_K)) for _, tokens_K, value in found]),
    )


def _at(logits_BV: Tensor, rows: Sequence[int] | Ints, tokens: Sequence[int] | Ints) -> tuple[Tensor, Tensor]:
    device = logits_BV.device
    return torch.as_tensor(np.asarray(rows), device=device), torch.as_tensor(np.asarray(tokens), device=device)
