"""Whether a query returns what the gold query returns: execution match.

The definition is that of Spider's evaluation (Zhong, Yu and Klein, "Semantic Evaluation for Text-to-SQL with
Distilled Test Suites", EMNLP 2020, and the evaluation script published with it), on one database:

- `DISTINCT` is removed from both queries, `> =` is read as `>=`, and both are executed;
- rows are compared as multisets, so duplicates count; in their order if the gold query has an `ORDER BY`, with any
  white space between the two words, and not within a quoted text;
- the columns may be in any order, the same for all rows; their names do not matter;
- a query that fails, is refused or takes too long has no match, not even with a gold query that fails, too.

A result whose columns are so much alike that the search for their order looks at more than MAX_CELLS values has no
match either.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from safe_sqlite import QueryError, run_readonly

Row = tuple[object, ...]
QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]"""
DISTINCT = re.compile(rf"({QUOTED})|\bdistinct\b", re.IGNORECASE)
ORDER_BY = re.compile(rf"{QUOTED}|\b(order\s+by)\b", re.IGNORECASE)
MAX_CELLS = 10_000_000
"""Values that the search for an order of the columns may look at, a few seconds of it."""


def same_result(database: Path, query: str, gold: str) -> bool:
    """Return whether both queries have the same result on the database."""
    try:
        expected = run_readonly(database, prepared(gold)).rows
        found = run_readonly(database, prepared(query)).rows
    except QueryError:
        return False
    return same_rows(found, expected, ordered=is_ordered(gold))


def is_ordered(query: str) -> bool:
    """Return whether the query has an `ORDER BY`, in a subquery too, as Spider's evaluation looks for it."""
    return any(match[1] for match in ORDER_BY.finditer(query))


def prepared(query: str) -> str:
    """Remove `DISTINCT` wherever it is not part of a quoted text, and the space that Spider has in `> =`."""
    for operator in "><!":
        query = query.replace(f"{operator} =", f"{operator}=")
    return DISTINCT.sub(lambda match: match[1] or "", query)


def same_rows(found: Sequence[Row], expected: Sequence[Row], *, ordered: bool) -> bool:
    """Return whether an order of `found`'s columns makes its rows those that were expected."""
    if not expected or not found:
        return len(expected) == len(found)
    if len(found) != len(expected) or len(found[0]) != len(expected[0]):
        return False
    columns = list(zip(*found, strict=True)), list(zip(*expected, strict=True))
    if ordered:
        return Counter(columns[0]) == Counter(columns[1])
    return _Search().matches(*columns, *_numbered(map(_bag, found), map(_bag, expected)))


class _Search:
    """Looks for the order of the columns, and counts the values that it has looked at."""

    cells = 0

    def matches(self, found: list[Row], expected: list[Row], rows: list[int], wanted: list[int]) -> bool:
        """Return whether the columns of `found` can stand for those of `expected`.

        `rows` and `wanted` number the rows of each by what is known of them: a column may only stand for one that has
        the same values in rows of the same numbers.
        """
        self.cells += 2 * len(found) * len(rows)
        if not found or self.cells > MAX_CELLS:
            return not found
        alike, wanted_alike = _alike(found, rows), _alike(expected, wanted)
        if {bag: len(columns) for bag, columns in alike.items()} != {
            bag: len(columns) for bag, columns in wanted_alike.items()
        }:
            return False
        settled = [bag for bag in alike if len({*alike[bag]}) == len({*wanted_alike[bag]}) == 1]
        if settled:
            chosen = _numbered(
                zip(rows, *(column for bag in settled for column in alike.pop(bag)), strict=True),
                zip(wanted, *(column for bag in settled for column in wanted_alike.pop(bag)), strict=True),
            )
            rest = [*chain(*alike.values())], [*chain(*wanted_alike.values())]
            return Counter(chosen[0]) == Counter(chosen[1]) and self.matches(*rest, *chosen)
        smallest = min(alike, key=lambda bag: len(alike[bag]))
        column = wanted_alike[smallest][0]
        return any(
            self.matches(
                _without(found, candidate),
                _without(expected, column),
                *_numbered(zip(rows, candidate, strict=True), zip(wanted, column, strict=True)),
            )
            for candidate in dict.fromkeys(alike[smallest])  # equal columns are interchangeable
        )


def _alike(columns: list[Row], rows: list[int]) -> dict[Hashable, list[Row]]:
    """Return the columns by their values and the rows that have them."""
    groups: dict[Hashable, list[Row]] = {}
    for column in columns:
        groups.setdefault(_bag(zip(rows, column, strict=True)), []).append(column)
    return groups


def _bag(items: Iterable[Hashable]) -> Hashable:
    """Return the items without their order."""
    return frozenset(Counter(items).items())


def _numbered(*descriptions: Iterable[Hashable]) -> list[list[int]]:
    """Return a number for each description, the same for equal ones."""
    numbers: dict[Hashable, int] = {}
    return [[numbers.setdefault(one, len(numbers)) for one in each] for each in descriptions]


def _without(columns: list[Row], column: Row) -> list[Row]:
    at = columns.index(column)
    return columns[:at] + columns[at + 1 :]
