"""Whether a query returns what the gold query returns: execution match.

The definition is that of Spider's evaluation (Zhong, Yu and Klein, "Semantic Evaluation for Text-to-SQL with
Distilled Test Suites", EMNLP 2020, and the evaluation script published with it), on one database:

- `DISTINCT` is removed from both queries, `> =` is read as `>=`, and both are executed;
- rows are compared as multisets, so duplicates count; in their order if the gold query has an `ORDER BY`;
- the columns may be in any order, the same for all rows; their names do not matter;
- a query that fails, is refused or takes too long has no match, not even with a gold query that fails, too.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from safe_sqlite import QueryError, run_readonly

Row = tuple[object, ...]
DISTINCT = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\])|\bdistinct\b""", re.IGNORECASE)


def same_result(database: Path, query: str, gold: str) -> bool:
    """Return whether both queries have the same result on the database."""
    try:
        expected = run_readonly(database, prepared(gold)).rows
        found = run_readonly(database, prepared(query)).rows
    except QueryError:
        return False
    return same_rows(found, expected, ordered="order by" in gold.lower())


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
    return _matches(list(zip(*found, strict=True)), list(zip(*expected, strict=True)), [], ordered)


def _matches(found: list[Row], expected: list[Row], chosen: list[int], ordered: bool) -> bool:
    """Extend `chosen`, the columns of `found` that stand for the first ones of `expected`, to all of them."""
    if not _equal([found[column] for column in chosen], expected[: len(chosen)], ordered):
        return False
    if len(chosen) == len(expected):
        return True
    free = [column for column in range(len(found)) if column not in chosen]
    return any(_matches(found, expected, [*chosen, column], ordered) for column in free)


def _equal(found: list[Row], expected: list[Row], ordered: bool) -> bool:
    if ordered:
        return found == expected
    return Counter(zip(*found, strict=True)) == Counter(zip(*expected, strict=True))
