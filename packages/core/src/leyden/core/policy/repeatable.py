"""What torch must be told to compute the same bits again. Loads torch only where that is wanted; knows no runs."""

import os
from collections.abc import Generator
from contextlib import contextmanager

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def repeatable(wanted: bool) -> Generator[None]:
    """Inside the block, where it is `wanted`, torch computes on one thread and with deterministic kernels alone.

    How a sum is split over threads decides how it is rounded. An operation for which torch has no deterministic kernel
    raises. All of this is the process's, and is put back at the end.
    """
    if not wanted:
        yield
        return
    workspace = os.environ.get(WORKSPACE)
    os.environ[WORKSPACE] = workspace or ":4096:8"  # read by CUDA's matrix products when they begin
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
