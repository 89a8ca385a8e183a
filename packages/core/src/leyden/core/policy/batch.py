"""Token sequences → right-padded micro-batches under a token budget. Knows nothing of losses.

A prefix that every sequence shares can be left out of the batches: it is then read once, by whoever runs the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leyden.core.policy.entries import Ints, joined
from leyden.core.policy.merge import TokenSequence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """B rows of at most T tokens, and the N entries trained on them."""

    ids_BT: Tensor
    """Token ids after the shared prefix, padded with 0 on the right: no real token ever sees the padding."""
    row_N: Tensor
    column_N: Tensor
    """`ids_BT[row, column]` is the token whose output predicts the entry's target."""
    target_N: Tensor
    transition_N: Tensor
    proximal_N: Tensor
    reference_N: Tensor
    advantage_N: Tensor
    weight_N: Tensor
    temperature_N: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> "MicroBatch":
        """Return the batch on `device`, its real numbers as `dtype`."""
        return MicroBatch(
            ids_BT=self.ids_BT.to(device),
            row_N=self.row_N.to(device),
            column_N=self.column_N.to(device),
            target_N=self.target_N.to(device),
            transition_N=self.transition_N.to(device),
            proximal_N=self.proximal_N.to(device, dtype),
            reference_N=self.reference_N.to(device, dtype),
            advantage_N=self.advantage_N.to(device, dtype),
            weight_N=self.weight_N.to(device, dtype),
            temperature_N=self.temperature_N.to(device, dtype),
        )


def shared_prefix(sequences: Sequence[TokenSequence]) -> int:
    """Return how many leading tokens all sequences have in common, up to the first that predicts a target."""
    first = sequences[0].ids
    length = min(int(sequence.entries.position_N.min()) for sequence in sequences)
    for sequence in sequences[1:]:
        if sequence.ids[:length] != first[:length]:
            length = next(at for at in range(length) if sequence.ids[at] != first[at])
    return length


def micro_batches(
    sequences: Sequence[TokenSequence], token_budget: int, prefix: int = 0, together: int = 1
) -> list[MicroBatch]:
    """Return batches of similar lengths, at most `token_budget` tokens each, padding included and prefix left out.

    Each run of `together` sequences, in the order given, stays in one batch, and so does all of a sequence: a loss sees
    whole units. A unit larger than the budget is a batch of its own. Tokens after a sequence's last entry are not read.
    """
    if together > 1 and not _one_transition_each(sequences):
        raise ValueError(f"{together} transitions are taken together, so each must be a sequence of its own, in order")
    units = [sequences[at : at + together] for at in range(0, len(sequences), together)]
    by_length = sorted(units, key=_longest, reverse=True)
    batches: list[MicroBatch] = []
    start = 0
    while start < len(by_length):
        columns = _longest(by_length[start]) - prefix
        count = max(1, token_budget // (columns * together))
        rows = [sequence for unit in by_length[start : start + count] for sequence in unit]
        batches.append(_padded(rows, columns, prefix))
        start += count
    return batches


def _one_transition_each(sequences: Sequence[TokenSequence]) -> bool:
    return all(bool((sequence.entries.transition_N == at).all()) for at, sequence in enumerate(sequences))


def _longest(unit: Sequence[TokenSequence]) -> int:
    return max(map(_read_length, unit))


def _read_length(sequence: TokenSequence) -> int:
    return int(sequence.entries.position_N.max()) + 1


def _padded(sequences: Sequence[TokenSequence], columns: int, prefix: int) -> MicroBatch:
    ids_BT: Ints = np.zeros((len(sequences), columns), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        read = np.asarray(sequence.ids, dtype=np.int64)[prefix : _read_length(sequence)]
        ids_BT[row, : len(read)] = read
    entries = joined([sequence.entries for sequence in sequences])
    row_N = np.repeat(np.arange(len(sequences)), [len(sequence.entries) for sequence in sequences])
    return MicroBatch(
        ids_BT=torch.as_tensor(ids_BT),
        row_N=torch.as_tensor(row_N),
        column_N=torch.as_tensor(entries.position_N - prefix),
        target_N=torch.as_tensor(entries.target_N),
        transition_N=torch.as_tensor(entries.transition_N),
        proximal_N=torch.as_tensor(entries.proximal_N),
        reference_N=torch.as_tensor(entries.reference_N),
        advantage_N=torch.as_tensor(entries.advantage_N),
        weight_N=torch.as_tensor(entries.weight_N),
        temperature_N=torch.as_tensor(entries.temperature_N),
    )
