"""How the text-to-SQL example opens a database, and its own `trim`."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from example_files import load
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/text_to_sql"
SAFE = load(EXAMPLE, "safe_sqlite")
TEXTS = st.text(alphabet="ab01.e+\0 é€😀-", max_size=8) | st.text(max_size=150)
VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXTS | TEXTS.map(str.encode)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("safety") / "names.sqlite")


def made(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE names (name TEXT)")
        connection.execute("INSERT INTO names VALUES ('Ann'), (CAST(x'ff41' AS TEXT))")
        connection.commit()
    return path


@pytest.fixture(scope="module")
def restricted(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database)) as connection:
        restrict: Any = SAFE._restrict  # its connection cannot be given values
        restrict(connection, time.monotonic() + 600)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 2)
        yield connection


@given(VALUES, VALUES, st.sampled_from(("trim", "ltrim", "rtrim")))
def test_trim_with_two_arguments_is_that_of_sqlite(
    restricted: sqlite3.Connection, value: object, characters: object, name: str
) -> None:
    query = f"SELECT {name}(?1, ?2), typeof({name}(?1, ?2))"
    with closing(sqlite3.connect(":memory:")) as plain:
        expected = plain.execute(query, [value, characters]).fetchall()
    assert restricted.execute(query, [value, characters]).fetchall() == expected


def test_trim_has_one_clear_line_for_a_text_that_is_not_utf_8(database: Path) -> None:
    with pytest.raises(SAFE.QueryError, match=r"^trim with two arguments needs texts in UTF-8$"):
        SAFE.run_readonly(database, "SELECT trim(name, 'A') FROM names")
    assert SAFE.run_readonly(database, "SELECT count(trim(name)) FROM names").rows == [(2,)]


def test_trim_looks_at_the_clock(database: Path) -> None:
    assert SAFE.run_readonly(database, "SELECT 'ab'", seconds=0).rows == [("ab",)]  # too short for SQLite to look
    with pytest.raises(SAFE.QueryError, match=r"^longer than 0 seconds$"):
        SAFE.run_readonly(database, "SELECT trim('ab', 'b')", seconds=0)


def test_a_database_in_wal_mode_is_read_without_new_files_and_never_without_its_log(tmp_path: Path) -> None:
    path = made(tmp_path / "names.sqlite")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO names VALUES ('Bob')")
        writer.commit()
        for read in (lambda: SAFE.schema_of(path), lambda: SAFE.run_readonly(path, "SELECT * FROM names")):
            with pytest.raises(
                SAFE.DatabaseError, match=r"names.sqlite: some of its rows are still in names.sqlite-wal"
            ):
                read()
    assert list(tmp_path.iterdir()) == [path]  # the last connection puts the log into the database
    assert SAFE.run_readonly(path, "SELECT count(*) FROM names").rows == [(3,)]
    assert SAFE.schema_of(path) == "names(name)"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "an empty file, and no database; get the file again"),
        (b"name\nAnn\n", "not a SQLite database; get the file again"),
        (b"SQLite format 3\0" + b"\x01" * 100, "file is not a database; get the file again"),
    ],
)
def test_a_file_that_is_no_database_is_no_fault_of_the_query(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.sqlite"
    path.write_bytes(content)
    for read in (lambda: SAFE.schema_of(path), lambda: SAFE.run_readonly(path, "SELECT * FROM names")):
        with pytest.raises(SAFE.DatabaseError, match=f"bad.sqlite: {message}$"):
            read()
