"""Zeros that take up memory only where they are written: for a cache that has room for more than it holds.

A cache of keys and values has a row for each call, and every row has room for the longest. On a CPU under Linux, the
operating system gives a page of 4 KiB to an anonymous mapping when it is first written. Huge pages are declined, as one
of them would span the unused parts of several rows.
"""

import math
import mmap
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor


class LazyZeros:
    """A tensor of zeros. On other devices and systems, its memory is taken at once."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._map = _mapping(math.prod(shape) * dtype.itemsize) if device.type == "cpu" else None
        self.tensor: Tensor = (
            torch.zeros(tuple(shape), dtype=dtype, device=device)
            if self._map is None
            else torch.frombuffer(self._map, dtype=dtype).view(tuple(shape))
        )

    def clear(self) -> None:
        """Set everything to zero, and give the memory back."""
        if self._map is None:
            self.tensor.zero_()
        else:
            self._map.madvise(mmap.MADV_DONTNEED)


def _mapping(size: int) -> mmap.mmap | None:
    """Return an anonymous mapping of `size` bytes; None where the system has none of this kind, or refuses it."""
    if not size or sys.platform != "linux":
        return None
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _no_reserve())
    except OSError:  # a limit on address space
        return None
    with suppress(OSError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return mapping


def _no_reserve() -> int:
    """Return Linux's MAP_NORESERVE, with which a mapping may be larger than the memory; 0 where it is not known."""
    known = 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0
    return getattr(mmap, "MAP_NORESERVE", known)  # Python has the name from 3.12 on
