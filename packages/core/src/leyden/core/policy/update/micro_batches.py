"""Micro-batches: packs token sequences into right-padded batches under a token budget.

A prefix that all sequences share can be left out of the batches. The caller then computes it once. Tokens that some of
the sequences share can be stored once in a row of several (`row_packing`), if the model accepts a mask for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from leyden.core.data.encoding.images import PromptImage
from leyden.core.policy.options import TOKEN_BUDGET
from leyden.core.policy.update.entries import AdjustedEntry, Ints, joined
from leyden.core.policy.update.merge import TokenSequence
from leyden.core.policy.update.row_packing import Row, branching, single

PASS_TOKENS = 256
"""Fixed cost of one more forward pass, as the number of tokens that are read in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """B rows of at most T tokens, and the N entries trained on them."""

    ids_BT: Tensor
    """Token ids after the shared prefix, padded with 0 on the right: no real token attends to the padding."""
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
    adjusted: Mapping[int, AdjustedEntry] = field(default_factory=dict[int, AdjustedEntry])
    """The entries whose logits were adjusted, by their number."""
    images: Mapping[int, PromptImage] = field(default_factory=dict[int, PromptImage])
    """Images by the id of their first token; may have images of other batches too."""
    depth_BT: Tensor | None = None
    """Position of each token after the shared prefix, if rows have branches; None: the position is the column."""
    until_BT: Tensor | None = None
    """If rows have branches, the first column after each token that does not attend to it."""

    def to(self, device: torch.device, dtype: torch.dtype) -> "MicroBatch":
        """Return the batch on `device`, with its real numbers as `dtype`."""
        depth_BT, until_BT = self.depth_BT, self.until_BT
        return MicroBatch(
            ids_BT=self.ids_BT.to(device),
            images=self.images,
            depth_BT=None if depth_BT is None else depth_BT.to(device),
            until_BT=None if until_BT is None else until_BT.to(device),
            row_N=self.row_N.to(device),
            column_N=self.column_N.to(device),
            target_N=self.target_N.to(device),
            transition_N=self.transition_N.to(device),
            proximal_N=self.proximal_N.to(device, dtype),
            reference_N=self.reference_N.to(device, dtype),
            advantage_N=self.advantage_N.to(device, dtype),
            weight_N=self.weight_N.to(device, dtype),
            temperature_N=self.temperature_N.to(device, dtype),
            adjusted=self.adjusted,
        )


def shared_prefix(sequences: Sequence[TokenSequence]) -> int:
    """Return how many leading tokens all sequences share, up to the first token that predicts a target."""
    first = sequences[0].ids
    length = min(int(sequence.entries.position_N.min()) for sequence in sequences)
    for sequence in sequences[1:]:
        if sequence.ids[:length] != first[:length]:
            length = next(at for at in range(length) if sequence.ids[at] != first[at])
    return length


def budget_for(sequences: Sequence[TokenSequence], token_budget: int | None, prefix: int) -> int:
    """Return the token budget of a pass: `token_budget`, or enough for twice the longest of `sequences`."""
    if token_budget is not None:
        return token_budget
    return max(TOKEN_BUDGET, 2 * max(int(sequence.entries.position_N.max()) + 1 - prefix for sequence in sequences))


def micro_batches(
    sequences: Sequence[TokenSequence],
    token_budget: int | None,
    prefix: int = 0,
    together: int = 1,
    width: int | None = None,
) -> list[MicroBatch]:
    """Return batches of similar lengths with at most `token_budget` tokens each, padding included, prefix excluded.

    Each run of `together` sequences, in the given order, stays in one batch, and each sequence stays whole, so that a
    loss gets complete units. A unit larger than the budget becomes a batch of its own. `budget_for` defines what None
    means. Tokens after a sequence's last entry are not read. `width` is the model's, if sequences may share a row. A
    loss that takes several transitions together has one row for each. Raises ValueError if such transitions are not one
    sequence each.
    """
    if together > 1 and not _one_transition_each(sequences):
        raise ValueError(f"{together} transitions are taken together, so each of them must be one sequence, in order")
    budget = budget_for(sequences, token_budget, prefix)
    if together == 1 and width is not None:
        units = [[row] for row in branching(sequences, prefix, width, budget)]
    else:
        rows = [single(sequence, prefix) for sequence in sequences]
        units = [rows[at : at + together] for at in range(0, len(rows), together)]
    images: dict[int, PromptImage] = {}
    for shared in {id(sequence.images): sequence.images for sequence in sequences}.values():
        images |= shared
    by_length = sorted(units, key=_longest, reverse=True)
    columns = [_longest(unit) for unit in by_length]
    return [
        _padded(list(chain.from_iterable(by_length[start:end])), columns[start], images)
        for start, end in _parted([together * width for width in columns], budget)
    ]


def _parted(sizes: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Return where to divide the units into batches so that the fewest tokens are read, padding included.

    `sizes` are the units' tokens in falling order. In a batch, all units are padded to the size of the first. Their sum
    is at most `budget`, unless a single unit is larger.
    """
    best = [0] * (len(sizes) + 1)
    """Minimum cost of all units from this index on."""
    ends = [0] * len(sizes)
    for start in reversed(range(len(sizes))):
        most = start + max(1, budget // sizes[start])
        reading = {
            end: best[end] + PASS_TOKENS + sizes[start] * (end - start)
            for end in range(start + 1, min(most, len(sizes)) + 1)
        }
        ends[start] = min(reading, key=reading.__getitem__)
        best[start] = reading[ends[start]]
    parts: list[tuple[int, int]] = []
    while not parts or parts[-1][1] < len(sizes):
        start = parts[-1][1] if parts else 0
        parts.append((start, ends[start]))
    return parts


def _one_transition_each(sequences: Sequence[TokenSequence]) -> bool:
    return all(bool((sequence.entries.transition_N == at).all()) for at, sequence in enumerate(sequences))


def _longest(unit: Sequence[Row]) -> int:
    return max(map(len, unit))


def _padded(rows: Sequence[Row], columns: int, images: Mapping[int, PromptImage]) -> MicroBatch:
    def filled(part: Callable[[Row], Ints], padding: Ints) -> Tensor:
        found_BT: Ints = np.tile(padding, (len(rows), 1))
        for row, values_T in zip(found_BT, map(part, rows), strict=True):
            row[: len(values_T)] = values_T
        return torch.as_tensor(found_BT)

    nothing, positions = np.zeros(columns, dtype=np.int64), np.arange(columns, dtype=np.int64)
    entries = joined([row.entries for row in rows])
    branches = any(row.branches for row in rows)
    return MicroBatch(
        ids_BT=filled(lambda row: row.ids_T, nothing),
        images=images,
        row_N=torch.as_tensor(np.repeat(np.arange(len(rows)), [len(row.entries) for row in rows])),
        column_N=torch.as_tensor(entries.position_N),
        target_N=torch.as_tensor(entries.target_N),
        transition_N=torch.as_tensor(entries.transition_N),
        proximal_N=torch.as_tensor(entries.proximal_N),
        reference_N=torch.as_tensor(entries.reference_N),
        advantage_N=torch.as_tensor(entries.advantage_N),
        weight_N=torch.as_tensor(entries.weight_N),
        temperature_N=torch.as_tensor(entries.temperature_N),
        adjusted={n: one for n, one in enumerate(entries.adjusted_N) if one is not None},
        depth_BT=filled(lambda row: row.depth_T, nothing) if branches else None,
        until_BT=filled(lambda row: row.until_T, positions + 1) if branches else None,
    )
