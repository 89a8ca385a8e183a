import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs, unpack_ids, unpack_log_probs


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_ids_are_little_endian_int32(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert packed == struct.pack(f"<{len(ids)}i", *ids)
    assert list(unpack_ids(packed)) == ids


@given(st.lists(st.floats(width=32, max_value=0, allow_nan=False)))
def test_log_probabilities_are_little_endian_float32(values: list[float]) -> None:
    packed = pack_log_probs(values)
    assert packed == struct.pack(f"<{len(values)}f", *values)
    assert list(unpack_log_probs(packed)) == values


def test_half_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes length"):
        unpack_ids(b"\x00\x00\x00")
