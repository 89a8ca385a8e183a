"""CSV: a header with the keys, then one task a record. Every value is a text, exactly as the file has it.

CSV has no types: `007`, `1e5` or `nan` may be a number or a name, and a guess by column or by value would change with
the rows of a file.
"""

import csv
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from leyden.core.data.plain.values import MOST_PLAIN_BYTES
from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.task_sources import PlacedTask
from leyden.core.trainer.rollouts.task_sources.text_lines import text_lines


def read_csv(file: Path) -> Iterator[PlacedTask]:
    """Yield the tasks of a file with commas, quotes as in RFC 4180, and a header; blank lines are skipped.

    The place of a task is the line on which its record begins, since a quoted value may contain newlines. Raises
    TaskError, with the line, for a header with an empty or duplicate name, for a record with more or fewer values than
    the header, and for a quote that is not closed.
    """
    header: list[str] | None = None
    for number, values in _records(file):
        if header is None:
            header = _checked(file, number, values)
        elif len(values) != len(header):
            raise TaskError(
                f"{file}, line {number}: {_values(len(values))}, but the header has {len(header)}; quote a value that "
                "contains a comma or a newline"
            )
        else:
            yield PlacedTask(f"line {number}", dict(zip(header, values, strict=True)))


def csv_places(file: Path) -> list[str]:
    """Return the place of each task of a file."""
    return [f"line {number}" for number, _ in _records(file)][1:]


def _records(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record begins, and its values."""
    with _long_values():
        reader, begins = csv.reader(text_lines(file), strict=True), 1
        while True:
            try:
                values = next(reader, None)
            except csv.Error as error:
                raise TaskError(
                    f"{file}, line {begins}: not CSV ({error}); close every quote, and write a quote inside a quoted "
                    "value twice"
                ) from None
            if values is None:
                return
            if values:
                yield begins, values
            begins = reader.line_num + 1


@contextmanager
def _long_values() -> Generator[None]:
    """Accept values of any length that a task may have; the module's own limit is 128 KiB."""
    usual = csv.field_size_limit(MOST_PLAIN_BYTES)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


def _checked(file: Path, number: int, header: list[str]) -> list[str]:
    place = f"{file}, line {number}"
    if "" in header:
        raise TaskError(f"{place}: column {header.index('') + 1} has no name; the first line names every column")
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise TaskError(f"{place}: the header names {twice[0]!r} twice; rename one of the columns")
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and separator in header[0]:
            raise TaskError(f"{place}: the columns are separated by {name}; save the file with commas")
    return header


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"
