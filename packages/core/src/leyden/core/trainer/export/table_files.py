"""Export files: writes rows as JSON Lines, or as Parquet in batches, so that memory use stays constant."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from leyden.core.errors import UsageError
from leyden.core.trainer.export.rows import COLUMNS, Kind, Row, Table

Format = Literal["parquet", "datasets", "jsonl"]
FORMATS: tuple[Format, ...] = ("parquet", "datasets", "jsonl")

BATCH_ROWS = 2000
BATCH_BYTES = 16 << 20
"""Maximum number of rows in memory, and maximum size of their tokens and text. The lower limit decides when to
write."""


class RowFile(ABC):
    """Writer of one table."""

    def __init__(self) -> None:
        self.rows = 0
        """Number of rows written so far."""

    @abstractmethod
    def write(self, rows: Iterable[Row]) -> None:
        """Add rows."""

    @abstractmethod
    def close(self) -> None:
        """Write remaining rows and close the file."""


class JsonFile(RowFile):
    """JSON Lines writer: writes one row per line."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file: IO[bytes] = path.open("wb")
        self._encode = msgspec.json.Encoder(enc_hook=list).encode

    def write(self, rows: Iterable[Row]) -> None:
        """Write one line for each row."""
        for row in rows:
            self._file.write(self._encode(row) + b"\n")
            self.rows += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ParquetFile(RowFile):
    """Parquet writer: writes compressed columns, one batch of rows at a time."""

    def __init__(self, path: Path, columns: Mapping[str, Kind]) -> None:
        super().__init__()
        pa = _pyarrow()
        from pyarrow import parquet

        self._columns = columns
        self._schema = pa.schema([(name, _type(pa, kind)) for name, kind in columns.items()])
        self._writer: Any = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._batch: list[Row] = []
        self._size = 0

    def write(self, rows: Iterable[Row]) -> None:
        """Add rows to the batch; write the batch when it is full."""
        for row in rows:
            self._batch.append(row)
            self._size += sum(len(value) for value in row.values() if hasattr(value, "__len__"))
            if len(self._batch) >= BATCH_ROWS or self._size >= BATCH_BYTES:
                self._flush()

    def close(self) -> None:
        """Write the last batch and the file's footer."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._batch:
            return
        pa = _pyarrow()
        arrays = [_array(pa, kind, [row[name] for row in self._batch]) for name, kind in self._columns.items()]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self.rows += len(self._batch)
        self._batch, self._size = [], 0


def open_files(folder: Path, format: Format, tables: Sequence[Table]) -> dict[Table, RowFile]:
    """Open a writer in `folder` for each table, with the folder layout of `format`."""
    if format == "jsonl":
        return {table: JsonFile(folder / f"{table}.jsonl") for table in tables}
    if format == "parquet":
        return {table: ParquetFile(folder / f"{table}.parquet", COLUMNS[table]) for table in tables}
    files: dict[Table, RowFile] = {}
    for table in tables:
        (folder / table).mkdir()
        files[table] = ParquetFile(folder / table / "train.parquet", COLUMNS[table])
    configs = "".join(f"- config_name: {table}\n  data_files: {table}/train.parquet\n" for table in tables)
    # Dataset card with which `datasets.load_dataset(folder, table)` finds the files of a table.
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\nExported by `leyden export`.\n")
    return files


def check_installed(format: Format) -> None:
    """Raise UsageError if a package that `format` needs is not installed."""
    if format != "jsonl":
        _pyarrow()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise UsageError(
            "Parquet files need pyarrow: pip install 'leyden-core[export]', or choose --format jsonl"
        ) from None
    return pyarrow


def _type(pa: Any, kind: Kind) -> Any:
    return {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "ids": pa.list_(pa.int32()),
        "numbers": pa.list_(pa.float32()),
    }[kind]


def _array(pa: Any, kind: Kind, values: Sequence[Any]) -> Any:
    if kind == "ids" or kind == "numbers":
        return _lists(pa, "i" if kind == "ids" else "f", values)
    return pa.array(values, type=_type(pa, kind))


def _lists(pa: Any, code: Literal["i", "f"], values: Sequence[Iterable[Any] | None]) -> Any:
    """Build a list column from the bytes of packed arrays.

    Conversion through Python numbers takes ten times as long.
    """
    packed = [None if value is None else _packed(code, value) for value in values]
    offsets: list[int | None] = []
    end = 0
    for one in packed:
        offsets.append(None if one is None else end)  # None marks a missing list
        end += 0 if one is None else len(one)
    buffer = pa.py_buffer(b"".join(one for one in packed if one is not None))
    numbers = pa.Array.from_buffers(pa.int32() if code == "i" else pa.float32(), end, [None, buffer])
    return pa.ListArray.from_arrays(pa.array([*offsets, end], type=pa.int32()), numbers)


def _packed(code: Literal["i", "f"], value: Iterable[Any]) -> "array[Any]":
    return value if isinstance(value, array) else array(code, value)
