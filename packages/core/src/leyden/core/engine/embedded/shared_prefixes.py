"""Rows that begin with the same tokens, and attention that reads what they share once. Knows nothing of models.

What decoding many rows costs is to read all of their keys and values; where rows begin with the same prompt, these are
the same, and one product over all of the rows reads them once. Shape suffixes: B rows, H heads, K key-value heads, R
heads of each of those, D head size, T columns, P columns that are shared.
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
"""What it costs to read a shared beginning apart from the rest, as bytes that are read in the same time."""
WORTH_BYTES = 512 << 10
"""Less than this is not worth it, for the same reason."""
_TOKEN_BYTES = array("i").itemsize


@dataclass(frozen=True, slots=True)
class Common:
    """Rows in classes, each of which begins with the same `length` tokens."""

    length: int
    leaders: list[int]
    """A row of each class."""
    sizes: list[int]
    order_B: Tensor | None
    """The rows class by class; None where there is only one."""
    place_B: Tensor | None
    """Where in that order each row is."""

    @classmethod
    def of(cls, classes: Sequence[list[int]], length: int) -> "Common":
        """Return `classes` of rows, which together are all of them, as they share `length` tokens."""
        order_B = place_B = None
        if len(classes) > 1:
            order_B = torch.tensor([row for rows in classes for row in rows])
            place_B = order_B.argsort()
        return cls(length, [rows[0] for rows in classes], [len(rows) for rows in classes], order_B, place_B)


def packed(ids: Iterable[int]) -> bytes:
    """Return token ids as `find_common` takes them."""
    return array("i", ids).tobytes()


def find_common(prompts: Sequence[bytes], column_bytes: int) -> Common | None:
    """Return by which beginnings of `prompts` most is saved, where a token's keys and values take `column_bytes`.

    None where that is not worth it. All classes are cut at the same length, so that the rest of all rows is one tensor.
    """
    rows_of: dict[bytes, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_of.setdefault(prompt, []).append(row)
    distinct = sorted(rows_of)  # neighbours in this order have the most in common
    alike = [_tokens_in_common(one, other) for one, other in pairwise(distinct)]
    shortest = min(len(prompt) // _TOKEN_BYTES for prompt in distinct)
    ascending = sorted(alike)

    def saved(length: int) -> int:
        classes = 1 + bisect_left(ascending, length)
        return (len(prompts) - classes) * length * column_bytes - classes * CLASS_BYTES

    length = max({shortest, *(tokens for tokens in alike if tokens < shortest)}, key=saved)
    if saved(length) <= WORTH_BYTES:
        return None
    classes = [list(rows_of[distinct[0]])]
    for prompt, tokens in zip(distinct[1:], alike, strict=True):
        if tokens < length:
            classes.append([])
        classes[-1] += rows_of[prompt]
    return Common.of(classes, length)


def attend(q_BH1D: Tensor, keys_BKTD: Tensor, values_BKTD: Tensor, mask_B11T: Tensor, common: Common) -> Tensor:
    """Scaled dot-product attention of one token a row, (B, H, 1, D); it differs from the plain one by rounding alone.

    Of the first `common.length` columns only those of each class's leader are read, by all rows of the class at once.
    """
    rows, heads, _, size = q_BH1D.shape
    groups, length = keys_BKTD.shape[1], common.length
    q_BKRD = (q_BH1D * size**-0.5).view(rows, groups, heads // groups, size)
    leading = [(keys_BKTD[row, :, :length], values_BKTD[row, :, :length]) for row in common.leaders]
    shared_BKRP = _by_class(q_BKRD, [keys_KPD.mT for keys_KPD, _ in leading], common)
    own_BKRT = q_BKRD @ keys_BKTD[:, :, length:].mT
    weights_BKRT = (torch.cat([shared_BKRP, own_BKRT], -1) + mask_B11T).softmax(-1)
    shared_BKRD = _by_class(weights_BKRT[..., :length], [values_KPD for _, values_KPD in leading], common)
    own_BKRD = weights_BKRT[..., length:] @ values_BKTD[:, :, length:]
    return (shared_BKRD + own_BKRD).reshape(rows, heads, 1, size)


def _by_class(x_BKRX: Tensor, factors_KXY: Sequence[Tensor], common: Common) -> Tensor:
    """Multiply the rows of each class with the factor of the class, (B, K, R, Y): one product for each class."""
    rows, groups, each, _ = x_BKRX.shape
    ordered_BKRX = x_BKRX if common.order_B is None else x_BKRX[common.order_B]
    flat_KNX = ordered_BKRX.transpose(0, 1).reshape(groups, rows * each, -1)
    parts: Sequence[Tensor] = cast(Any, flat_KNX).split([size * each for size in common.sizes], 1)
    products = [part @ factor for part, factor in zip(parts, factors_KXY, strict=True)]
    whole_KNY = products[0] if len(products) == 1 else torch.cat(products, 1)
    found_BKRY = whole_KNY.view(groups, rows, each, -1).transpose(0, 1)
    return found_BKRY if common.place_B is None else found_BKRY[common.place_B]


def _tokens_in_common(one: bytes, other: bytes) -> int:
    """How many leading tokens two packed prompts, which differ, have in common."""
    low, high = 0, min(len(one), len(other)) // _TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * _TOKEN_BYTES] == other[: middle * _TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
