"""What may be computed cleverly for a given model, proved on the model itself before it is relied on.

Some architectures change the logits after the output head, or keep more than keys and values of what they have read.
They are trained all the same, without the short cut.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leyden.core.policy.batch import MicroBatch
from leyden.core.policy.logprobs import entry_logprobs, score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.prefix import SharedPrefix

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest difference between log-probabilities that rounding explains; a wrong short cut is off by 0.02 and more."""

_PREFIX, _ROWS, _COLUMNS = 24, 3, 16
_WINDOWS = ("sliding_window", "window_size", "attention_window", "local_attention", "attention_chunk_size")
"""What configurations call the number of tokens that one may see, where that is not all before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Which short cuts give the model's own log-probabilities."""

    plain_head: bool
    """The logits are the output head's and nothing more, so they can be computed in chunks."""
    shared_prefix: bool
    """A prefix can be read once for many sequences."""
    branches: bool = False
    """Sequences can share a row in which each token sees its own path alone."""


@torch.no_grad()
def prove(model: PolicyModel) -> Exactness:
    """Compare each short cut with plain forward passes over a few fixed random sequences, in float32."""
    exact = model.in_precision("float32")
    ids = torch.randint(model.vocab_size, (_PREFIX + _ROWS * _COLUMNS,), generator=torch.Generator().manual_seed(0))
    prefix, rows = ids[:_PREFIX], ids[_PREFIX:].view(_ROWS, _COLUMNS)
    whole = torch.cat([prefix.expand(_ROWS, -1), rows], dim=1)
    expected = torch.tensor([score(exact, row)[_PREFIX:] for row in whole.numpy()]).flatten()
    plain_head = _agrees(expected, exact, _batch(whole, _PREFIX, model.device), None, plain_head=True)
    read = SharedPrefix.read(exact, prefix.numpy())
    shared = read is not None and _agrees(expected, exact, _batch(rows, 0, model.device), read, plain_head=plain_head)
    branches = (
        shared
        and not _looks_through_windows(model)
        and _agrees(*_branched(exact, ids, model.device), read, plain_head=plain_head)
    )
    result = Exactness(plain_head=plain_head, shared_prefix=shared, branches=branches)
    logger.debug("%s: %s", model.source, result)
    return result


def _looks_through_windows(model: PolicyModel) -> bool:
    """Whether a token may not see all before it, or attention is computed by what takes no mask.

    A mask of ours would be taken in the place of the model's own, which a few short sequences do not show.
    """
    config: Any = model.config.get_text_config()
    named = any(getattr(config, name, None) for name in _WINDOWS) and getattr(config, "use_sliding_window", True)
    return bool(named) or config._attn_implementation != "sdpa"


def _branched(model: PolicyModel, ids: Tensor, device: torch.device) -> tuple[Tensor, PolicyModel, MicroBatch]:
    """Two sequences that share a prefix and some tokens more, as one row; and what they are expected to give."""
    prefix, first, second = ids[:_PREFIX], ids[_PREFIX:][:_COLUMNS], ids[_PREFIX:][_COLUMNS : 2 * _COLUMNS]
    fork = _COLUMNS // 2
    whole = torch.stack([torch.cat([prefix, first]), torch.cat([prefix, first[:fork], second[fork:]])])
    expected = torch.tensor([score(model, row)[_PREFIX:] for row in whole.numpy()]).flatten()
    branch = torch.cat([torch.arange(fork), torch.arange(_COLUMNS, 2 * _COLUMNS - fork)])
    until = torch.full((2 * _COLUMNS - fork,), 2 * _COLUMNS - fork)
    until[fork:_COLUMNS] = _COLUMNS
    plain = _batch(whole[:, _PREFIX:], 0, device)
    return (
        expected,
        model,
        replace(
            plain,
            ids_BT=torch.cat([first, second[fork:]])[None].to(device),
            row_N=torch.zeros_like(plain.row_N),
            column_N=torch.cat([torch.arange(_COLUMNS - 1), branch[:-1]]).to(device),
            depth_BT=torch.cat([torch.arange(_COLUMNS), torch.arange(fork, _COLUMNS)])[None].to(device),
            until_BT=until[None].to(device),
        ),
    )


def _batch(ids_BT: Tensor, first: int, device: torch.device) -> MicroBatch:
    """Return a batch whose entries are the tokens after column `first`."""
    columns = torch.arange(first, ids_BT.shape[1] - 1)
    ones_N = torch.ones(len(ids_BT) * len(columns))
    return MicroBatch(
        ids_BT=ids_BT,
        row_N=torch.arange(len(ids_BT)).repeat_interleave(len(columns)),
        column_N=columns.repeat(len(ids_BT)),
        target_N=ids_BT[:, first + 1 :].flatten(),
        transition_N=torch.zeros(len(ones_N), dtype=torch.long),
        proximal_N=ones_N,
        reference_N=ones_N,
        advantage_N=ones_N,
        weight_N=ones_N,
        temperature_N=ones_N,
    ).to(device, torch.float32)


def _agrees(
    expected_N: Tensor, model: PolicyModel, batch: MicroBatch, prefix: SharedPrefix | None, *, plain_head: bool
) -> bool:
    logprobs_N, _ = entry_logprobs(model, batch, prefix, plain_head=plain_head)
    return bool((logprobs_N.cpu() - expected_N).abs().max() <= TOLERANCE)
