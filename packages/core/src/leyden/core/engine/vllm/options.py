"""`VllmOptions`: how a vLLM server of ours is started. Loads no library, and knows nothing of processes."""

import os
import sys
from typing import Literal

import msgspec

from leyden.core.errors import UsageError

PYTHON = "LEYDEN_VLLM"
"""Environment variable: the python of the environment that holds vLLM, where that is not our own."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The largest ranks of adapters that vLLM can be started with."""
OURS = ("--model", "--host", "--port", "--api-key", "--served-model-name", "--logprobs-mode", "--generation-config")
"""Arguments of the server that others would make wrong."""


class VllmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server is started; the defaults are what was tested on a CPU."""

    python: str | None = None
    """The interpreter that has vLLM. [the environment's LEYDEN_VLLM, or this one]"""
    context_length: int | None = None
    """Prompt and answer together; None: what the model was made for."""
    lora_rank: int = 0
    """The largest rank of adapters that it will be given; 0: it is given none, but whole weights."""
    transfer: Literal["restart", "ipc"] = "restart"
    """How whole weights reach it: by starting it anew, or on one GPU through memory that it shares with the trainer."""
    sleep: bool = False
    """Whether it leaves its GPU's memory to the trainer while that computes; on a CPU it then only waits."""
    cache_gib: int = 1
    """Memory for keys and values, on a CPU."""
    gpu_memory: float = 0.45
    """Share of the GPU's memory that it takes, on a GPU; the trainer has the rest."""
    eager: bool | None = None
    """Whether to do without compiling. [on a CPU, where that takes minutes]"""
    start_seconds: float = 900.0
    """How long it may take to come up."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""

    def __post_init__(self) -> None:
        """Raise UsageError for what cannot work."""
        if not 0 <= self.lora_rank <= RANKS[-1]:
            raise UsageError(f"vllm.lora_rank is {self.lora_rank}; vLLM takes adapters of rank 1 to {RANKS[-1]}")
        if self.start_seconds <= 0 or self.cache_gib < 1 or not 0 < self.gpu_memory < 1:
            raise UsageError("vllm: start_seconds must be above 0, cache_gib at least 1, gpu_memory between 0 and 1")
        if self.context_length is not None and self.context_length < 3:
            raise UsageError(f"vllm.context_length must be at least 3, not {self.context_length}")
        if self.transfer == "ipc" and self.lora_rank:
            raise UsageError("vllm.transfer says how whole weights are given, and adapters are: leave it out")
        for argument in self.arguments:
            if argument.partition("=")[0] in OURS:
                raise UsageError(f"vllm.arguments cannot hold {argument.partition('=')[0]}: Leyden sets it")

    @property
    def interpreter(self) -> str:
        """The python that runs the server."""
        return self.python or os.environ.get(PYTHON) or sys.executable

    @property
    def served_rank(self) -> int:
        """The rank to start the server with: the next that it takes."""
        return next(rank for rank in RANKS if rank >= self.lora_rank)
