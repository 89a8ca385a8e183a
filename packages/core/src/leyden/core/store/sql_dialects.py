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


class _fields(FunctionElement[Any]):
    """The fields, as rows of `key` and `value`, of an object that travels as JSON."""

    inherit_cache = True


class _text(FunctionElement[str]):
    """An element as text."""

    inherit_cache = True
    type = Text()


class _number(FunctionElement[int]):
    """A field's value as an integer."""

    inherit_cache = True
    type = Integer()


class _part(FunctionElement[str]):
    """One part, as text, of an element that is a list; its place comes second."""

    inherit_cache = True
    type = Text()


def among(column: Column[Any], values: str | BindParameter[str]) -> ColumnElement[bool]:
    """Like IN, for any number of texts: they travel as one JSON parameter."""
    listed = _elements(values).table_valued("value")
    return column.in_(select(_text(listed.c.value)))


def tuples_among(*columns: Column[Any]) -> ColumnElement[bool]:
    """Whether the columns are together one of the lists of texts that the parameter `keys` holds as JSON."""
    listed = _elements(bindparam("keys", type_=Text)).table_valued("value")
    parts = [_part(listed.c.value, literal_column(str(place))) for place in range(len(columns))]
    return tuple_(*columns).in_(select(*parts))


def numbers_by_text(parameter: str) -> tuple[ColumnElement[str], ColumnElement[int]]:
    """The keys and the numbers of an object that a parameter holds as JSON, to be joined with a table."""
    listed = _fields(bindparam(parameter, type_=Text)).table_valued("key", "value")
    return listed.c.key, _number(listed.c.value)


def holds(column: Column[Any], text: str) -> ColumnElement[bool]:
    """Whether a text column contains `text`, to the letter."""
    return _position(column, text) > 0


_WRITTEN: dict[type[FunctionElement[Any]], tuple[str, str]] = {
    greatest: ("max({0}, {1})", "greatest({0}, {1})"),
    _position: ("instr({0}, {1})", "strpos({0}, {1})"),
    _elements: ("json_each({0})", "jsonb_array_elements(CAST({0} AS JSONB))"),
    _fields: ("json_each({0})", "jsonb_each(CAST({0} AS JSONB))"),
    _text: ("{0}", "({0} #>> '{{}}')"),
    _number: ("{0}", "CAST({0} AS BIGINT)"),
    _part: ("json_extract({0}, '$[{1}]')", "({0} ->> {1})"),
}
"""By expression: how SQLite writes it, and PostgreSQL."""


def _write(kind: type[FunctionElement[Any]], dialect: str, pattern: str) -> None:
    def written(element: Any, compiler: Any, **options: Any) -> str:
        return pattern.format(*(compiler.process(clause, **options) for clause in element.clauses))

    compiles(kind, dialect)(written)


for _kind, (_in_sqlite, _in_postgresql) in _WRITTEN.items():
    _write(_kind, "sqlite", _in_sqlite)
    _write(_kind, "postgresql", _in_postgresql)
