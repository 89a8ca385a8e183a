"""Devices: checks that a policy can be trained and served on a device, and recognises a device without memory left."""

import platform
import re
from typing import TYPE_CHECKING

from leyden.core.errors import UsageError, first_line

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda")
TRAINER, ENGINE = "--set precision=float32", "--engine-precision float32"


def check_device_name(device: str) -> None:
    """Raise UsageError unless `device` is in `DEVICES`. Does not import torch."""
    if device in DEVICES:
        return
    kind, colon, index = device.partition(":")
    if kind == "cuda" and colon:
        raise UsageError(
            f"device {device!r}: a run uses one GPU, the first that it sees, as device cuda; choose another with "
            f"CUDA_VISIBLE_DEVICES={index or 0}"
        )
    raise UsageError(f"device must be {' or '.join(DEVICES)}, not {device!r}")


def check_device(device: str) -> None:
    """Raise UsageError, in one line, unless PyTorch can use `device` on this machine."""
    check_device_name(device)
    if device == "cpu":
        return
    import torch

    if torch.cuda.is_available():
        return
    if torch.version.cuda is None and torch.version.hip is None:
        why = f"this PyTorch ({torch.__version__}) was built without CUDA"
    else:
        why = "PyTorch finds no GPU on this machine"
    raise UsageError(f"device cuda cannot be used: {why}; use device cpu")


def bfloat16_warning(device: str, *, engine: bool, trainer: bool) -> str | None:
    """Return a line about bfloat16 where `device` is a processor without instructions for it, else None.

    PyTorch then computes a matrix product of many rows 10 to 40 times slower than in float32, and one of a single row
    1.5 times slower. `engine` and `trainer` say which of them computes in bfloat16.
    """
    if device != "cpu" or not (engine or trainer) or _has_bfloat16():
        return None
    options = [option for option, is_given in ((TRAINER, trainer), (ENGINE, engine)) if is_given]
    return f"this processor has no instructions for bfloat16, so float32 is many times faster: {' and '.join(options)}"


def _has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16, as far as PyTorch finds out: on x86 alone."""
    import torch

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    checks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(check is None or check() for check in checks)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether PyTorch raised `error` because it could not allocate a tensor, on a GPU or on the CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def allocation(error: RuntimeError) -> str:
    """Return from PyTorch's message how much could not be allocated, or the message's first line."""
    found = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(error))
    return f"{found[1]} could not be allocated" if found else first_line(error)


def return_unused_memory(device: "torch.device") -> None:
    """Return to the GPU what PyTorch keeps of it for later allocations."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
