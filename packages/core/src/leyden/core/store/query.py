"""`Query`: filters, sorting and paging as data. Evaluated here for rows in memory; `sql` compiles it to SQL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from leyden.core.data.page import Page
from leyden.core.errors import CallRefused
from leyden.core.store.arguments import FilterLogic, SortOrder
from leyden.core.store.text import check_text, check_texts

R = TypeVar("R", bound=msgspec.Struct)
N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class Condition:
    """One test of one field. A field that is None passes no test."""

    field: str
    test: Literal["equals", "contains", "one of"]
    value: str | frozenset[str]

    def holds(self, row: msgspec.Struct) -> bool:
        """Whether `row` passes the test."""
        have = getattr(row, self.field)
        if have is None:
            return False
        if self.test == "contains":
            return self.value in have
        return have == self.value if self.test == "equals" else have in self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows, in which order, and which page of them. Ties and unsorted rows come in the order of creation."""

    within: Mapping[str, str] = field(default_factory=dict[str, str])
    """Fields that must be equal, whatever `logic` is."""
    conditions: tuple[Condition, ...] = ()
    logic: FilterLogic = "and"
    """How `conditions` are joined; without conditions, no row is filtered out."""
    sort_by: str | None = None
    """Field to sort by; None values come last in ascending order and first in descending order."""
    order: SortOrder = "asc"
    limit: int = -1
    offset: int = 0
    after: "Place | None" = None
    """Only rows behind this place are on the page; the total counts the others too. For shards, whose rows have
    positions."""

    def page(self, found: tuple[list[R], int], to_record: Callable[[R], N]) -> Page[N]:
        """Return a page of records, each made by `to_record` from a row."""
        rows, total = found
        return Page(items=[to_record(row) for row in rows], limit=self.limit, offset=self.offset, total=total)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a row in the order of a query: what the query sorts by, and the row's position for ties."""

    value: Any
    """Value of the field to sort by; None where the query does not sort."""
    position: int
    """Position in the order of creation."""

    def is_before(self, other: "Place", *, descending: bool) -> bool:
        """Whether a row here comes before a row at `other`."""
        if self.value == other.value:
            return self.position < other.position
        if self.value is None or other.value is None:
            return (self.value is None) == descending
        return self.value > other.value if descending else self.value < other.value

    @staticmethod
    def of(row: msgspec.Struct, position: int, query: "Query") -> "Place":
        """Return the place of a row in the order of `query`."""
        return Place(None if query.sort_by is None else getattr(row, query.sort_by), position)


def conditions(
    *,
    equals: Mapping[str, str | None] | None = None,
    contains: Mapping[str, str | None] | None = None,
    one_of: Mapping[str, Sequence[str] | None] | None = None,
) -> tuple[Condition, ...]:
    """Return a condition for each value that is not None. No row passes the condition of an empty sequence."""
    return (
        *(Condition(name, "equals", value) for name, value in (equals or {}).items() if value is not None),
        *(Condition(name, "contains", value) for name, value in (contains or {}).items() if value is not None),
        *(
            Condition(name, "one of", frozenset(values))
            for name, values in (one_of or {}).items()
            if values is not None
        ),
    )


def check(query: Query, sortable: frozenset[str]) -> Query:
    """Return `query`; raise CallRefused, a ValueError, for an unknown sort field or another invalid argument.

    Raises UsageError when it searches for text that no store can hold.
    """
    check_text(**query.within)
    for condition in query.conditions:
        check_texts(condition.field, [condition.value] if isinstance(condition.value, str) else [*condition.value])
    if query.sort_by is not None and query.sort_by not in sortable:
        raise CallRefused(f"cannot sort by {query.sort_by!r}; use one of {', '.join(sorted(sortable))}")
    for name, value, allowed in (
        ("sort_order", query.order, ("asc", "desc")),
        ("filter_logic", query.logic, ("and", "or")),
    ):
        if value not in allowed:
            raise CallRefused(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
    if query.offset < 0:
        raise CallRefused(f"offset is {query.offset}; the first result has offset 0")
    return query


def evaluate(rows: Iterable[R], query: Query, position: Callable[[R], int] | None = None) -> tuple[list[R], int]:
    """Return the page of `rows` that matches `query`, and the number of matching rows before paging.

    `position` returns the position of a row, for a query with `after`.
    """
    found = [row for row in rows if _passes(row, query)]
    total = len(found)
    if query.sort_by is not None:
        found = _sorted(found, query.sort_by, query.order == "desc")
    if query.after is not None and position is not None:
        before, descending = query.after, query.order == "desc"
        found = [row for row in found if before.is_before(Place.of(row, position(row), query), descending=descending)]
    last = None if query.limit < 0 else query.offset + query.limit
    return found[query.offset : last], total


def _passes(row: msgspec.Struct, query: Query) -> bool:
    if any(getattr(row, name) != value for name, value in query.within.items()):
        return False
    if not query.conditions:
        return True
    joined = any if query.logic == "or" else all
    return joined(condition.holds(row) for condition in query.conditions)


def _sorted(rows: list[R], name: str, descending: bool) -> list[R]:
    def key(row: R) -> Any:
        return getattr(row, name)

    nones = [row for row in rows if key(row) is None]
    rest = sorted((row for row in rows if key(row) is not None), key=key, reverse=descending)
    return nones + rest if descending else rest + nones
