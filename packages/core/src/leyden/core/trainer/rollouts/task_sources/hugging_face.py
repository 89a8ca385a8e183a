"""Hugging Face datasets: `hf:NAME[:CONFIG]:SPLIT`, read by the library `datasets` from the hub or from a folder."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, NamedTuple, Self, cast

from leyden.core.errors import TaskError
from leyden.core.trainer.rollouts.task_sources import PlacedTask
from leyden.core.trainer.rollouts.task_sources.arrow_rows import BATCH, ArrowRows

PREFIX = "hf:"
FORM = "hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT"
USUAL_SPLIT = "train"
_COLONS = re.compile(r":(?![^\[]*\])")
"""Colons outside brackets: those of a slice, such as `train[:100]`, belong to the split."""


class DatasetName(NamedTuple):
    """Name of a dataset on the hub or of a folder, and which part of it to read."""

    name: str
    config: str | None
    split: str | None

    @classmethod
    def parse(cls, source: str) -> Self:
        """Return the parts of a source that begins with `hf:`. Raises TaskError for any other form."""
        parts = _COLONS.split(source.removeprefix(PREFIX))
        if len(parts) > 3 or not all(parts):
            raise TaskError(f"{source}: write {FORM}")
        name, *rest = parts
        return cls(name, rest[0] if len(rest) == 2 else None, rest[-1] if rest else None)

    @property
    def set_name(self) -> str:
        """Name for a set of these tasks, which may be part of the name of a file."""
        parts = (self.name.rstrip("/").rpartition("/")[2], self.config, self.split)
        return re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part)).strip("-.")


def read_hugging_face(source: str) -> Iterator[PlacedTask]:
    """Yield the tasks of a split. Without SPLIT, the only split of the dataset or its split `train` is read.

    `datasets` downloads the dataset once and keeps it on disk in its cache, from which rows are read in batches. Raises
    TaskError, in one line, if the library is missing, the dataset cannot be had, or it has no such split.
    """
    named = DatasetName.parse(source)
    rows = _split(source, named)
    arrow = ArrowRows(rows.features.arrow_schema, source)
    for batch in cast("Iterable[Any]", rows.with_format("arrow").iter(BATCH)):
        yield from arrow.tasks(batch)


def _split(source: str, named: DatasetName) -> Any:
    try:
        datasets: Any = import_module("datasets")
    except ImportError:
        raise TaskError(f"{source} needs the library datasets: pip install 'leyden-core[datasets]'") from None
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    load: Any = datasets.load_dataset
    try:
        found = load(named.name, named.config)
    except Exception as error:  # the library raises errors of many kinds, also those of its readers
        raise TaskError(f"{source}: {_reason(error, named)}") from None
    splits = [str(name) for name in found]
    if named.split is None:
        chosen = splits[0] if len(splits) == 1 else USUAL_SPLIT
        if chosen not in splits:
            raise TaskError(f"{source}: the dataset has the splits {', '.join(splits)}; write one, as {FORM}")
        return found[chosen]
    if named.split in splits:
        return found[named.split]
    try:  # a part of a split, or several
        return load(named.name, named.config, split=named.split)
    except Exception:
        raise TaskError(
            f"{source}: there is no split {named.split!r}; the dataset has {', '.join(splits)}, and train[:100] is "
            "the beginning of a split"
        ) from None


def _reason(error: Exception, named: DatasetName) -> str:
    """Return, in one line, why a dataset cannot be had and what to do."""
    text = " ".join(str(error).split())
    if isinstance(error, ConnectionError):
        return (
            f"the dataset cannot be downloaded ({text}); connect to the hub, unset HF_HUB_OFFLINE, or give a folder, "
            "as hf:FOLDER"
        )
    if type(error).__name__ == "DatasetNotFoundError":
        return f"{text} Write its name as on the hub, or log in with `hf auth login` for a private one"
    if isinstance(error, ValueError) and "Config name is missing" in text:
        configs = re.search(r"available configs: (\[.*?\])", text)
        return f"the dataset has several configs{f': {configs[1]}' if configs else ''}; write hf:NAME:CONFIG:SPLIT"
    if isinstance(error, ValueError) and "BuilderConfig" in text and named.config is not None:
        return f"{text}; write hf:NAME:CONFIG:SPLIT"
    return f"the dataset cannot be read: {text or type(error).__name__}"
