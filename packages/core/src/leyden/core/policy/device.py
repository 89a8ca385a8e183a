"""Devices: checks that a policy can be trained and served on a device, before anything is loaded."""

from leyden.core.errors import UsageError

DEVICES = ("cpu", "cuda")


def check_device_name(device: str) -> None:
    """Raise UsageError unless `device` is in `DEVICES`. Does not import torch."""
    if device in DEVICES:
        return
    kind, colon, index = device.partition(":")
    if kind == "cuda" and colon:
        raise UsageError(
            f"device {device!r}: a run uses one GPU, and device cuda is the first that it sees; "
            f"choose another with CUDA_VISIBLE_DEVICES={index or 0}"
        )
    raise UsageError(f"device is {' or '.join(DEVICES)}, not {device!r}")


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
        why = "PyTorch finds no GPU here"
    raise UsageError(f"device cuda cannot be used: {why}; device cpu works without one")
