"""Sets of tokens as compressed bits: which tokens could be sampled at each position of a response.

A set has one bit for each token of the vocabulary, 32 in an integer, the lowest bit first.
"""

import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

TokenBits: TypeAlias = NDArray[np.int32]
"""`bits_TW`: a set for each of T positions."""

MOST_BYTES = 1 << 20
"""Largest packed size; sets that are larger are not recorded."""
MOST_UNPACKED = 1 << 28


def pack_token_sets(parts: Sequence[TokenBits]) -> bytes | None:
    """Return the compressed sets of a response's parts, joined; None if they are too large to be recorded."""
    bits_TW = np.concatenate(parts)
    if bits_TW.nbytes > MOST_UNPACKED:
        return None
    packed = zlib.compress(bits_TW.astype("<i4", copy=False).tobytes(), 1)
    return packed if len(packed) <= MOST_BYTES else None


def unpack_token_sets(data: bytes, positions: int) -> TokenBits:
    """Return the sets of a response of `positions` tokens; raises ValueError if `data` does not have that many."""
    try:
        decompressor = zlib.decompressobj()
        raw = decompressor.decompress(data, MOST_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"not a record of token sets: {error}") from None
    if not positions or not raw or decompressor.unconsumed_tail or len(raw) % (4 * positions):
        raise ValueError(f"not the sets of {positions} tokens")
    return np.frombuffer(raw, dtype="<i4").astype(np.int32).reshape(positions, -1)
