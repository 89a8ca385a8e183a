"""Repeatable computation: sets torch up so that a computation gives the same bits again.

torch is imported only if this is wanted.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def repeatable(wanted: bool) -> Generator[None]:
    """Inside the block, if `wanted`, torch uses one thread and only deterministic kernels.

    The number of threads affects how a sum is rounded. An operation for which torch has no deterministic kernel raises.
    These settings apply to the whole process, and are restored at the end.
    """
    if not wanted:
        yield
        return
    workspace = os.environ.get(WORKSPACE)
    os.environ[WORKSPACE] = workspace or ":4096:8"  # read by cuBLAS when it starts
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(threads)
        if workspace is None:
            os.environ.pop(WORKSPACE, None)
