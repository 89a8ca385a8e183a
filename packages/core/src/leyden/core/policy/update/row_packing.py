"""Rows: lays out several sequences in one row of tokens, in which their common beginning is stored once.

A group's rollouts begin with the same prompt, and an agent's calls with the same instructions. In a row each sequence
is a path, and a token attends only to the tokens before it on its path. Sequences sorted by their tokens are the paths
of a tree in depth-first order. All tokens that follow a token are therefore adjacent, right after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from leyden.core.policy.update.entries import Entries, Ints, joined
from leyden.core.policy.update.merge import TokenSequence

KEYS_PER_WIDTH = 6
"""Number of keys, per unit of the model's width, whose attention costs as much as a token's weight products.

A token's products with the weights of a block are 24 width² multiplications: attention 4, a gated feed-forward network
about 8, times two. Attention to a key costs 4 width.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """T tokens after the shared prefix, and the entries trained on them; entry positions are columns of the row."""

    ids_T: Ints
    depth_T: Ints
    """Position of each token on its path, from 0."""
    until_T: Ints
    """The first column after a token that does not follow it on a path."""
    entries: Entries

    def __len__(self) -> int:
        return len(self.ids_T)

    @property
    def branches(self) -> bool:
        """Whether there is more than one path."""
        return bool((self.until_T < len(self)).any())


def single(sequence: TokenSequence, prefix: int) -> Row:
    """Return `sequence` alone as a row, without its first `prefix` tokens and without those after its last entry."""
    return _Growing(_read(sequence, prefix), sequence, prefix).row()


def branching(sequences: Sequence[TokenSequence], prefix: int, width: int, most: int) -> list[Row]:
    """Return `sequences` as rows, laid out so that a model of `width` computes them at the least cost.

    A row has at most `most` tokens, unless a single sequence is longer. A sequence joins the row of the one before it
    if that costs less than a row of its own. Joining saves the shared tokens. In exchange every token of the row is
    compared with all others, because a mask does not save that work.
    """
    read = [_read(sequence, prefix) for sequence in sequences]
    order = sorted(range(len(read)), key=lambda at: read[at].astype(">u4").tobytes())
    rows: list[Row] = []
    growing: _Growing | None = None
    for at in order:
        if growing is None or not growing.take(read[at], sequences[at], KEYS_PER_WIDTH * width + prefix, most):
            rows += [] if growing is None else [growing.row()]
            growing = _Growing(read[at], sequences[at], prefix)
    return rows if growing is None else [*rows, growing.row()]


def _read(sequence: TokenSequence, prefix: int) -> Ints:
    return np.asarray(sequence.ids, dtype=np.int64)[prefix : int(sequence.entries.position_N.max()) + 1]


class _Growing:
    """A row under construction, which further sequences may join in the order of their tokens."""

    def __init__(self, read: Ints, sequence: TokenSequence, prefix: int) -> None:
        self._prefix = prefix
        self._ids, self._depths = [read], [np.arange(len(read))]
        self._ends: list[tuple[Ints, int]] = []
        self._length = len(read)
        self._last, self._path = read, np.arange(len(read))
        self._parts = [self._in_row(sequence)]

    def take(self, read: Ints, sequence: TokenSequence, token_cost: int, most: int) -> bool:
        """Add a sequence and return True, unless the row would exceed `most` tokens or a row of its own costs less."""
        shared = _in_common(self._last, read)
        length = self._length + len(read) - shared
        apart = _cost(self._length, token_cost) + _cost(len(read), token_cost)
        if not shared or length > most or _cost(length, token_cost) > apart:
            return False
        self._ends.append((self._path[shared:], self._length))
        self._ids.append(read[shared:])
        self._depths.append(np.arange(shared, len(read)))
        self._path = np.concatenate([self._path[:shared], np.arange(self._length, length)])
        self._last, self._length = read, length
        self._parts.append(self._in_row(sequence))
        return True

    def row(self) -> Row:
        """Return the row as it is now."""
        until_T: Ints = np.full(self._length, self._length)
        for columns, end in self._ends:
            until_T[columns] = end
        return Row(
            ids_T=np.concatenate(self._ids),
            depth_T=np.concatenate(self._depths),
            until_T=until_T,
            entries=joined(self._parts),
        )

    def _in_row(self, sequence: TokenSequence) -> Entries:
        return replace(sequence.entries, position_N=self._path[sequence.entries.position_N - self._prefix])


def _cost(tokens: int, token_cost: int) -> int:
    return tokens * (token_cost + tokens)


def _in_common(one: Ints, other: Ints) -> int:
    """Return how many leading tokens two sequences share."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
