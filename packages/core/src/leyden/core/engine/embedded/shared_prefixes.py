"""Shared beginnings: groups rows by their first tokens, and computes attention that reads shared parts once.

The main cost of decoding many rows is to read all of their keys and values. If rows begin with the same prompt, these
are equal, and one matrix product over all of the rows reads them once. Shape suffixes: B rows, H heads, K key-value
heads, R heads of each of those, D head size, T columns, P shared columns.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

CLASS_BYTES = 256 << 10
"""Cost of reading a shared beginning separately, as the number of bytes that are read in the same time."""
WORTH_BYTES = 512 << 10
"""Minimum saving in bytes; a smaller one is not worth the overhead."""
_TOKEN_BYTES = array("q").itemsize


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Rows in classes; the rows of a class begin with the same `length` tokens."""

    length: int
    leaders: list[int]
    """One row of each class."""
    sizes: list[int]
    order_B: Tensor | None
    """The rows class by class; None if there is only one class."""
    index_B: Tensor | None
    """Index of each row in that order."""

    @classmethod
    def of(cls, classes: Sequence[list[int]], length: int) -> "SharedPrefixes":
        """Return the description of `classes`, which together are all rows; those of a class share `length` tokens."""
        order_B = index_B = None
        if len(classes) > 1:
            order_B = torch.tensor([row for rows in classes for row in rows])
            index_B = order_B.argsort()
        return cls(length, [rows[0] for rows in classes], [len(rows) for rows in classes], order_B, index_B)


def packed(ids: Iterable[int]) -> bytes:
    """Return token ids in the form that `find_shared_prefixes` takes."""
    return array("q", ids).tobytes()


def find_shared_prefixes(prompts: Sequence[bytes], column_bytes: int) -> SharedPrefixes | None:
    """Return the shared beginnings of `prompts` that save most, or None if no saving is large enough.

    A token's keys and values take `column_bytes`. All classes are cut at the same length, so that the rest of all rows
    is one tensor.
    """
    rows_of: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of.setdefault(prompt, []).append(row)
    distinct = sorted(rows_of)  # neighbours in this order share the longest beginnings
    common_lengths = [_tokens_in_common(one, other) for one, other in pairwise(distinct)]
    shortest = min(len(prompt) // _TOKEN_BYTES for prompt in distinct)
    ascending = sorted(common_lengths)

    def saved(length: int) -> int:
        classes = 1 + bisect_left(ascending, length)
        return (len(prompts) - classes) * length * column_bytes - classes * CLASS_BYTES

    length = max({shortest, *(tokens for tokens in common_lengths if tokens < shortest)}, key=saved)
    if saved(length) <= WORTH_BYTES:
        return None
    classes = [list(rows_of[distinct[0]])]
    for prompt, tokens in zip(distinct[1:], common_lengths, strict=True):
        if tokens < length:
            classes.append([])
        classes[-1] += rows_of[prompt]
    return SharedPrefixes.of(classes, length)


def attend(q_BH1D: Tensor, keys_BKTD: Tensor, values_BKTD: Tensor, mask_B11T: Tensor, shared: SharedPrefixes) -> Tensor:
    """Return scaled dot-product attention of one token a row, (B, H, 1, D); equal to the plain one up to rounding.

    Of the first `common.length` columns only those of each class's leader are read, for all rows of the class at once.
    """
    rows, heads, _, size = q_BH1D.shape
    groups, length = keys_BKTD.shape[1], shared.length
    q_BKRD = (q_BH1D * size**-0.5).view(rows, groups, heads // groups, size)
    leading = [(keys_BKTD[row, :, :length], values_BKTD[row, :, :length]) for row in shared.leaders]
    shared_BKRP = _by_class(q_BKRD, [keys_KPD.mT for keys_KPD, _ in leading], shared)
    own_BKRT = q_BKRD @ keys_BKTD[:, :, length:].mT
    weights_BKRT = (torch.cat([shared_BKRP, own_BKRT], -1) + mask_B11T).softmax(-1)
    shared_BKRD = _by_class(weights_BKRT[..., :length], [values_KPD for _, values_KPD in leading], shared)
    own_BKRD = weights_BKRT[..., length:] @ values_BKTD[:, :, length:]
    return (shared_BKRD + own_BKRD).reshape(rows, heads, 1, size)


def _by_class(x_BKRX: Tensor, factors_KXY: Sequence[Tensor], shared: SharedPrefixes) -> Tensor:
    """Multiply the rows of each class with the factor of the class, (B, K, R, Y): one product for each class."""
    rows, groups, per_group, _ = x_BKRX.shape
    ordered_BKRX = x_BKRX if shared.order_B is None else x_BKRX[shared.order_B]
    flat_KNX = ordered_BKRX.transpose(0, 1).reshape(groups, rows * per_group, -1)
    parts: Sequence[Tensor] = cast(Any, flat_KNX).split([size * per_group for size in shared.sizes], 1)
    products = [part @ factor for part, factor in zip(parts, factors_KXY, strict=True)]
    whole_KNY = products[0] if len(products) == 1 else torch.cat(products, 1)
    found_BKRY = whole_KNY.view(groups, rows, per_group, -1).transpose(0, 1)
    return found_BKRY if shared.index_B is None else found_BKRY[shared.index_B]


def _tokens_in_common(one: bytes, other: bytes) -> int:
    """Return how many leading tokens two different packed prompts share."""
    low, high = 0, min(len(one), len(other)) // _TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * _TOKEN_BYTES] == other[: middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
