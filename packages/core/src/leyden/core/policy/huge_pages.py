"""Huge pages for large tensors on a CPU under Linux.

The C library gives the memory of a large tensor back as soon as the tensor is freed. The operating system then has to
map and clear each page of the next one again. A page has 4 KiB, so logits of 2,048 tokens over a vocabulary of 49,152
have 98,304 of them. PyTorch can request pages of 2 MiB instead, for which the system does a small part of that work.
"""

import os
import sys

import torch

VARIABLE = "THP_MEM_ALLOC_ENABLE"
"""PyTorch reads it once, at its first allocation. It then asks for huge pages for each tensor of at least 2 MiB."""


def use_huge_pages() -> None:
    """Let PyTorch request huge pages, unless the environment decides it or this process has tensors already.

    The environment stays as it is, for the sake of agents that run in this process or are started by it.
    """
    if sys.platform != "linux" or VARIABLE in os.environ:
        return
    os.environ[VARIABLE] = "1"
    try:
        torch.empty(1)
    finally:
        del os.environ[VARIABLE]
