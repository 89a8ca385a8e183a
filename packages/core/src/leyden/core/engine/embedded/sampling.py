"""Sampling: selects tokens by raw log-probabilities, temperature and top-p.

Shape suffixes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from leyden.core.data.sampling import Sampling


class SampledTokens(NamedTuple):
    """One sampled token per row."""

    ids: list[int]
    logprobs: list[float]
    """Log-probabilities under the raw distribution."""
    sampling_logprobs: list[float]
    """Log-probabilities under the distribution sampled from; the raw one for greedy rows."""


def raw_log_probs(logits_BV: Tensor) -> Tensor:
    """Return the log-probabilities of the raw distribution: temperature 1, nothing truncated."""
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
        found[row].append((token, logprob))
    return [sorted(pairs, key=lambda pair: -pair[1])[:count] for pairs, count in zip(found, counts, strict=True)]


def sample(raw_BV: Tensor, sampling: Sequence[Sampling], uniforms: Sequence[float]) -> SampledTokens:
    """Return a sampled token per row: the likeliest at temperature 0, else by each row's uniform number and the CDF."""
    if all(s.temperature == 0 for s in sampling):
        raw_B, ids_B = raw_BV.max(-1)
        return _to_host(ids_B, raw_B, raw_B)
    sampling_BV = _sampling_log_probs(raw_BV, sampling)
    ids_B = _invert_cdf(sampling_BV, uniforms)
    if any(s.temperature == 0 for s in sampling):
        greedy_B = torch.tensor([s.temperature == 0 for s in sampling], device=raw_BV.device)
        ids_B = torch.where(greedy_B, raw_BV.argmax(-1), ids_B)
        sampling_BV = torch.where(greedy_B[:, None], raw_BV, sampling_BV)
    raw_B = raw_BV.gather(1, ids_B[:, None])[:, 0]
    sampling_B = raw_B if sampling_BV is raw_BV else sampling_BV.gather(1, ids_B[:, None])[:, 0]
    return _to_host(ids_B, raw_B, sampling_B)


def _to_host(ids_B: Tensor, raw_B: Tensor, sampling_B: Tensor) -> SampledTokens:
    return SampledTokens(cast(Any, ids_B).tolist(), cast(Any, raw_B).tolist(), cast(Any, sampling_B).tolist())


def _sampling_log_probs(raw_BV: Tensor, sampling: Sequence[Sampling]) -> Tensor:
    """Return the log-probabilities after temperature and truncation; greedy rows do not change."""
    logprobs_BV = raw_BV
    if any(s.temperature not in (0, 1) for s in sampling):
        temperature_B = torch.tensor([s.temperature or 1.0 for s in sampling], device=raw_BV.device)
        logprobs_BV = (raw_BV / temperature_B[:, None]).log_softmax(-1)
    if any(s.top_p < 1 for s in sampling):
        top_p_B = torch.tensor([s.top_p if s.temperature else 1.0 for s in sampling], device=raw_BV.device)
        logprobs_BV = truncate(logprobs_BV, top_p_B)
    return logprobs_BV


def truncate(logprobs_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """Return log-probabilities over the fewest likeliest tokens that hold at least `top_p_B`; -inf for others.

    This is the nucleus of Holtzman et al. 2020 (arXiv 1904.09751), equation 2; ties go to the lower id.
    """
    sorted_BV, order_BV = logprobs_BV.sort(dim=-1, descending=True, stable=True)
    probs_BV = sorted_BV.exp()
    before_BV = probs_BV.cumsum(-1) - probs_BV
    dropped_BV = (before_BV >= top_p_B[:, None]) & (top_p_B < 1)[:, None]
    dropped_BV[:, 0] = False
    sorted_BV = sorted_BV.masked_fill(dropped_BV, -torch.inf).log_softmax(-1)
    truncated_BV = torch.empty_like(sorted_BV).scatter_(1, order_BV, sorted_BV)
    return torch.where((top_p_B < 1)[:, None], truncated_BV, logprobs_BV)


def _invert_cdf(logprobs_BV: Tensor, uniforms: Sequence[float]) -> Tensor:
    cdf_BV = logprobs_BV.exp().cumsum(-1, dtype=torch.float64)
    uniform_B1 = torch.tensor(uniforms, dtype=torch.float64, device=cdf_BV.device)[:, None]
    ids_B1 = torch.searchsorted(cdf_BV, uniform_B1 * cdf_BV[:, -1:], right=True)
    return ids_B1[:, 0].clamp_(max=cdf_BV.shape[1] - 1)
