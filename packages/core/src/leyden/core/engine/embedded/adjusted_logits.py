"""Adjusted logits: applies a grammar, a bias and penalties to the logits of a response's next tokens.

The engine applies them while it samples, and the trainer when it recomputes a response. Both use these functions, so
that both compute the same distribution. `Sampling` defines the order.

Shape suffixes: B positions, V vocabulary, W integers of mask bits, K tokens.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leyden.core.data.sampling import Sampling
from leyden.core.grammar.compiler import Bits

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


class _Distinct:
    """Distinct ids in the order in which they first occur. Arrays that were returned before never change."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(ids))}
        self._ids: Ints = np.fromiter(self._places, np.int64, len(self._places))

    def place(self, token: int) -> int:
        """Return the index of `token`, which is added if it is new."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(max(16, place), dtype=np.int64)])
        if place == len(self._places) - 1:
            self._ids[place] = token
        return place

    def ids(self) -> Ints:
        """Return the ids so far."""
        return self._ids[: len(self._places)]


class ResponseSoFar:
    """The tokens of one response, as far as they change the logits of the next one."""

    def __init__(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        self._sampling = sampling
        self._seen = _Distinct(prompt_ids) if sampling.repetition_penalty != 1 else None
        self._counted = _Distinct(()) if sampling.presence_penalty or sampling.frequency_penalty else None
        self._counts: list[int] = []

    def take(self, token: int) -> None:
        """Add a token."""
        if self._seen is not None:
            self._seen.place(token)
        if self._counted is not None:
            place = self._counted.place(token)
            self._counts += [0] if place == len(self._counts) else []
            self._counts[place] += 1

    def adjustment(self, bits_W: Bits | None = None) -> Adjustment:
        """Return what changes the logits of the next token; `bits_W` are the tokens that the grammar allows."""
        if self._seen is None and self._counted is None:
            return Adjustment(self._sampling, _NONE, _NONE, _NONE, bits_W)
        return Adjustment(
            sampling=self._sampling,
            seen_K=_NONE if self._seen is None else self._seen.ids(),
            counted_K=_NONE if self._counted is None else self._counted.ids(),
            counts_K=_NONE if self._counted is None else np.array(self._counts, dtype=np.int64),
            bits_W=bits_W,
        )


def adjusted(logits_BV: Tensor, adjustments: Sequence[Adjustment | None]) -> Tensor:
    """Return `logits_BV` with the adjustment of each position; a token that a grammar does not allow gets -inf.

    `logits_BV` itself does not change. The result carries its gradient.
    """
    given = [(row, one) for row, one in enumerate(adjustments) if one is not None]
    if not given:
        return logits_BV
    if penalised := [(row, one) for row, one in given if one.sampling.penalises]:
        logits_BV = _biased(logits_BV, penalised)
        logits_BV = _less_repetitive(logits_BV, penalised)
        logits_BV = _less_frequent(logits_BV, penalised)
    return _masked(logits_BV, [(row, one.bits_W) for row, one in given if one.bits_W is not None])


def _biased(logits_BV: Tensor, given: list[tuple[int, Adjustment]]) -> Tensor:
    vocabulary = logits_BV.shape[1]
    cells = [(row, token, bias) for row, one in given for token, bias in one.sampling.logit_bias if token < vocabulary]
    if not cells:
        return logits_BV
    rows, tokens, biases = zip(*cells, strict=True)
    return logits_BV.index_put(_at(logits_BV, rows, tokens), logits_BV.new_tensor(biases), accumulate=True)


def _less_repetitive(logits_BV: Tensor, given: list[tuple[int, Adjustment]]) -> Tensor:
    rows_N, tokens_N, penalty_N = _cells((row, one.seen_K, one.sampling.repetition_penalty) for row, one in given)
    if not len(rows_N):
        return logits_BV
    at = _at(logits_BV, rows_N, tokens_N)
    before_N, penalties_N = logits_BV[at], logits_BV.new_tensor(penalty_N)
    return logits_BV.index_put(at, torch.where(before_N > 0, before_N / penalties_N, before_N * penalties_N))


def _less_frequent(logits_BV: Tensor, given: list[tuple[int, Adjustment]]) -> Tensor:
    rows_N, tokens_N, less_N = _cells(
        (row, one.counted_K, one.counts_K * one.sampling.frequency_penalty + one.sampling.presence_penalty)
        for row, one in given
        if len(one.counted_K)
    )
    if not len(rows_N):
        return logits_BV
    return logits_BV.index_put(_at(logits_BV, rows_N, tokens_N), -logits_BV.new_tensor(less_N), accumulate=True)


def _masked(logits_BV: Tensor, masks: list[tuple[int, Bits]]) -> Tensor:
    if not masks:
        return logits_BV
    bits_MW = np.concatenate([bits_W for _, bits_W in masks]).reshape(len(masks), -1)  # np.stack takes longer
    bytes_MX = bits_MW.astype("<i4", copy=False).view(np.uint8)
    blocked_MV = np.unpackbits(~bytes_MX, axis=1, count=logits_BV.shape[1], bitorder="little").view(np.bool_)
    blocked = torch.as_tensor(blocked_MV, device=logits_BV.device)
    if len(masks) < len(logits_BV):
        blocked_BV = blocked.new_zeros(logits_BV.shape)
        blocked_BV[torch.tensor([row for row, _ in masks], device=logits_BV.device)] = blocked
        blocked = blocked_BV
    return torch.where(blocked, -torch.inf, logits_BV)  # masked_fill takes longer


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
