"""Devices: checks that a policy can be trained and served on a device, and recognises a device without memory left."""

import re
from typing import TYPE_CHECKING

from leyden.core.errors import UsageError, first_line

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda")


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
