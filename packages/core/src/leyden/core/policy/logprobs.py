"""Log-probabilities: computes those of given tokens under the model being trained.

Logits are computed only at positions that predict a target, and only in chunks: for a large model, a matrix of tokens ×
vocabulary does not fit in memory.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.utils.checkpoint
from torch import Tensor

from leyden.core.data.encoding.tokens import token_ids
from leyden.core.engine.embedded.adjusted_logits import Adjustment, adjusted
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.micro_batches import MicroBatch
from leyden.core.policy.update.shared_prefix import SharedPrefix

CHUNK_ELEMENTS = 1 << 24
"""Number of logits held at once: 64 MiB in float32. If there are several chunks, the backward pass recomputes each."""

Scored: TypeAlias = tuple[Tensor, Tensor]
"""`logprobs_N` and `entropy_N`."""


def entry_logprobs(
    model: PolicyModel,
    batch: MicroBatch,
    prefix: SharedPrefix | None = None,
    *,
    plain_head: bool = True,
    entropy_gradient: bool = False,
) -> Scored:
    """Return log-probability and entropy of each entry of `batch`, at the temperature its target was sampled at.

    `prefix` was computed before and precedes every row of the batch. `plain_head` says that the model's logits are its
    output head's result without changes, so that they can be computed in chunks (see `capability_checks`). The entropy
    carries a gradient only with `entropy_gradient`.
    """
    return read_entries(model, batch, prefix, plain_head=plain_head, entropy_gradient=entropy_gradient)[1]


def read_entries(
    model: PolicyModel,
    batch: MicroBatch,
    prefix: SharedPrefix | None = None,
    *,
    plain_head: bool = True,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Scored]:
    """Return the output head's input for each entry, `hidden_NH`, and the result of `entry_logprobs`."""
    adjustments = _adjustments(model, batch)
    with model.computing():
        hidden_NH, logits_NV = hidden_states(model, batch, prefix, logits=not plain_head)
        if plain_head:
            return hidden_NH, head_logprobs(
                model.head,
                hidden_NH,
                batch.target_N,
                batch.temperature_N,
                adjustments=adjustments,
                entropy_gradient=entropy_gradient,
            )
        return hidden_NH, _from_logits(logits_NV, batch.target_N, batch.temperature_N, adjustments, entropy_gradient)


def _adjustments(model: PolicyModel, batch: MicroBatch) -> list[Adjustment | None]:
    """Return the adjustment of each entry's logits; an empty list if there are none."""
    if not batch.adjusted:
        return []
    found: list[Adjustment | None] = [None] * len(batch.target_N)
    by_call: dict[int, list[Adjustment]] = {}
    for number, entry in batch.adjusted.items():
        call = entry.transition
        if id(call) not in by_call:
            by_call[id(call)] = model.adjusted_responses.of(call)
        found[number] = by_call[id(call)][entry.index]
    return found


def hidden_states(
    model: PolicyModel, batch: MicroBatch, prefix: SharedPrefix | None = None, *, logits: bool = False
) -> tuple[Tensor, Tensor]:
    """Return `hidden_NH`, the output head's input for each entry, and `logits_NV`, empty without `logits`."""
    cache, seen = (None, 0) if prefix is None else (prefix.cache(len(batch.ids_BT)), prefix.length)
    with model.computing(), model.selecting(batch.row_N, batch.column_N, logits=logits) as received:
        output = model.module(
            **model.inputs(batch.ids_BT, batch.images),
            past_key_values=cache,
            use_cache=cache is not None,
            **_paths(batch, seen),
        )
    return received[0], output.logits[0]


def _paths(batch: MicroBatch, seen: int) -> dict[str, Tensor]:
    """Return mask and positions for rows with branches; empty for rows without.

    Each token attends to the tokens on its path, and to all `seen` tokens of the prefix.
    """
    if batch.depth_BT is None or batch.until_BT is None:
        return {}
    rows, columns = batch.ids_BT.shape
    at_T = torch.arange(columns, device=batch.ids_BT.device)
    visible_BTT = (at_T[:, None] >= at_T) & (at_T[:, None] < batch.until_BT[:, None, :])
    everything_BTS = visible_BTT.new_ones(rows, columns, seen)
    mask_B1TK = torch.cat([everything_BTS, visible_BTT], -1)[:, None]
    return {"attention_mask": mask_B1TK, "position_ids": batch.depth_BT + seen}


def head_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden_NH: Tensor,
    target_N: Tensor,
    temperature_N: Tensor,
    chunk_elements: int = CHUNK_ELEMENTS,
    *,
    adjustments: Sequence[Adjustment | None] = (),
    entropy_gradient: bool = False,
) -> Scored:
    """Return log-probabilities and entropies of softmax(adjusted(head(hidden)) / temperature), computed in chunks.

    `adjustments` has one item for each entry, or none at all.
    """

    def chunk(
        hidden_CH: Tensor, target_C: Tensor, temperature_C: Tensor, adjustments: Sequence[Adjustment | None]
    ) -> Scored:
        return _from_logits(head(hidden_CH), target_C, temperature_C, adjustments, entropy_gradient)

    vocab = _width(head, hidden_NH)
    rows = max(1, chunk_elements // vocab)
    if len(hidden_NH) <= rows:
        return chunk(hidden_NH, target_N, temperature_N, adjustments)
    tensors = (torch.split(tensor, rows) for tensor in (hidden_NH, target_N, temperature_N))
    pieces = zip(*tensors, [adjustments[at : at + rows] for at in range(0, len(hidden_NH), rows)], strict=True)
    again: Any = torch.utils.checkpoint
    done: list[Scored] = [again.checkpoint(chunk, *piece, use_reentrant=False) for piece in pieces]
    return torch.cat([logprobs for logprobs, _ in done]), torch.cat([entropy for _, entropy in done])


@torch.no_grad()
def score(model: PolicyModel, ids: Iterable[int]) -> list[float]:
    """Return the raw log-probability of each of `ids[1:]` given the ids before it, as `Engine.score` does."""
    ids_1T = torch.tensor([list(token_ids(ids))], device=model.device)
    with model.computing():
        logits_TV = model.module(input_ids=ids_1T, use_cache=False).logits[0, :-1]
    logprobs_T, _ = _from_logits(logits_TV, ids_1T[0, 1:], torch.ones(ids_1T.shape[1] - 1, device=model.device))
    return logprobs_T.double().cpu().numpy().tolist()


def _from_logits(
    logits_NV: Tensor,
    target_N: Tensor,
    temperature_N: Tensor,
    adjustments: Sequence[Adjustment | None] = (),
    entropy_gradient: bool = False,
) -> Scored:
    wide = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    wide = adjusted(wide, adjustments)
    if not bool((temperature_N == 1).all()):  # avoids a division of all logits that would change nothing
        wide = wide / temperature_N.to(wide.dtype)[:, None]
    all_NV = wide.log_softmax(-1)
    # The backward pass needs nothing after this line: when a chunk is recomputed, recomputation stops here.
    logprobs_N = all_NV.gather(1, target_N[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        return logprobs_N, _entropy(all_NV)


def _entropy(all_NV: Tensor) -> Tensor:
    """Return the entropies; a token with log-probability -inf adds 0."""
    if torch.is_grad_enabled():
        return -(all_NV.exp() * all_NV.masked_fill(all_NV.isneginf(), 0.0)).sum(-1)
    return -all_NV.exp().mul_(all_NV.clamp(min=torch.finfo(all_NV.dtype).min)).sum(-1)


def _width(head: Callable[[Tensor], Tensor], hidden_NH: Tensor) -> int:
    with torch.no_grad():
        return head(hidden_NH[:1]).shape[-1]
