"""`answer`: the expected result of a query over plain lists, by filters, then sorting, then paging."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from leyden.core.data.page import Page
from leyden.core.errors import CallRefused

T = TypeVar("T")

FILTERS = ("_in", "_contains", "")
"""Endings of the names of filters; the part before is the field's name."""


def answer(
    records: Iterable[T],
    filters: dict[str, Any],
    *,
    filter_logic: str = "and",
    sort_by: str | None = None,
    sort_order: str = "asc",
    limit: int = -1,
    offset: int = 0,
) -> Page[T]:
    """Return the page for a query. Raises CallRefused for an invalid one."""
    found = list(records)
    given = {name: value for name, value in filters.items() if value is not None}
    if given:
        joined = any if filter_logic == "or" else all
        found = [record for record in found if joined(_passes(record, name, value) for name, value in given.items())]
    if offset < 0 or sort_by == "nothing":
        raise CallRefused
    if sort_by is not None:
        found = _sorted(found, sort_by, sort_order == "desc")
    end = len(found) if limit < 0 else offset + limit
    return Page(items=found[offset:end], limit=limit, offset=offset, total=len(found))


def _passes(record: Any, name: str, value: Any) -> bool:
    ending = next(ending for ending in FILTERS if name.endswith(ending))
    have = getattr(record, name.removesuffix(ending))
    if have is None:
        return False
    if ending == "_contains":
        return value in have
    return have in value if ending == "_in" else have == value


def _sorted(records: Sequence[T], name: str, descending: bool) -> list[T]:
    without = [record for record in records if getattr(record, name) is None]
    having = [record for record in records if getattr(record, name) is not None]
    having.sort(key=lambda record: getattr(record, name), reverse=descending)
    return without + having if descending else having + without
