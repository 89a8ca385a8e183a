"""What a run needs of its process to be the same bit for bit when it is run again. Knows nothing of draws or agents."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leyden.core.engine.embedded import EmbeddedConfig
    from leyden.core.trainer.config import RunConfig


@contextmanager
def repeatable(wanted: bool) -> Generator[None]:
    """Inside the block, where it is `wanted`, torch computes on one thread and with deterministic kernels alone.

    How a sum is split over threads decides how it is rounded. An operation for which torch has no deterministic kernel
    raises. Both settings are the process's; they are put back at the end.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by CUDA's matrix products when they begin
    import torch

    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)
        torch.set_num_threads(threads)


def engine_config(config: "RunConfig") -> "EmbeddedConfig":
    """How the embedded engine decodes in this run.

    A deterministic run decodes one sequence at a time and keeps no prefixes: how many rows a matrix product has, and
    from where in a prompt it begins, decides how each row is rounded.
    """
    from leyden.core.engine.embedded import EmbeddedConfig

    if not config.deterministic:
        return EmbeddedConfig(threads=config.threads, seed=config.seed)
    return EmbeddedConfig(threads=1, seed=config.seed, max_batch=1, prefix_cache_tokens=0, batch_wait_seconds=0.0)
