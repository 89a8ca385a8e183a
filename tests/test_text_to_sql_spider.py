"""The text-to-SQL example's reader of the Spider release."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_files import load, on_the_path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples/text_to_sql"
DATABASE = "database/concert_singer/concert_singer.sqlite"


@pytest.fixture(scope="module", autouse=True)
def folder_on_the_path() -> Iterator[None]:
    with on_the_path(EXAMPLE):
        yield


def spider_release(folder: Path) -> Path:
    """A release of one database and three questions, with the fields that Spider's files have."""

    def entry(question: str, query: str) -> dict[str, Any]:
        toks = {"query_toks": query.split(), "query_toks_no_value": query.split(), "question_toks": question.split()}
        sql: dict[str, Any] = {
            "from": {"table_units": [["table_unit", 0]], "conds": []},
            "select": [False, []],
            "limit": None,
        }
        return {"db_id": "concert_singer", "query": query, "question": question, **toks, "sql": sql}

    schema = {
        "db_id": "concert_singer",
        "table_names": ["singer"],
        "table_names_original": ["singer"],
        "column_names": [[-1, "*"], [0, "singer id"], [0, "name"]],
        "column_names_original": [[-1, "*"], [0, "Singer_ID"], [0, "Name"]],
        "column_types": ["text", "number", "text"],
        "primary_keys": [1],
        "foreign_keys": [],
    }
    (folder / "database/concert_singer").mkdir(parents=True)
    with sqlite3.connect(folder / "database/concert_singer/concert_singer.sqlite") as connection:
        connection.executescript("CREATE TABLE singer (Singer_ID int PRIMARY KEY, Name text)")
        connection.execute("INSERT INTO singer VALUES (1, 'Rosé'), (2, CAST(x'ff41' AS TEXT))")
    connection.close()
    files = {
        "tables.json": [schema],
        "train_spider.json": [entry("How many singers are there?", "SELECT count(*) FROM singer")],
        "train_others.json": [entry("What is broken?", "SELECT nothing FROM singer")],
        "dev.json": [entry("List the names. ", "SELECT Name FROM singer;")],
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=4), encoding="utf-8")
    return folder


def read_spider(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE / "data.py"), "spider", str(folder), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.integration
def test_the_release_of_spider_is_read(tmp_path: Path) -> None:
    folder, out = spider_release(tmp_path / "spider"), tmp_path / "out"
    done = read_spider(folder, out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "left out: 1 questions whose gold query fails, or returns too much\n"
    database = str(folder / "database/concert_singer/concert_singer.sqlite")
    train, val = (
        [json.loads(line) for line in (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("train", "val")
    )
    assert train == [
        {
            "id": "train_spider-0000",
            "question": "How many singers are there?",
            "database": database,
            "gold": "SELECT count(*) FROM singer",
        }
    ]
    assert [(row["question"], row["gold"]) for row in val] == [("List the names.", "SELECT Name FROM singer")]
    assert load(EXAMPLE, "reward").score(val[0], {"query": "SELECT name FROM singer ORDER BY 1"}) == 1


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tables.json", None, "no file .*tables.json: the release of Spider has one"),
        ("dev.json", "[{", "dev.json is not JSON: .*"),
        ("dev.json", "[" * 100_000, "dev.json: nested too deeply; expected a list of objects"),
        ("dev.json", "[]", "dev.json: no questions; get the file again"),
        (
            "dev.json",
            '[{"db_id": "concert_singer", "query": "SELECT 1", "question": "Who \\ud800?"}]',
            r"dev.json, entry 0: half a character \('\\ud800'\) in 'question'; no file can hold it: remove it",
        ),
        (
            "dev.json",
            '[{"db_id": "concert_singer", "query": "SELECT no", "question": "Who?"}]',
            "none of the 1 gold queries returns a result; the first, dev-0000: no such column: no",
        ),
        ("dev.json", "{}", "dev.json: expected a list of objects"),
        ("dev.json", "[1]", "dev.json, entry 0: expected an object"),
        ("dev.json", '[{"db_id": "concert_singer", "query": "SELECT 1"}]', "entry 0: expected a text under 'question'"),
        ("dev.json", '[{"db_id": "a", "query": "b", "question": "c"}]', "entry 0: tables.json has no database 'a'"),
        (DATABASE, None, "entry 0: no database at .*concert_singer.sqlite"),
        (
            DATABASE,
            "",
            "train_spider.json, entry 0: .*singer.sqlite: an empty file, and no database; get the file again",
        ),
        (DATABASE, "names\n", "train_spider.json, entry 0: .*singer.sqlite: not a SQLite database; get the file again"),
    ],
)
def test_a_release_with_a_fault_is_refused_in_one_line(
    name: str, content: str | None, message: str, tmp_path: Path
) -> None:
    folder = spider_release(tmp_path / "spider")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content, encoding="utf-8")
    done = read_spider(folder, tmp_path / "out")
    assert done.returncode == 2 and done.stdout == ""
    assert len([line for line in done.stderr.splitlines() if not line.startswith("left out: ")]) == 1
    assert not (tmp_path / "out").exists()
    assert re.search(f"^error: .*{message}$", done.stderr.splitlines()[-1])


@pytest.mark.integration
def test_files_with_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    folder = spider_release(tmp_path / "spider")
    for path in folder.glob("*.json"):
        path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    done = read_spider(folder, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out/val.jsonl").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.integration
def test_a_database_that_is_damaged_inside_is_named(tmp_path: Path) -> None:
    folder = spider_release(tmp_path / "spider")
    with (folder / DATABASE).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    done = read_spider(folder, tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{DATABASE}: database disk image is malformed; get the file again" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.integration
def test_a_database_in_wal_mode_gets_no_files_beside_it(tmp_path: Path) -> None:
    folder = spider_release(tmp_path / "spider")
    connection = sqlite3.connect(folder / DATABASE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    done = read_spider(folder, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert list((folder / DATABASE).parent.iterdir()) == [folder / DATABASE]
