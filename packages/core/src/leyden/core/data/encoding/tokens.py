"""Token ids and log-probabilities as packed little-endian bytes, the form in which they are sent and stored.

A call of a thousand tokens as JSON numbers takes ten times as many bytes as its packed form.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import TypeAlias, TypeVar

TokenIds: TypeAlias = "array[int]"
"""Token ids: a C int32 array. It compares, slices and concatenates like a list, and numpy views it without a copy."""

LogProbs: TypeAlias = "array[float]"
"""Log-probabilities: a C float32 array."""


A = TypeVar("A", "array[int]", "array[float]")


def token_ids(ids: Iterable[int]) -> TokenIds:
    """Return `ids` as a `TokenIds` array."""
    return array("i", ids)


def log_probs(values: Iterable[float]) -> LogProbs:
    """Return `values` as a `LogProbs` array."""
    return array("f", values)


def pack_ids(ids: Iterable[int]) -> bytes:
    """Pack token ids as little-endian int32, four bytes each."""
    return _swapped(token_ids(ids)).tobytes()


def unpack_ids(data: bytes) -> TokenIds:
    """Return the ids packed by `pack_ids`; raises ValueError when `data` is not a whole number of int32."""
    values: TokenIds = array("i")
    values.frombytes(data)
    return _swapped(values)


def pack_log_probs(values: Iterable[float]) -> bytes:
    """Pack log-probabilities as little-endian float32, four bytes each."""
    return _swapped(log_probs(values)).tobytes()


def unpack_log_probs(data: bytes) -> LogProbs:
    """Return the values packed by `pack_log_probs`; raises ValueError when `data` is not a whole number of float32."""
    values: LogProbs = array("f")
    values.frombytes(data)
    return _swapped(values)


def _swapped(values: A) -> A:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values
