"""Lines of a text file in UTF-8, with a clear error for a file that cannot be read as such."""

from collections.abc import Iterator
from pathlib import Path

from leyden.core.errors import TaskError

BYTE_ORDER_MARK = "\ufeff"
COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}
"""Formats of compressed files by their first bytes."""


def text_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a file, each with its newline; a byte order mark is dropped.

    Only a newline ends a line: a text may contain other line separators. Raises TaskError for a file that does not
    exist, is compressed or cannot be read, and, with the line, for another encoding.
    """
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    _check_uncompressed(file, line)
                yield _decoded(file, number, line)
    except FileNotFoundError:
        raise TaskError(f"task file {file} does not exist") from None
    except IsADirectoryError:
        raise TaskError(f"task file {file} is a folder; give a file, or hf:{file} for a folder of a dataset") from None
    except OSError as error:
        raise TaskError(f"task file {file} cannot be read: {error}") from None


def _check_uncompressed(file: Path, beginning: bytes) -> None:
    packed = next((name for start, name in COMPRESSED.items() if beginning.startswith(start)), None)
    if packed is not None:
        raise TaskError(f"{file} is compressed with {packed}; decompress it first")


def _decoded(file: Path, number: int, line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise TaskError(f"{file}, line {number}: not UTF-8; save the file as UTF-8") from None
    return text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text
