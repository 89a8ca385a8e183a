"""SQL expressions that SQLite and PostgreSQL write differently, as SQLAlchemy elements that compile for both."""

from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Integer,
    Subquery,
    Text,
    bindparam,
    cast,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class greatest(FunctionElement[Any]):
    """The larger of its two arguments."""

    inherit_cache = True
    type = Integer()


class _position(FunctionElement[int]):
    """Position of the second argument in the first, from 1; 0 where the first does not contain it."""

    inherit_cache = True
    type = Integer()


class _elements(FunctionElement[Any]):
    """The elements of a JSON list, as rows with a column `value`."""

    inherit_cache = True


class _all(FunctionElement[int]):
    """A limit that covers all elements of a JSON list, so that PostgreSQL's planner estimates their number."""

    inherit_cache = True
    type = Integer()


class _text(FunctionElement[str]):
    """An element of a JSON list as text."""

    inherit_cache = True
    type = Text()


class _part(FunctionElement[str]):
    """One part, as text, of an element that is itself a list; the second argument is its index."""

    inherit_cache = True
    type = Text()


def among(column: Column[Any], values: str | BindParameter[str]) -> ColumnElement[bool]:
    """Return a condition like IN for any number of texts, which are sent as one JSON parameter."""
    listed = _elements(values).table_valued("value")
    return column.in_(select(_text(listed.c.value)).limit(_all(values)))


def tuples_among(*columns: Column[Any]) -> ColumnElement[bool]:
    """Return a condition: the columns together equal one of the lists of texts in the JSON parameter `keys`."""
    keys = bindparam("keys", type_=Text)
    listed = _elements(keys).table_valued("value")
    parts = [_part(listed.c.value, literal_column(str(position))) for position in range(len(columns))]
    return tuple_(*columns).in_(select(*parts).limit(_all(keys)))


def listed(*columns: Column[Any]) -> Subquery:
    """Return a subquery: a row, with columns like these, for each of the lists of values in the JSON parameter `keys`.

    In a join, SQLite looks up each row by a whole index; for `tuples_among`, it may use the first column only.
    """
    keys = bindparam("keys", type_=Text)
    elements = _elements(keys).table_valued("value")
    parts: list[ColumnElement[Any]] = []
    for position, column in enumerate(columns):
        part = _part(elements.c.value, literal_column(str(position)))
        parts.append((part if isinstance(column.type, Text) else cast(part, column.type)).label(column.name))
    return select(*parts).limit(_all(keys)).subquery()


def holds(column: Column[Any], text: str) -> ColumnElement[bool]:
    """Return a condition: the text column contains `text`, with regard to case."""
    return _position(column, text) > 0


_WRITTEN: dict[type[FunctionElement[Any]], tuple[str, str]] = {
    greatest: ("max({p0}, {p1})", "greatest({p0}, {p1})"),
    _position: ("instr({p0}, {p1})", "strpos({p0}, {p1})"),
    _elements: ("json_each({p0})", "jsonb_array_elements(CAST({p0} AS JSONB))"),
    # SQLite reads the list first in any case. PostgreSQL would estimate a hundred elements, and for so many read a
    # whole table.
    _all: ("-1", "jsonb_array_length(CAST({p0} AS JSONB))"),
    _text: ("{p0}", "({p0} #>> '{{}}')"),
    _part: ("json_extract({p0}, '$[{p1}]')", "({p0} ->> {p1})"),
}
"""By expression: the form for SQLite, and the form for PostgreSQL."""


def _write(kind: type[FunctionElement[Any]], dialect: str, pattern: str) -> None:
    def written(element: Any, compiler: Any, **options: Any) -> str:
        clauses = enumerate(element.clauses)
        used = {f"p{n}": compiler.process(clause, **options) for n, clause in clauses if f"p{n}" in pattern}
        return pattern.format(**used)

    compiles(kind, dialect)(written)


for _kind, (_in_sqlite, _in_postgresql) in _WRITTEN.items():
    _write(_kind, "sqlite", _in_sqlite)
    _write(_kind, "postgresql", _in_postgresql)
