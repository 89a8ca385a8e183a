"""Adjusted logits against one number at a time in plain Python, in the order that `Sampling` documents."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leyden.core.data.sampling import Sampling
from leyden.core.engine.embedded.adjusted_logits import Adjustment, ResponseSoFar, adjusted
from leyden.core.grammar.compiler import Bits

VOCAB = 45


@dataclass(frozen=True)
class Row:
    prompt: list[int]
    response: list[int]
    sampling: Sampling
    allowed: frozenset[int] | None

    def adjustment(self) -> Adjustment:
        so_far = ResponseSoFar(self.prompt, self.sampling)
        for token in self.response:
            so_far.take(token)
        return so_far.adjustment(None if self.allowed is None else bits(self.allowed))


def bits(allowed: frozenset[int]) -> Bits:
    words = [sum(1 << n for n in range(32) if 32 * word + n in allowed) for word in range((VOCAB + 31) // 32)]
    return np.array(words, dtype=np.uint32).view(np.int32)


def by_hand(logits: Sequence[float], row: Row) -> list[float]:
    sampling, counts = row.sampling, Counter(row.response)
    biases = dict.fromkeys(range(VOCAB), 0.0)
    for token, bias in sampling.logit_bias:
        biases[token] += bias
    found: list[float] = []
    for token, logit in enumerate(logits):
        if row.allowed is not None and token not in row.allowed:
            found.append(-float("inf"))
            continue
        logit += biases[token]
        if token in row.prompt or token in row.response:
            logit = logit / sampling.repetition_penalty if logit > 0 else logit * sampling.repetition_penalty
        logit -= counts[token] * sampling.frequency_penalty
        logit -= sampling.presence_penalty if counts[token] else 0.0
        found.append(logit)
    return found


TOKENS = st.integers(0, VOCAB - 1)
SMALL = st.floats(-2, 2).map(lambda value: round(value, 3))
SAMPLINGS = st.builds(
    Sampling,
    presence_penalty=st.just(0.0) | SMALL,
    frequency_penalty=st.just(0.0) | SMALL,
    repetition_penalty=st.just(1.0) | st.sampled_from([0.5, 1.3, 4.0]),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from([-100.0, -0.5, 3.0]), max_size=4).map(
        lambda found: tuple(found.items())
    ),
)
ROWS = st.builds(
    Row,
    prompt=st.lists(TOKENS, max_size=12),
    response=st.lists(TOKENS, max_size=40),
    sampling=SAMPLINGS,
    allowed=st.none() | st.frozensets(TOKENS, min_size=1),
)


@given(rows=st.lists(st.none() | ROWS, min_size=1, max_size=4), seed=st.integers(0, 99), rounded=st.booleans())
def test_logits_are_adjusted_in_the_documented_order(rows: list[Row | None], seed: int, rounded: bool) -> None:
    logits_BV = 4 * torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if rounded:  # as a model in bfloat16 gives them
        logits_BV = logits_BV.bfloat16().float()
    before_BV = logits_BV.clone()

    found_BV = adjusted(logits_BV, [None if row is None else row.adjustment() for row in rows])

    plain: Any = before_BV.double()
    expected = [
        logits if row is None else by_hand(logits, row) for logits, row in zip(plain.tolist(), rows, strict=True)
    ]
    assert torch.equal(logits_BV, before_BV)
    assert found_BV.dtype == logits_BV.dtype
    torch.testing.assert_close(
        found_BV.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5 if rounded else 1e-12, atol=1e-5
    )


@given(row=ROWS)
def test_earlier_adjustments_do_not_change_with_later_tokens(row: Row) -> None:
    so_far = ResponseSoFar(row.prompt, row.sampling)
    given: list[Adjustment] = []
    for token in row.response:
        given.append(so_far.adjustment())
        so_far.take(token)

    for at, one in enumerate(given):
        fresh = Row(row.prompt, row.response[:at], row.sampling, None).adjustment()
        assert dict(zip(one.counted_K, one.counts_K, strict=True)) == dict(
            zip(fresh.counted_K, fresh.counts_K, strict=True)
        )
        assert set(one.seen_K) == set(fresh.seen_K)


def test_the_gradient_is_that_of_finite_differences() -> None:
    """Close to no kink: a repetition penalty has one where a logit is 0."""
    rows = [
        Row([1, 2], [3, 3, 4], Sampling(repetition_penalty=1.5, frequency_penalty=0.5, logit_bias=((3, 1.0),)), None),
        Row([0], [5], Sampling(presence_penalty=0.7), frozenset({1, 5, 9})),
        Row([], [], Sampling(), frozenset({2, 7})),
    ]
    adjustments: list[Adjustment | None] = [row.adjustment() for row in rows]
    logits_BV = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    logits_BV = (logits_BV + logits_BV.sign() * 1.1).requires_grad_()

    def kept(logits_BV: Tensor) -> Tensor:
        found_BV = adjusted(logits_BV, [*adjustments, None]).log_softmax(-1)
        return found_BV.masked_fill(found_BV.isneginf(), 0.0)

    assert torch.autograd.gradcheck(kept, (logits_BV,))
