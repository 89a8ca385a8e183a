"""Capability checks: test on the model itself which faster computations give exact results, before they are used.

Some architectures change the logits after the output head. Some keep other state than keys and values of what they
read. Such models are trained as well, without the faster computation.
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
"""Largest difference between log-probabilities that rounding explains; a wrong computation differs by at least 0.02."""

_PREFIX, _ROWS, _COLUMNS = 24, 3, 16
_EVERYTHING = _ROWS * (_PREFIX + _COLUMNS)
"""A token budget that fits all sequences into one batch."""
_WINDOWS = ("sliding_window", "window_size", "attention_window", "local_attention", "attention_chunk_size")
"""Names in model configurations for the number of preceding tokens that attention is limited to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The faster computations that give the model's own log-probabilities."""

    plain_head: bool
    """The logits are the output head's result without changes, so they can be computed in chunks."""
    shared_prefix: bool
    """A prefix can be computed once for many sequences."""
    branches: bool = False
    """Several sequences can share a row in which each token attends only to its own sequence."""


@torch.no_grad()
def prove(model: PolicyModel) -> Capabilities:
    """Compare each faster computation with plain forward passes over fixed random sequences, in float32.

    Returns which of them agree within `TOLERANCE`.
    """
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
    result = Capabilities(plain_head=plain_head, shared_prefix=shared, branches=branches)
    logger.debug("%s: %s", model.source, result)
    return result


def _looks_through_windows(model: PolicyModel) -> bool:
    """Return whether attention is limited to a window, or is computed by code that takes no mask.

    The trainer's mask would replace the model's own mask. A few short sequences do not reveal that.
    """
    config: Any = model.config.get_text_config()
    named = any(getattr(config, name, None) for name in _WINDOWS) and getattr(config, "use_sliding_window", True)
    return bool(named) or config._attn_implementation != "sdpa"


def _sequence(ids_T: Tensor, number: int) -> TokenSequence:
    """Return a sequence whose entries are the tokens after the prefix, except the first of them."""
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
        adjusted_N=np.full(len(position_N), None),
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
    """Return whether a micro-batch gives the same log-probabilities as plain forward passes over each sequence."""
    length = 0 if prefix is None else prefix.length
    (batch,) = micro_batches(sequences, _EVERYTHING, length, width=width)
    logprobs_N, _ = entry_logprobs(model, batch.to(model.device, torch.float32), prefix, plain_head=plain_head)
    expected = [torch.tensor(score(model, sequence.ids)[_PREFIX:]) for sequence in sequences]
    order = dict.fromkeys(batch.transition_N.numpy().tolist())
    expected_N = torch.cat([expected[number] for number in order])
    return bool((logprobs_N.cpu() - expected_N).abs().max() <= TOLERANCE)
