"""What SQLite and PostgreSQL write differently, as SQLAlchemy expressions that compile for either. Knows no tables."""

from typing import Any

from sqlalchemy import BindParameter, Column, ColumnElement, Integer, Text, bindparam, literal_column, select, tuple_
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class greatest(FunctionElement[Any]):
    """The largest of its arguments."""

    inherit_cache = True
    type = Integer()


class _position(FunctionElement[int]):
    """Where in the first argument the second begins, from 1; 0 where it does not."""

    inherit_cache = True
    type = Integer()


class _elements(FunctionElement[Any]):
    """The elements, as rows with a column `value`, of a list that travels as JSON."""

    inherit_cache = True


class _all(FunctionElement[int]):
    """No limit to the elements of a list, for who plans how to find them a guess of how many there are."""

    inherit_cache = True
    type = Integer()


class _text(FunctionElement[str]):
    """An element as text."""

    inherit_cache = True
    type = Text()


class _part(FunctionElement[str]):
    """One part, as text, of an element that is a list; its place comes second."""

    inherit_cache = True
    type = Text()


def among(column: Column[Any], values: str | BindParameter[str]) -> ColumnElement[bool]:
    """Like IN, for any number of texts: they travel as one JSON parameter."""
    listed = _elements(values).table_valued("value")
    return column.in_(select(_text(listed.c.value)).limit(_all(values)))


def tuples_among(*columns: Column[Any]) -> ColumnElement[bool]:
    """Whether the columns are together one of the lists of texts that the parameter `keys` holds as JSON."""
    keys = bindparam("keys", type_=Text)
    listed = _elements(keys).table_valued("value")
    parts = [_part(listed.c.value, literal_column(str(place))) for place in range(len(columns))]
    return tuple_(*columns).in_(select(*parts).limit(_all(keys)))


def holds(column: Column[Any], text: str) -> ColumnElement[bool]:
    """Whether a text column contains `text`, to the letter."""
    return _position(column, text) > 0


_WRITTEN: dict[type[FunctionElement[Any]], tuple[str, str]] = {
    greatest: ("max({p0}, {p1})", "greatest({p0}, {p1})"),
    _position: ("instr({p0}, {p1})", "strpos({p0}, {p1})"),
    _elements: ("json_each({p0})", "jsonb_array_elements(CAST({p0} AS JSONB))"),
    # SQLite reads the list from its index's side in any case. PostgreSQL would take it to have a hundred elements, and
    # read a whole table for so many.
    _all: ("-1", "jsonb_array_length(CAST({p0} AS JSONB))"),
    _text: ("{p0}", "({p0} #>> '{{}}')"),
    _part: ("json_extract({p0}, '$[{p1}]')", "({p0} ->> {p1})"),
}
"""By expression: how SQLite writes it, and PostgreSQL."""


def _write(kind: type[FunctionElement[Any]], dialect: str, pattern: str) -> None:
    def written(element: Any, compiler: Any, **options: Any) -> str:
        clauses = enumerate(element.clauses)
        used = {f"p{n}": compiler.process(clause, **options) for n, clause in clauses if f"p{n}" in pattern}
        return pattern.format(**used)

    compiles(kind, dialect)(written)


for _kind, (_in_sqlite, _in_postgresql) in _WRITTEN.items():
    _write(_kind, "sqlite", _in_sqlite)
    _write(_kind, "postgresql", _in_postgresql)
