"""Caches of keys and values: of the sequences being decoded, and of prefixes that may be used again.

Shape suffixes: B rows, Q tokens per row, K key-value heads, D head size, T columns. A row is a slot of the cache. A
token's column is its position in its own sequence, so rows of any length share one tensor without padding.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from leyden.core.engine.embedded.lazy_zeros import LazyZeros
from leyden.core.engine.embedded.shared_prefixes import SharedPrefixes

BLOCK = 16
"""Tokens per block of the prefix cache."""
COLUMNS = 128
"""Slots grow by this many columns at a time."""


class CacheShape(NamedTuple):
    """Shape, type and device of the keys and values of one token."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class SlotCache:
    """Keys and values by slot; grows in both directions, and never shrinks.

    Every slot has as many columns as the longest sequence needed. On a CPU, only written ones take up memory.
    """

    def __init__(self, shape: CacheShape) -> None:
        self.shape = shape
        self._zeros = self._made(0, 0)
        self._lengths: list[int] = []
        """Number of columns of each slot that hold something."""

    @property
    def data(self) -> Tensor:
        """(layers, keys or values, slots, K, T, D)."""
        return self._zeros.tensor

    def _made(self, slots: int, columns: int) -> LazyZeros:
        shape = self.shape
        sizes = (shape.layers, 2, slots, shape.heads, columns, shape.head_dim)
        return LazyZeros(sizes, shape.dtype, shape.device)

    def reserve(self, slots: int, columns: int) -> None:
        """Make room for `slots` rows of `columns` tokens."""
        old = self.data
        old_slots, old_columns = old.shape[2], old.shape[4]
        if slots <= old_slots and columns <= old_columns:
            return
        slots = max(slots, min(2 * old_slots, slots + 64)) if slots > old_slots else old_slots
        columns = max(-(-columns // COLUMNS) * COLUMNS, old_columns)
        self._zeros = self._made(slots, columns)
        self._lengths += [0] * (slots - len(self._lengths))
        for slot, length in enumerate(self._lengths[:old_slots]):
            self.data[:, :, slot, :, :length] = old[:, :, slot, :, :length]

    def step(
        self, first_slot: int, positions_BQ: Sequence[Sequence[int]], shared_prefixes: SharedPrefixes | None = None
    ) -> "Step":
        """Return a `Step` for a forward pass over tokens at `positions_BQ` of the slots from `first_slot` on.

        `shared_prefixes`, for passes of one token a row, describes which rows share a beginning. The forward pass may
        use it.
        """
        width = 1 + max(max(row) for row in positions_BQ)
        self.reserve(first_slot + len(positions_BQ), width)
        self._lengths[first_slot : first_slot + len(positions_BQ)] = [1 + max(row) for row in positions_BQ]
        return Step(self, first_slot, torch.tensor(positions_BQ, device=self.shape.device), width, shared_prefixes)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of slot `source` to slot `target`."""
        self.hold(target, length)
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def hold(self, slot: int, length: int) -> None:
        """Make room for `length` tokens in `slot`, which the caller writes."""
        self.reserve(slot + 1, length)
        self._lengths[slot] = length

    def clear(self) -> None:
        """Set everything to zero, because a masked NaN would still make a sum NaN."""
        self._zeros.clear()
        self._lengths = [0] * len(self._lengths)


class Step:
    """View of the cache for one forward pass: where new keys and values are stored, and which tokens are visible."""

    def __init__(
        self,
        cache: SlotCache,
        first_slot: int,
        positions_BQ: Tensor,
        width: int,
        shared_prefixes: SharedPrefixes | None,
    ) -> None:
        self.positions_BQ = positions_BQ
        self.width = width
        self.shared_prefixes = shared_prefixes
        _, _, _, heads, columns, self._size = cache.data.shape
        rows, device = len(positions_BQ), positions_BQ.device
        self._data = cache.data
        self._slots = slice(first_slot, first_slot + rows)
        slot_B = torch.arange(first_slot, first_slot + rows, device=device)
        head_BK = slot_B[:, None] * heads + torch.arange(heads, device=device)
        self._index = (head_BK[:, :, None] * columns + positions_BQ[:, None, :]).flatten()
        self._masks: dict[int | None, Tensor] = {}

    def write(self, layer: int, keys_BKQD: Tensor, values_BKQD: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values; return all keys and values of the rows so far, (B, K, T, D) each."""
        keys, values = self._data[layer, 0], self._data[layer, 1]
        keys.view(-1, self._size).index_copy_(0, self._index, keys_BKQD.reshape(-1, self._size))
        values.view(-1, self._size).index_copy_(0, self._index, values_BKQD.reshape(-1, self._size))
        return keys[self._slots, :, : self.width], values[self._slots, :, : self.width]

    def mask(self, window: int | None = None) -> Tensor:
        """Return the attention mask to add to the scores, (B, 1, Q, T).

        It is 0 for the last `window` tokens up to the token itself, and the lowest number of the type for all others.
        """
        if window not in self._masks:
            column_T = torch.arange(self.width, device=self.positions_BQ.device)
            position_BQ1 = self.positions_BQ[:, :, None]
            hidden_BQT = column_T > position_BQ1
            if window is not None:
                hidden_BQT |= column_T <= position_BQ1 - window
            mask_BQT = torch.zeros(hidden_BQT.shape, dtype=self._data.dtype, device=self._data.device)
            mask_BQT.masked_fill_(hidden_BQT, torch.finfo(self._data.dtype).min)
            self._masks[window] = mask_BQT[:, None]
        return self._masks[window]


_Key = tuple[int, tuple[int, ...]]


class _Node(NamedTuple):
    id: int
    block: int


class PrefixCache:
    """Blocks of keys and values of recent sequences, found by all preceding tokens; evicts the least recently used.

    A block's key is its parent's id and its own tokens, so a match is exact and does not depend on hashes.
    """

    def __init__(self, shape: CacheShape, tokens: int) -> None:
        self._capacity = tokens // BLOCK
        self._nodes: OrderedDict[_Key, _Node] = OrderedDict()
        self._free: list[int] = []
        self._next_id = 1
        self._pool = torch.zeros(
            (0, shape.layers, 2, shape.heads, BLOCK, shape.head_dim), dtype=shape.dtype, device=shape.device
        )

    def __len__(self) -> int:
        return len(self._nodes) * BLOCK

    def match(self, ids: Sequence[int]) -> list[int]:
        """Return the pool indices of the blocks that `ids` starts with."""
        path = self._path(ids)
        self._touch(path)
        return [self._nodes[key].block for key in path]

    def first_unknown(self, ids: Sequence[int]) -> _Key | None:
        """Return the key of the first whole block of `ids` that is not cached; None if all are."""
        path = self._path(ids)
        start = len(path) * BLOCK
        if self._capacity == 0 or start + BLOCK > len(ids):
            return None
        return (self._nodes[path[-1]].id if path else 0, tuple(ids[start : start + BLOCK]))

    def load(self, block_indices: list[int], cache: SlotCache, slot: int) -> None:
        """Copy the blocks at `block_indices` to the beginning of `slot`."""
        if not block_indices:
            return
        length = len(block_indices) * BLOCK
        cache.hold(slot, length)
        blocks = self._pool[block_indices]
        layers, heads, size = blocks.shape[1], blocks.shape[3], blocks.shape[5]
        cache.data[:, :, slot, :, :length] = blocks.permute(1, 2, 3, 0, 4, 5).reshape(layers, 2, heads, length, size)

    def store(self, ids: Sequence[int], cache: SlotCache, slot: int) -> None:
        """Store the whole blocks of `ids`, whose keys and values are at the beginning of `slot`."""
        blocks = min(len(ids) // BLOCK, self._capacity)
        path = self._path(ids[: blocks * BLOCK])
        self._touch(path)
        cached, block_indices = len(path), list[int]()
        for n in range(cached, blocks):
            key = (self._nodes[path[-1]].id if path else 0, tuple(ids[n * BLOCK : (n + 1) * BLOCK]))
            self._nodes[key] = _Node(self._next_id, self._free_block())
            self._next_id += 1
            block_indices.append(self._nodes[key].block)
            path.append(key)
        if block_indices:
            self._touch(path)
            layers, _, _, heads, _, size = cache.data.shape
            new = cache.data[:, :, slot, :, cached * BLOCK : blocks * BLOCK]
            new = new.reshape(layers, 2, heads, len(block_indices), BLOCK, size)
            self._pool[block_indices] = new.permute(3, 0, 1, 2, 4, 5)

    def flush(self) -> None:
        """Remove all prefixes."""
        self._free.extend(node.block for node in self._nodes.values())
        self._nodes.clear()

    def _path(self, ids: Sequence[int]) -> list[_Key]:
        path: list[_Key] = []
        parent = 0
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            key = (parent, tuple(ids[start : start + BLOCK]))
            node = self._nodes.get(key)
            if node is None:
                break
            path.append(key)
            parent = node.id
        return path

    def _touch(self, path: list[_Key]) -> None:
        """Mark blocks as used, children first, so that a parent is more recent and is evicted after its children."""
        for key in reversed(path):
            self._nodes.move_to_end(key)

    def _free_block(self) -> int:
        if self._free:
            return self._free.pop()
        used = len(self._nodes)
        if used >= self._capacity:
            return self._nodes.popitem(last=False)[1].block
        if used == len(self._pool):
            pool = self._pool.new_zeros((min(self._capacity, max(64, 2 * used)), *self._pool.shape[1:]))
            pool[:used] = self._pool
            self._pool = pool
        return used
