"""What may be computed cleverly for a given model, proved on the model itself before it is relied on.

Some architectures change the logits after the output head, or keep more than keys and values of what they have read.
They are trained all the same, without the short cut.
"""

import logging
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Which short cuts give the model's own log-probabilities."""

    plain_head: bool
    """The logits are the output head's and nothing more, so they can be computed in chunks."""
    shared_prefix: bool
    """A prefix can be read once for many sequences."""


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
    result = Exactness(plain_head=plain_head, shared_prefix=shared)
    logger.debug("%s: %s", model.source, result)
    return result


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
