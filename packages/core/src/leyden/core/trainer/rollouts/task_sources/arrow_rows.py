"""Rows of Arrow tables, which Parquet files and Hugging Face datasets hold, as tasks of plain JSON values.

Whole numbers, floats, booleans, texts, lists, structs and maps with text keys keep their values. Dates, times and
decimals become texts, as in rows that `Trainer.fit` receives. Binary data is refused.
"""

import math
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

import msgspec

from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.task_sources import PlacedTask

BATCH = 1000
"""Largest number of rows that are converted at a time."""


class ArrowRows:
    """Converts the record batches of one source, in order. Raises TaskError for a column that JSON cannot hold.

    `schema` is the schema of the source, and `source` its name in messages.
    """

    def __init__(self, schema: Any, source: str) -> None:
        self._arrow: Any = import_module("pyarrow")
        self._source = source
        self._rows = 0
        twice = [name for name, count in Counter[str](schema.names).items() if count > 1]
        if twice:
            raise TaskError(f"{source}: two columns are called {twice[0]!r}; rename one of them")
        if not schema.names:
            raise TaskError(f"{source} has no columns")
        fields = [self._arrow.field(field.name, self._type(field.name, field.type)) for field in schema]
        self._schema: Any = self._arrow.schema(fields)

    def tasks(self, batch: Any) -> Iterator[PlacedTask]:
        """Yield the tasks of the next batch, a table or a record batch. Raises TaskError, with the row."""
        try:
            rows = self._plain(batch)
        except (self._arrow.ArrowException, ArithmeticError, KeyError, ValueError):
            rows = self._one_by_one(batch)
        for row in rows:
            self._rows += 1
            if why := _not_finite(row, "task"):
                raise TaskError(f"{self._source}, row {self._rows}: {why}")
            yield PlacedTask(f"row {self._rows}", row)

    def _plain(self, batch: Any) -> list[dict[str, Any]]:
        rows = batch.cast(self._schema).to_pylist(maps_as_pydicts="strict")
        return cast("list[dict[str, Any]]", msgspec.to_builtins(rows))

    def _one_by_one(self, batch: Any) -> Iterator[dict[str, Any]]:
        """Yield rows up to the one that cannot be converted, for which TaskError is raised with its row."""
        for index in range(batch.num_rows):
            try:
                yield from self._plain(batch.slice(index, 1))
            except (self._arrow.ArrowException, ArithmeticError, KeyError, ValueError) as error:
                reason = " ".join(str(error).split())
                raise TaskError(f"{self._source}, row {self._rows + 1}: {reason}; write the value as text") from None

    def _type(self, place: str, kind: Any) -> Any:
        """Return the type to which values of `kind` are converted; `place` names the column or its part."""
        pa, types = self._arrow, self._arrow.types
        if isinstance(kind, pa.BaseExtensionType):
            return self._type(place, kind.storage_type)
        if types.is_dictionary(kind):
            return self._type(place, kind.value_type)
        if types.is_struct(kind):
            twice = [name for name, count in Counter[str](field.name for field in kind).items() if count > 1]
            if twice:
                raise TaskError(f"{self._source}: two parts of {place!r} are called {twice[0]!r}; rename one of them")
            return pa.struct([(field.name, self._type(f"{place}.{field.name}", field.type)) for field in kind])
        if types.is_map(kind) and (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
            return pa.map_(kind.key_type, self._type(f"{place}{{}}", kind.item_type))
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return pa.list_(self._type(f"{place}[]", kind.value_type))
        return self._scalar(place, kind)

    def _scalar(self, place: str, kind: Any) -> Any:
        pa, types = self._arrow, self._arrow.types
        if types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)  # Python's times have no nanoseconds
        if types.is_time64(kind):
            return pa.time64("us")
        if types.is_duration(kind):
            return pa.duration("us")
        if types.is_float16(kind):
            return pa.float32()
        if any(check(kind) for check in self._kept()):
            return kind
        raise TaskError(
            f"{self._source}: the column {place!r} has values of the type {kind}, which JSON cannot hold; write them "
            "as text, or leave the column out"
        )

    def _kept(self) -> tuple[Any, ...]:
        types = self._arrow.types
        kept = (types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_string)
        return (*kept, types.is_large_string, types.is_decimal, types.is_date, types.is_time32)


def _not_finite(value: Any, place: str) -> str | None:
    """Return the place and value of a number that JSON cannot hold; None if there is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place}: {value} is no number that JSON can hold: write it as text, or as null"
    inner: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        inner = ((f"{place}.{key}", one) for key, one in cast("dict[str, Any]", value).items())
    elif isinstance(value, list):
        inner = ((f"{place}[{index}]", one) for index, one in enumerate(cast("list[Any]", value)))
    return next((why for at, one in inner if (why := _not_finite(one, at))), None)
