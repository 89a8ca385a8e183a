"""The process's standard descriptors: open, however it was started, and an output whose failure is one line."""

import io
import os
import sys
from typing import Any

from leyden.core.errors import LeydenError


class OutputError(LeydenError):
    """The standard output takes no more: the disk is full, or its reader has gone."""


def open_descriptors() -> None:
    """Open those of 0, 1 and 2 that are closed, on nothing, and the streams of Python's that stand for them.

    The next file or socket of the process would otherwise get their number, and what is printed would land in it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:  # it was closed
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- it lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 -- it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 -- it lives as long as the process


def guard_output() -> None:
    """Let `sys.stdout` raise OutputError where its descriptor cannot be written; one that is no descriptor stays."""
    plain = sys.stdout
    try:
        if not isinstance(plain, io.TextIOWrapper) or plain.fileno() != 1:
            return
    except (OSError, ValueError):
        return
    plain.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Guarded(1, "w", closefd=False)),
        encoding=plain.encoding,
        errors=plain.errors,
        line_buffering=plain.line_buffering or plain.write_through,
    )


def give_up_output() -> None:
    """Write nothing more to the standard output: what its buffer still holds goes nowhere, silently."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


class _Guarded(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror}") from None
