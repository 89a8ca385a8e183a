"""Parquet: one task a row, with the columns as keys. Read in batches, so that memory follows the rows taken."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.task_sources import PlacedTask
from leyden.core.trainer.rollouts.task_sources.arrow_rows import BATCH, ArrowRows

BUFFER = 1 << 20
"""Bytes of a column that are read at a time."""


def read_parquet(file: Path) -> Iterator[PlacedTask]:
    """Yield the tasks of a file. Raises TaskError for a file that is not Parquet, and if pyarrow is missing."""
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise TaskError(f"task file {file} needs pyarrow: pip install 'leyden-core[datasets]'") from None
    if file.is_dir():
        raise TaskError(f"task file {file} is a folder; give a file, or hf:{file} for a folder of a dataset")
    try:
        with parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False) as opened:
            rows = ArrowRows(opened.schema_arrow, str(file))
            for batch in cast("Iterable[Any]", opened.iter_batches(BATCH)):
                yield from rows.tasks(batch)
    except FileNotFoundError:
        raise TaskError(f"task file {file} does not exist") from None
    except (arrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise TaskError(f"task file {file} cannot be read as Parquet: {reason}") from None
