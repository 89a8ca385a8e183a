"""Runs a query that nobody has reviewed: read-only, with bounds on time, memory and the size of its result."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

SECONDS = 2.0
MAX_ROWS = 10_000
MAX_BYTES = 4_000_000
"""Bytes of the whole result: 8 for a number, its length for a text or blob."""
INSTRUCTIONS = 200
"""Instructions of SQLite's virtual machine between two looks at the clock."""
HEADER = b"SQLite format 3\0"
WAL = 2
"""The format's version in the bytes 18 and 19 of a database in WAL mode."""
BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

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


class DatabaseError(Exception):
    """The file is no database, is damaged, or cannot be read without a change to it, whatever the query is."""


@dataclass(frozen=True)
class Result:
    """The columns' names and the rows of a query."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


def run_readonly(database: Path, query: str, seconds: float = SECONDS) -> Result:
    """Return what `query` selects. Raises QueryError if it fails, writes, or takes too long or too much memory.

    Raises FileNotFoundError or DatabaseError for a file that no query can read. The file is opened read-only, and an
    authorizer admits nothing but reading and a list of functions. SQLite's own limits bound each value and the
    statement, and large sorts go to a temporary file. A progress handler interrupts a query whose time is up.
    """
    deadline = time.monotonic() + seconds
    connection = _open(database)
    try:
        _restrict(connection, deadline)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
        cursor = connection.execute(query)
        if cursor.description is None:
            raise QueryError("it selects nothing")
        return Result(tuple(column[0] for column in cursor.description), _rows(cursor))
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in BROKEN:
            raise DatabaseError(f"{database}: {error}; get the file again") from None
        raise QueryError(_reason(str(error), seconds, deadline)) from None
    except MemoryError:
        raise QueryError("too much memory") from None
    finally:
        connection.close()


def schema_of(database: Path) -> str:
    """Return the tables, a line for each: `players(id, age, team_id -> teams)`; the arrow is a foreign key.

    Raises FileNotFoundError or DatabaseError for a file that no query can read.
    """
    with closing(_open(database)) as connection:
        try:
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
            tables = [name for (name,) in connection.execute(names)]
            return "\n".join(f"{table}({', '.join(_columns(connection, table))})" for table in tables)
        except sqlite3.DatabaseError as error:
            raise DatabaseError(f"{database}: {error}; get the file again") from None


def _open(database: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{database.resolve().as_uri()}?{_mode(database)}", uri=True)
    connection.text_factory = _text
    return connection


def _mode(database: Path) -> str:
    """Return how to open the file so that no file is made: SQLite would make two beside a database in WAL mode."""
    if not database.is_file():
        raise FileNotFoundError(f"no database at {database}")
    with database.open("rb") as file:
        header = file.read(20)
    if not header.startswith(HEADER):
        fault = "not a SQLite database" if header else "an empty file, and no database"
        raise DatabaseError(f"{database}: {fault}; get the file again")
    if WAL not in header[18:]:
        return "mode=ro"
    log = database.with_name(f"{database.name}-wal")
    if log.is_file() and log.stat().st_size:  # `immutable` ignores it
        checkpoint = f"sqlite3 {database} 'PRAGMA journal_mode = DELETE'"
        raise DatabaseError(f"{database}: some of its rows are still in {log.name}; move them with {checkpoint}")
    return "mode=ro&immutable=1"


def _restrict(connection: sqlite3.Connection, deadline: float) -> None:
    """Prepare the connection for one query that may only read."""
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
        connection.create_function(name, 2, _trim_with(strip, deadline), deterministic=True)
    connection.set_authorizer(_authorize)


def _reason(message: str, seconds: float, deadline: float) -> str:
    if message == "interrupted" or time.monotonic() > deadline:
        return f"longer than {seconds:g} seconds"
    if message == "user-defined function raised exception":
        return "trim with two arguments needs texts in UTF-8"
    return message


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = action in ACTIONS or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _trim_with(
    strip: Callable[[str, str], str], deadline: float
) -> Callable[[float | str | bytes | None, float | str | bytes | None], str | None]:
    """Return `trim` with two arguments as SQLite has it, which compares each character with each without a clock.

    Python gives it no text that is not UTF-8: such a query fails.
    """

    def trim(value: float | str | bytes | None, characters: float | str | bytes | None) -> str | None:
        if time.monotonic() > deadline:
            raise TimeoutError
        if value is None or characters is None:
            return None
        return strip(_as_text(value), _as_text(characters).partition("\0")[0])

    return trim


def _as_text(value: float | str | bytes) -> str:
    """Return the value as SQLite converts it to text."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):  # not as Python writes it, 1e+20, but as 1.0e+20
        with closing(sqlite3.connect(":memory:")) as connection:
            return connection.execute("SELECT CAST(? AS TEXT)", [value]).fetchone()[0]
    return str(value)


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
