"""Sampling: selects tokens by raw log-probabilities, temperature, min-p, top-k and top-p.

Shape suffixes: B rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from leyden.core.data.encoding.token_sets import TokenBits
from leyden.core.data.sampling import Sampling


class SampledTokens(NamedTuple):
    """One sampled token per row."""

    ids: list[int]
    logprobs: list[float]
    """Log-probabilities at temperature 1, with nothing truncated."""
    sampling_logprobs: list[float]
    """Log-probabilities under the distribution sampled from; the raw one for greedy rows."""
    kept: dict[int, TokenBits]
    """For each row whose distribution was truncated, the tokens that were left, `bits_W`."""


def raw_log_probs(logits_BV: Tensor) -> Tensor:
    """Return the log-probabilities at temperature 1, with nothing truncated."""
    return logits_BV.float().log_softmax(-1)


def likeliest(raw_BV: Tensor, counts: Sequence[int]) -> list[list[tuple[int, float]]]:
    """Return each row's `counts` likeliest (id, log-probability), likeliest first; ties by lower id.

    `torch.topk` does not define the order of ties, nor which of them it leaves out. It is used only for the threshold.
    """
    rows, vocabulary = raw_BV.shape
    last_B1 = torch.tensor([[min(count, vocabulary) - 1] for count in counts], device=raw_BV.device)
    cut_B1 = raw_BV.topk(min(max(counts), vocabulary)).values.gather(1, last_B1)
    cells_N = (raw_BV >= cut_B1).nonzero(as_tuple=True)
    row_N, id_N = (cast("list[int]", cast(Any, tensor).tolist()) for tensor in cells_N)
    logprob_N: list[float] = cast(Any, raw_BV[cells_N]).tolist()
    found = [list[tuple[int, float]]() for _ in range(rows)]
    for row, token, logprob in zip(row_N, id_N, logprob_N, strict=True):
        if logprob > -math.inf:  # a grammar allows fewer tokens than were requested
            found[row].append((token, logprob))
    return [sorted(pairs, key=lambda pair: -pair[1])[:count] for pairs, count in zip(found, counts, strict=True)]


def sample(raw_BV: Tensor, sampling: Sequence[Sampling], uniforms: Sequence[float]) -> SampledTokens:
    """Return a sampled token per row: the likeliest at temperature 0, else by each row's uniform number and the CDF."""
    if all(s.temperature == 0 for s in sampling):
        raw_B, ids_B = raw_BV.max(-1)
        return _to_host(ids_B, raw_B, raw_B, {})
    sampling_BV = _sampling_log_probs(raw_BV, sampling)
    ids_B = _invert_cdf(sampling_BV, uniforms)
    if any(s.temperature == 0 for s in sampling):
        greedy_B = torch.tensor([s.temperature == 0 for s in sampling], device=raw_BV.device)
        ids_B = torch.where(greedy_B, raw_BV.argmax(-1), ids_B)
        sampling_BV = torch.where(greedy_B[:, None], raw_BV, sampling_BV)
    raw_B = raw_BV.gather(1, ids_B[:, None])[:, 0]
    sampling_B = raw_B if sampling_BV is raw_BV else sampling_BV.gather(1, ids_B[:, None])[:, 0]
    truncated = [row for row, one in enumerate(sampling) if one.truncates]
    return _to_host(ids_B, raw_B, sampling_B, _kept(sampling_BV, truncated) if truncated else {})


def _to_host(ids_B: Tensor, raw_B: Tensor, sampling_B: Tensor, kept: dict[int, TokenBits]) -> SampledTokens:
    return SampledTokens(cast(Any, ids_B).tolist(), cast(Any, raw_B).tolist(), cast(Any, sampling_B).tolist(), kept)


def _kept(sampling_BV: Tensor, rows: list[int]) -> dict[int, TokenBits]:
    """Return the tokens with a positive probability in each of `rows`, as sets."""
    possible_RV = (sampling_BV[torch.tensor(rows, device=sampling_BV.device)] > -torch.inf).cpu().numpy()
    missing = -possible_RV.shape[1] % 32
    bits_RW = np.packbits(np.pad(possible_RV, ((0, 0), (0, missing))), axis=1, bitorder="little").view("<i4")
    return dict(zip(rows, bits_RW.astype(np.int32), strict=True))


def _sampling_log_probs(raw_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Return the log-probabilities after temperature and truncation; greedy rows do not change."""
    logprobs_BV = raw_BV
    if any(s.temperature not in (0, 1) for s in sampling):
        temperature_B = torch.tensor([s.temperature or 1.0 for s in sampling], device=raw_BV.device)
        logprobs_BV = (raw_BV / temperature_B[:, None]).log_softmax(-1)
    truncated = [row for row, one in enumerate(sampling) if one.truncates]
    if not truncated:
        return logprobs_BV
    rows = torch.tensor(truncated, device=raw_BV.device)
    return logprobs_BV.index_put((rows,), truncate(logprobs_BV[rows], [sampling[row] for row in truncated]))


def truncate(logprobs_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Return log-probabilities over the tokens that min-p, top-k and top-p leave, in this order; -inf for others.

    Min-p keeps the tokens that have at least this share of the likeliest one's probability (arXiv 2407.01082). Top-k
    keeps the k likeliest. Top-p keeps the fewest likeliest of the remaining tokens that hold at least this share of
    their probability: the nucleus of Holtzman et al. 2020 (arXiv 1904.09751), equation 2. Ties go to the lower id. The
    likeliest token always stays.
    """
    vocabulary, device = logprobs_BV.shape[1], logprobs_BV.device
    sorted_BV, order_BV = logprobs_BV.sort(dim=-1, descending=True, stable=True)
    min_p_B = torch.tensor([one.min_p for one in sampling], dtype=torch.float64, device=device)
    top_k_B = torch.tensor([one.top_k or vocabulary for one in sampling], device=device)
    top_p_B = torch.tensor([one.top_p for one in sampling], dtype=torch.float64, device=device)
    dropped_BV = sorted_BV < (sorted_BV[:, :1] + min_p_B.log()[:, None])
    dropped_BV |= torch.arange(vocabulary, device=device) >= top_k_B[:, None]
    probs_BV = sorted_BV.double().masked_fill(dropped_BV, -torch.inf).softmax(-1)
    before_BV = probs_BV.cumsum(-1) - probs_BV
    dropped_BV |= (before_BV >= top_p_B[:, None]) & (top_p_B < 1)[:, None]
    dropped_BV[:, 0] = False
    sorted_BV = sorted_BV.masked_fill(dropped_BV, -torch.inf).log_softmax(-1)
    return torch.empty_like(sorted_BV).scatter_(1, order_BV, sorted_BV)


def _invert_cdf(logprobs_BV: Tensor, uniforms: Sequence[float]) -> Tensor:
    cdf_BV = logprobs_BV.softmax(-1).cumsum(-1, dtype=torch.float64)  # exp takes three times as long for -inf
    uniform_B1 = torch.tensor(uniforms, dtype=torch.float64, device=cdf_BV.device)[:, None]
    total_B1 = cdf_BV[:, -1:]
    # Below the total, the first larger value belongs to a token with a positive probability.
    below_B1 = torch.minimum(uniform_B1 * total_B1, total_B1.nextafter(torch.zeros_like(total_B1)))
    return torch.searchsorted(cdf_BV, below_B1, right=True)[:, 0]
