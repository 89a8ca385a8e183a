"""`VllmOptions`: how Leyden starts a vLLM server. Imports no library."""

import os
import sys
from typing import Literal

import msgspec

from leyden.core.errors import UsageError

PYTHON = "LEYDEN_VLLM"
"""Environment variable: the Python interpreter of the environment that holds vLLM, if it is another one."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Maximum adapter ranks with which vLLM can be started."""
RESERVED_ARGUMENTS = (
    "--model",
    "--host",
    "--port",
    "--api-key",
    "--served-model-name",
    "--logprobs-mode",
    "--generation-config",
    "--structured-outputs-config",
)
"""Server arguments that only Leyden may set."""


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server is started; the defaults were tested on a CPU."""

    python: str | None = None
    """The interpreter that has vLLM. Default: the environment variable LEYDEN_VLLM, else this interpreter."""
    context_length: int | None = None
    """Maximum length of prompt and response together; None: the model's limit."""
    lora_rank: int = 0
    """Maximum rank of adapters that it will be given; 0: it is given whole weights, not adapters."""
    transfer: Literal["restart", "ipc"] = "restart"
    """How whole weights reach the server: by a restart, or on one GPU through memory shared with the trainer."""
    sleep: bool = False
    """Whether the server frees its GPU's memory while the trainer computes; on a CPU it then only waits."""
    cache_gib: int = 1
    """Memory for keys and values in GiB, on a CPU."""
    gpu_memory: float = 0.45
    """Share of the GPU's memory for the server, on a GPU; the trainer has the rest."""
    eager: bool | None = None
    """Whether to skip compilation. Default: only on a CPU, where compilation takes minutes."""
    start_seconds: float = 900.0
    """Maximum time for the server's start, in seconds."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot work."""
        if not 0 <= self.lora_rank <= RANKS[-1]:
            raise UsageError(f"vllm.lora_rank is {self.lora_rank}; vLLM takes adapters of rank 1 to {RANKS[-1]}")
        if self.start_seconds <= 0 or self.cache_gib < 1 or not 0 < self.gpu_memory < 1:
            raise UsageError("vllm: start_seconds must be above 0, cache_gib at least 1, gpu_memory between 0 and 1")
        if self.context_length is not None and self.context_length < 3:
            raise UsageError(f"vllm.context_length must be at least 3, not {self.context_length}")
        if self.transfer == "ipc" and self.lora_rank:
            raise UsageError("vllm.transfer has no effect with adapters, only with whole weights: leave it out")
        for argument in self.arguments:
            if argument.partition("=")[0] in RESERVED_ARGUMENTS:
                raise UsageError(f"vllm.arguments cannot hold {argument.partition('=')[0]}: Leyden sets it")

    @property
    def interpreter(self) -> str:
        """The Python interpreter that runs the server."""
        return self.python or os.environ.get(PYTHON) or sys.executable

    @property
    def served_rank(self) -> int:
        """The rank to start the server with: the smallest supported one that is large enough."""
        return next(rank for rank in RANKS if rank >= self.lora_rank)
