"""Zeros that take up memory only where they are written."""

import sys
from pathlib import Path

import pytest
import torch

from leyden.core.engine.embedded.cache import CacheShape, SlotCache
from leyden.core.engine.embedded.lazy_zeros import LazyZeros

CPU = torch.device("cpu")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory is mapped lazily on Linux only")
MIB = 1 << 20


def resident() -> int:
    """Bytes of memory that this process takes up."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_it_is_a_tensor_of_zeros_that_can_be_written_and_cleared(dtype: torch.dtype) -> None:
    zeros = LazyZeros((3, 5, 7), dtype, CPU)
    assert (zeros.tensor.dtype, zeros.tensor.shape) == (dtype, (3, 5, 7))
    assert not zeros.tensor.any()

    zeros.tensor[1] = torch.nan
    assert zeros.tensor.isnan().sum() == 35

    zeros.clear()
    assert not zeros.tensor.any()
    zeros.tensor[2, 4, 6] = 1.5
    assert zeros.tensor.sum() == 1.5


def test_nothing_is_a_tensor_too() -> None:
    assert LazyZeros((2, 0, 4), torch.float32, CPU).tensor.shape == (2, 0, 4)


@LINUX
def test_only_what_was_written_takes_up_memory_until_it_is_cleared() -> None:
    before = resident()
    zeros = LazyZeros((64, 8 * MIB), torch.float32, CPU)
    assert zeros.tensor[:, ::4096].sum() == 0, "reading takes up nothing"
    assert resident() - before < 64 * MIB

    zeros.tensor[3, : 8 * MIB] = 1.0
    assert 24 * MIB < resident() - before < 96 * MIB

    zeros.clear()
    assert resident() - before < 64 * MIB


@LINUX
def test_a_long_sequence_makes_short_ones_no_larger() -> None:
    """With room for 8,192 tokens in each of 64 slots, 63 short sequences and a long one take up what they hold."""
    cache = SlotCache(CacheShape(layers=4, heads=4, head_dim=64, dtype=torch.float32, device=CPU))
    token = 4 * 2 * 4 * 64 * 4
    before = resident()

    for slot in range(63):
        cache.step(slot, [list(range(64))])
        cache.data[:, :, slot, :, :64] = 1.0
    for length in range(1024, 8193, 1024):
        cache.step(63, [list(range(length))])
        cache.data[:, :, 63, :, :length] = 2.0

    held = (63 * 64 + 8192) * token
    assert cache.data.nbytes == 64 * 8192 * token
    assert resident() - before < 3 * held + 32 * MIB
    assert (cache.data[:, :, 5, :, :64] == 1.0).all()
    assert (cache.data[:, :, 63] == 2.0).all()
    assert not cache.data[:, :, 5, :, 64:].any()
