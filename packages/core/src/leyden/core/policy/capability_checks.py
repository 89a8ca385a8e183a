"""What may be computed cleverly for a given model, proved on the model itself before it is relied on.

Some architectures change the logits after the output head, or keep more than keys and values of what they have read.
They are trained all the same, without the short cut.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden.core.data.encoding.tokens import token_ids
from leyden.core.policy.logprobs import entry_logprobs, score
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.entries import Entries
from leyden.core.policy.update.merge import TokenSequence
from leyden.core.policy.update.micro_batches import micro_batches
from leyden.core.policy.update.shared_prefix import SharedPrefix

logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest difference between log-probabilities that rounding explains; a wrong short cut is off by 0.02 and more."""

_PREFIX, _ROWS, _COLUMNS = 24, 3, 16
_EVERYTHING = _ROWS * (_PREFIX + _COLUMNS)
"""A budget of tokens that is one batch."""
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
    whole = [_sequence(torch.cat([prefix, row]), number) for number, row in enumerate(rows)]
    plain_head = _agrees(exact, whole, None, plain_head=True)
    read = SharedPrefix.read(exact, prefix.numpy())
    shared = read is not None and _agrees(exact, whole, read, plain_head=plain_head)
    fork = _COLUMNS // 2
    forked = [whole[0], _sequence(torch.cat([prefix, rows[0, :fork], rows[1, fork:]]), 1)]
    branches = (
        shared
        and not _looks_through_windows(model)
        and _agrees(exact, forked, read, plain_head=plain_head, width=model.width)
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


def _sequence(ids_T: Tensor, number: int) -> TokenSequence:
    """A sequence whose entries are the tokens after the first of those that follow the prefix."""
    position_N = np.arange(_PREFIX, len(ids_T) - 1)
    ones_N = np.ones(len(position_N))
    entries = Entries(
        transition_N=np.full(len(position_N), number),
        position_N=position_N,
        target_N=ids_T.numpy()[position_N + 1],
        proximal_N=ones_N,
        reference_N=ones_N,
        advantage_N=ones_N,
        weight_N=ones_N,
        temperature_N=ones_N,
    )
    return TokenSequence(ids=token_ids(ids_T.numpy()), entries=entries)


def _agrees(
    model: PolicyModel,
    sequences: Sequence[TokenSequence],
    prefix: SharedPrefix | None,
    *,
    plain_head: bool,
    width: int | None = None,
) -> bool:
    """Whether a batch as the gradient reads it tells of each sequence what a plain forward pass tells."""
    length = 0 if prefix is None else prefix.length
    (batch,) = micro_batches(sequences, _EVERYTHING, length, width=width)
    logprobs_N, _ = entry_logprobs(model, batch.to(model.device, torch.float32), prefix, plain_head=plain_head)
    expected = [torch.tensor(score(model, sequence.ids)[_PREFIX:]) for sequence in sequences]
    order = dict.fromkeys(batch.transition_N.numpy().tolist())
    expected_N = torch.cat([expected[number] for number in order])
    return bool((logprobs_N.cpu() - expected_N).abs().max() <= TOLERANCE)
