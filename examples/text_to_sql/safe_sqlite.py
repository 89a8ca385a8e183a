"""Runs a query that nobody has reviewed: read-only, with bounds on time, memory and the size of its result."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECONDS = 2.0
MAX_ROWS = 10_000
MAX_BYTES = 4_000_000
"""Bytes of the whole result: 8 for a number, its length for a text or blob."""
INSTRUCTIONS = 200
"""Instructions of SQLite's virtual machine between two looks at the clock."""
TRIMMED = 100
"""Characters that `trim` may be asked to remove: SQLite's own compares each with each, without looking at the clock."""

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 20_000,  # bytes of a value, and of a row in a sort or a group
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 5_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 100_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
ACTIONS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
FUNCTION_NAMES = """
abs avg char coalesce count cume_dist current_date current_time current_timestamp date datetime dense_rank first_value
glob group_concat hex ifnull iif instr julianday lag last_value lead length like lower ltrim max min nth_value ntile
nullif percent_rank rank replace round row_number rtrim sign strftime substr substring sum time total trim typeof
unicode upper
"""
FUNCTIONS = frozenset(FUNCTION_NAMES.split())
"""Functions that a query may call. None reads a file, and none makes a large value out of nothing."""


class QueryError(Exception):
    """The query failed, was refused or went over a bound."""


@dataclass(frozen=True)
class Result:
    """The columns' names and the rows of a query."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


def run_readonly(database: Path, query: str, seconds: float = SECONDS) -> Result:
    """Return what `query` selects. Raises QueryError if it fails, writes, or takes too long or too much memory.

    The file is opened read-only, and an authorizer admits nothing but reading and a list of functions. SQLite's own
    limits bound each value and the statement, and large sorts go to a temporary file. A progress handler interrupts a
    query whose time is up.
    """
    deadline = time.monotonic() + seconds
    connection = _connect(database)
    try:
        connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
        cursor = connection.execute(query)
        if cursor.description is None:
            raise QueryError("it selects nothing")
        return Result(tuple(column[0] for column in cursor.description), _rows(cursor))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        raise QueryError(f"longer than {seconds:g} seconds" if str(error) == "interrupted" else str(error)) from None
    except MemoryError:
        raise QueryError("too much memory") from None
    finally:
        connection.close()


def schema_of(database: Path) -> str:
    """Return the tables, a line for each: `players(id, age, team_id -> teams)`; the arrow is a foreign key."""
    connection = _open(database)
    try:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        tables = [name for (name,) in connection.execute(names)]
        return "\n".join(f"{table}({', '.join(_columns(connection, table))})" for table in tables)
    finally:
        connection.close()


def _open(database: Path) -> sqlite3.Connection:
    if not database.is_file():
        raise FileNotFoundError(f"no database at {database}")
    connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
    connection.text_factory = _text
    return connection


def _connect(database: Path) -> sqlite3.Connection:
    """Open the database for one query that may only read."""
    connection = _open(database)
    for setting in (
        "query_only = ON",
        "trusted_schema = OFF",
        "temp_store = FILE",
        "cache_size = -2000",
        "mmap_size = 0",
    ):
        connection.execute(f"PRAGMA {setting}")
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    for name, strip in (("trim", str.strip), ("ltrim", str.lstrip), ("rtrim", str.rstrip)):
        connection.create_function(name, 2, _trim_with(strip), deterministic=True)
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = action in ACTIONS or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _trim_with(strip: Callable[[str, str], str]) -> Callable[[object, object], str | None]:
    def trim(text: object, characters: object) -> str | None:
        if text is None or characters is None:
            return None
        return strip(str(text), str(characters)[:TRIMMED])

    return trim


def _rows(cursor: sqlite3.Cursor) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    size = 0
    for row in cursor:
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if len(rows) == MAX_ROWS or size > MAX_BYTES:
            raise QueryError(f"more than {MAX_ROWS} rows or {MAX_BYTES} bytes")
        rows.append(row)
    return rows


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    parents = {
        row[3].lower(): row[2] for row in connection.execute("SELECT * FROM pragma_foreign_key_list(?)", [table])
    }
    names: list[str] = [row[1] for row in connection.execute("SELECT * FROM pragma_table_info(?)", [table])]
    return [f"{name} -> {parents[name.lower()]}" if name.lower() in parents else name for name in names]


def _text(value: bytes) -> str:
    """Decode text; Spider's databases contain a few values that are not UTF-8."""
    return value.decode(errors="ignore")
