"""Reads the release of Spider (Yu et al., EMNLP 2018): questions of `train_spider.json` and others, and databases.

FOLDER/train_spider.json, train_others.json, dev.json   lists of {"db_id", "question", "query", ...}
FOLDER/tables.json                                      a list of schemas, {"db_id", ...}
FOLDER/database/ID/ID.sqlite                            the databases
"""

import json
import re
from pathlib import Path
from typing import Any, cast

from safe_sqlite import DatabaseError, schema_of

FILES = {"train": ("train_spider.json", "train_others.json"), "val": ("dev.json",)}
"""The files that each task file is made from; Spider's test questions have a release of their own."""
FIELDS = ("db_id", "question", "query")
SURROGATE = re.compile("[\ud800-\udfff]")


class SpiderError(Exception):
    """The folder is not a complete release of Spider, or one of its files is not in Spider's format."""


def read_spider(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Return the tasks of each split, with absolute paths of databases. Raises SpiderError."""
    if not folder.is_dir():
        raise SpiderError(f"{folder} is no folder: give the folder of the release, with tables.json in it")
    schemas = {_text(entry, "db_id", where) for where, entry in _entries(folder / "tables.json")}
    read: set[Path] = set()
    splits = {
        split: [task for name in names for task in _tasks(folder, name, schemas, read)]
        for split, names in FILES.items()
    }
    for split, tasks in splits.items():
        if not tasks:
            places = " and ".join(str(folder / name) for name in FILES[split])
            raise SpiderError(f"{places}: no questions; get the file again")
    return splits


def _tasks(folder: Path, name: str, schemas: set[str], read: set[Path]) -> list[dict[str, str]]:
    """Return the tasks of one file; `read` has the databases that have been opened before."""
    tasks: list[dict[str, str]] = []
    for number, (where, entry) in enumerate(_entries(folder / name)):
        db_id, question, query = (_text(entry, field, where) for field in FIELDS)
        if db_id not in schemas:
            raise SpiderError(f"{where}: tables.json has no database {db_id!r}")
        database = (folder / "database" / db_id / f"{db_id}.sqlite").resolve()
        if database not in read:
            _check(database, where)
            read.add(database)
        row = {"id": f"{Path(name).stem}-{number:04d}", "question": question.strip()}
        tasks.append({**row, "database": str(database), "gold": query.strip().rstrip(";")})
    return tasks


def _check(database: Path, where: str) -> None:
    try:
        tables = schema_of(database)
    except (FileNotFoundError, DatabaseError) as error:
        raise SpiderError(f"{where}: {error}") from None
    if not tables:
        raise SpiderError(f"{where}: {database}: has no table; get the file again")


def _entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects in a file's list, each with its place for messages."""
    try:
        read: object = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError:
        raise SpiderError(f"no file {path}: the release of Spider has one") from None
    except RecursionError:
        raise SpiderError(f"{path}: nested too deeply; expected a list of objects") from None
    except ValueError as error:
        raise SpiderError(f"{path} is not JSON: {error}") from None
    if not isinstance(read, list):
        raise SpiderError(f"{path}: expected a list of objects")
    entries: list[tuple[str, dict[str, Any]]] = []
    for number, entry in enumerate(cast("list[object]", read)):
        if not isinstance(entry, dict):
            raise SpiderError(f"{path}, entry {number}: expected an object")
        entries.append((f"{path}, entry {number}", cast("dict[str, Any]", entry)))
    return entries


def _text(entry: dict[str, Any], field: str, where: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value.strip():
        raise SpiderError(f"{where}: expected a text under {field!r}")
    if lone := SURROGATE.search(value):
        raise SpiderError(f"{where}: half a character ({lone[0]!a}) in {field!r}; no file can hold it: remove it")
    return value
