"""Standard file descriptors: opens missing ones at start, and turns output failures into errors of one line."""

import io
import os
import sys
from typing import Any

from leyden.core.errors import LeydenError


class OutputError(LeydenError):
    """Raised when standard output cannot be written: the disk is full, or its reader has gone."""


def open_descriptors() -> None:
    """Open missing descriptors among 0, 1 and 2 on the null device, and their Python streams.

    Otherwise the next file or socket of the process would get the number, and printed text would go into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:  # its descriptor was closed
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- it lives as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 -- it lives as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 -- it lives as long as the process


def guard_output() -> None:
    """Make `sys.stdout` raise OutputError if its descriptor cannot be written; other streams stay unchanged."""
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
    """Discard all further output, including what the buffer of standard output still holds."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.close(nothing)


class _Guarded(io.FileIO):
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(f"standard output cannot be written: {error.strerror}") from None
