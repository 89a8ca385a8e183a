import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.encoding import token_sets
from leyden.core.data.encoding.token_sets import pack_token_sets, unpack_token_sets


@given(st.integers(1, 20), st.integers(1, 9), st.randoms(use_true_random=False))
def test_sets_come_back(positions: int, width: int, draw: object) -> None:
    rng = np.random.default_rng(hash(draw) % (1 << 32))
    bits = rng.integers(-(1 << 31), 1 << 31, (positions, width)).astype(np.int32)
    packed = pack_token_sets([bits])
    assert packed is not None
    assert (unpack_token_sets(packed, positions) == bits).all()


def test_the_lowest_bit_of_the_first_integer_is_token_0() -> None:
    packed = pack_token_sets([np.array([[1, 0], [0, 2]], dtype=np.int32)])
    assert packed is not None
    assert zlib.decompress(packed) == bytes([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0])


def test_what_is_too_large_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (4, 100)).astype(np.int32)
    monkeypatch.setattr(token_sets, "MOST_BYTES", 1000)
    assert pack_token_sets([bits]) is None
    assert pack_token_sets([np.zeros((4, 100), dtype=np.int32)]) is not None


@pytest.mark.parametrize(
    ("data", "positions"),
    [
        (b"", 1),
        (b"nothing", 1),
        (zlib.compress(b""), 1),
        (zlib.compress(bytes(4)), 0),
        (zlib.compress(bytes(4)), 2),
        (zlib.compress(bytes(9)), 1),
    ],
)
def test_other_bytes_are_refused(data: bytes, positions: int) -> None:
    with pytest.raises(ValueError, match="token"):
        unpack_token_sets(data, positions)


def test_a_record_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sets, "MOST_UNPACKED", 100)
    with pytest.raises(ValueError, match="token"):
        unpack_token_sets(zlib.compress(bytes(400)), 1)
