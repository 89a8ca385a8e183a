"""The text-to-SQL example: what its queries may do, what its reward counts as equal, its data and its graph."""

import itertools
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from example_files import load, on_the_path

from leyden.core.credit.registry import CREDIT
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector
from sql_safety import draw_queries, run_queries
from tiny_policy.experts.text_to_sql import EASY, EXPERT, Confusion, draw_plans

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/text_to_sql"

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def folder_on_the_path() -> Iterator[None]:
    with on_the_path(EXAMPLE):
        yield


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "clubs.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "CREATE TABLE clubs (id INTEGER PRIMARY KEY, city TEXT);"
            "CREATE TABLE players (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, club INTEGER REFERENCES clubs(id));"
            "INSERT INTO clubs VALUES (1, 'Oslo'), (2, 'Lima');"
            "INSERT INTO players VALUES (1, 'Ann', 20, 1), (2, 'Bob', 30, 1), (3, 'Cara', 20, 2), (4, 'Dan', NULL, 2);"
        )
    connection.close()
    return path


def rows(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (EXAMPLE / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_agent_knows_nothing_of_leyden() -> None:
    source = (EXAMPLE / "agent.py").read_text(encoding="utf-8").lower()
    assert "leyden" not in source and "lightning" not in source


def test_the_schema_has_tables_columns_and_foreign_keys(database: Path) -> None:
    expected = "clubs(id, city)\nplayers(id, name, age, club -> clubs)"
    assert load(EXAMPLE, "safe_sqlite").schema_of(database) == expected


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM players",
        "CREATE TABLE more (id)",
        "CREATE TEMP TABLE more (id)",
        "PRAGMA user_version",
        "PRAGMA query_only = OFF",
        "ATTACH ':memory:' AS other",
        "VACUUM INTO 'copied.sqlite'",
        "SELECT load_extension('x')",
        "SELECT randomblob(10)",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT * FROM pragma_table_info('players')",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM players",
        "SELECT ?1",
        "",
    ],
)
def test_what_is_no_plain_reading_is_refused(database: Path, query: str) -> None:
    safe = load(EXAMPLE, "safe_sqlite")
    before = database.read_bytes()
    with pytest.raises(safe.QueryError):
        safe.run_readonly(database, query)
    assert database.read_bytes() == before and list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT name FROM players WHERE age = 20", [("Ann",), ("Cara",)]),
        ("SELECT COUNT(*), AVG(age) FROM players", [(4, 70 / 3)]),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3) SELECT sum(i) FROM n", [(6,)]),
        ("SELECT upper(trim('xxabx', 'x')), 'a' LIKE 'A', substr('abc', 2, 1)", [("AB", 1, "b")]),
        ("SELECT name, rank() OVER (ORDER BY id DESC) FROM players ORDER BY id LIMIT 1", [("Ann", 4)]),
    ],
)
def test_what_only_reads_is_run(database: Path, query: str, expected: list[Any]) -> None:
    assert load(EXAMPLE, "safe_sqlite").run_readonly(database, query).rows == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", "longer than 0.2"),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", "more than 10000 rows"),
        ("WITH RECURSIVE g(t) AS (SELECT 'aaaa' UNION ALL SELECT t || t FROM g) SELECT t FROM g", "too big"),
    ],
)
def test_a_query_has_bounds(database: Path, query: str, message: str) -> None:
    safe = load(EXAMPLE, "safe_sqlite")
    with pytest.raises(safe.QueryError, match=message):
        safe.run_readonly(database, query, seconds=0.2 if "longer" in message else 60)


def check_safety(count: int, seed: int, folder: Path) -> None:
    queries, database = draw_queries(count, seed, folder)
    figures = run_queries(queries, database, seconds=0.1)
    assert len(queries) == count == figures.outcomes.total()
    assert figures.changes == 0
    assert figures.longest < 5  # a shared machine may stop a process for a while
    assert figures.grown < 100
    assert figures.outcomes["returned"] and figures.outcomes["not authorized"] and figures.outcomes["too long"]


def test_mutated_queries_neither_write_nor_hang(tmp_path: Path) -> None:
    check_safety(300, 1, tmp_path)


@pytest.mark.long
def test_ten_thousand_mutated_queries_neither_write_nor_hang(tmp_path: Path) -> None:
    check_safety(10_000, 2, tmp_path)


@pytest.mark.parametrize(
    ("query", "gold", "expected"),
    [
        ("SELECT name FROM players ORDER BY id DESC", "SELECT name FROM players", 1),
        ("SELECT name FROM players ORDER BY id DESC", "SELECT name FROM players ORDER BY id", 0),
        ("SELECT name FROM players", "SELECT name FROM players ORDER BY id", 1),
        ("SELECT age, name FROM players", "SELECT name, age FROM players", 1),
        ("SELECT age AS years FROM players", "SELECT age FROM players", 1),
        ("SELECT name, name FROM players", "SELECT name, age FROM players", 0),
        ("SELECT name, age FROM players", "SELECT name FROM players", 0),
        ("SELECT age FROM players GROUP BY age", "SELECT age FROM players", 0),
        ("SELECT DISTINCT age FROM players", "SELECT age FROM players", 1),
        ("SELECT count(age) FROM players", "SELECT count(DISTINCT age) FROM players", 1),
        ("SELECT 'distinct'", "SELECT 'distinct'", 1),
        ("SELECT 'distinct'", "SELECT ''", 0),
        ("SELECT name FROM players WHERE age >= 30", "SELECT name FROM players WHERE age > = 30", 1),
        ("SELECT 1.0", "SELECT 1", 1),
        ("SELECT '1'", "SELECT 1", 0),
        ("SELECT NULL", "SELECT 0", 0),
        ("SELECT id FROM players WHERE id > 9", "SELECT name, age FROM players WHERE id > 9", 1),
        ("SELECT nothing FROM players", "SELECT nothing FROM players", 0),
        ("DELETE FROM players", "SELECT name FROM players", 0),
    ],
)
def test_the_reward_is_spiders_execution_match(database: Path, query: str, gold: str, expected: int) -> None:
    task = {"database": str(database), "gold": gold}
    assert load(EXAMPLE, "reward").score(task, {"query": query}) == expected


def test_a_result_without_a_query_earns_nothing(database: Path) -> None:
    task = {"database": str(database), "gold": "SELECT 1"}
    assert load(EXAMPLE, "reward").score(task, {}) == 0


def test_rows_are_equal_if_some_order_of_columns_makes_them_so() -> None:
    same_rows = load(EXAMPLE, "execution_match").same_rows
    tables = list(itertools.product(itertools.product((0, 1), repeat=3), repeat=2))
    for found, expected in itertools.product(tables, tables):
        orders = [
            [tuple(row[column] for column in order) for row in found] for order in itertools.permutations(range(3))
        ]
        wanted = list(expected)
        assert same_rows(found, expected, ordered=True) == (wanted in orders)
        assert same_rows(found, expected, ordered=False) == any(Counter(rows) == Counter(wanted) for rows in orders)


@pytest.mark.integration
def test_the_shipped_files_are_what_their_seeds_make(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "data.py"), "generate", "--out", str(tmp_path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for path in tmp_path.glob("*.jsonl"):
        assert path.read_bytes() == (EXAMPLE / path.name).read_bytes()
    made = {path.name: dumped(path) for path in (tmp_path / "databases").iterdir()}
    assert made == {path.name: dumped(path) for path in (EXAMPLE / "databases").iterdir()}


def dumped(path: Path) -> list[str]:
    """The statements that make a database: its file names the release of SQLite that wrote it."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


@pytest.mark.parametrize("split", [path.stem for path in EXAMPLE.glob("*.jsonl")])
def test_gold_queries_parse_run_and_answer(split: str) -> None:
    safe = load(EXAMPLE, "safe_sqlite")
    tasks = rows(split)
    assert len({task["id"] for task in tasks}) == len(tasks) >= 200
    for task in tasks:
        sqlglot.parse_one(task["gold"], dialect="sqlite")
        assert safe.run_readonly(EXAMPLE / task["database"], task["gold"]).rows
    kinds = ("JOIN", "GROUP BY", "LIMIT 1", "ASC", "DESC", "MIN(", "MAX(", "AVG(", "SUM(", "COUNT(", "WHERE")
    assert all(any(kind in task["gold"] for task in tasks) for kind in kinds)


def names_of(database: Path) -> set[str]:
    """The tables, columns and text values of a database."""
    found: set[str] = set()
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    for (table,) in connection.execute("SELECT name FROM sqlite_master").fetchall():
        cursor = connection.execute(f"SELECT * FROM {table}")
        found |= {table, *(column[0] for column in cursor.description)}
        found |= {value for row in cursor for value in row if isinstance(value, str)}
    connection.close()
    return {name.removesuffix("_id") for name in found - {"id"}}


@pytest.mark.parametrize("database", sorted((EXAMPLE / "databases").iterdir()), ids=lambda path: path.stem)
def test_a_database_has_names_and_values_of_its_share_alone(database: Path) -> None:
    share_of, splits = load(EXAMPLE, "words").share_of, load(EXAMPLE, "data").SPLITS
    assert {share_of(name) for name in names_of(database)} == {splits[database.stem.split("-")[0]].share}


def messages(system: str, *prompt: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": "\n".join(prompt)}]


def test_the_expert_errs_as_often_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    agent = load(EXAMPLE, "agent")
    right: dict[bool, list[bool]] = {True: [], False: []}
    for plan in draw_plans(1, 3000, erring=True):
        script: Any = plan.write
        right[script.easy].append(script(messages(agent.WRITE), False) == script.gold)
    rates = {easy: sum(found) / len(found) for easy, found in right.items()}
    confusion = Confusion()
    assert rates[True] == pytest.approx(confusion.easy * (1 - confusion.fails), abs=0.03)
    assert rates[False] == pytest.approx(confusion.hard * (1 - confusion.fails), abs=0.03)
    assert len(EASY) == 4


def test_a_perfect_expert_answers_and_its_check_knows_right_from_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    agent, reward = load(EXAMPLE, "agent"), load(EXAMPLE, "reward")
    for plan in draw_plans(2, 60, erring=False):
        script: Any = plan.write
        question = str(plan.task["question"])
        query = script(messages(agent.WRITE, question), False)
        assert reward.score({**plan.task, "gold": script.gold}, {"query": query}) == 1
        assert script(messages(agent.CHECK, question, query, "1"), False) == "OK"
        assert script(messages(agent.CHECK, question, script.wrong, "1"), False) == "Wrong"
        assert script(messages(agent.REWRITE, question), False) == script.gold


def test_the_policy_is_small_and_copies_what_it_is_shown_in_whole_words() -> None:
    from transformers import AutoTokenizer

    assert sum(path.stat().st_size for path in EXPERT.policy.iterdir()) < 2_000_000
    load_tokenizer: Any = AutoTokenizer.from_pretrained  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    tokenizer = load_tokenizer(EXPERT.policy)
    assert tokenizer.tokenize("SELECT unit_cost FROM night_trains")[-2:] == ["Ġnight", "_trains"]


@pytest.mark.long
async def test_the_record_shows_which_queries_ran(leyden: Callable[..., Any], tmp_path: Path) -> None:
    done = leyden(
        *("train", "--config", str(EXAMPLE / "run.yaml"), "--val", str(few_tasks(tmp_path)), "--steps", "1"),
        *("--tasks-per-step", "4", "--group-size", "4", "--runs", str(tmp_path), "--name", "sql"),
        *("--quiet", "--no-check"),
    )
    assert done.returncode == 0, done.stderr
    store = await open_store(f"sqlite:///{tmp_path}/sql/store.db")
    try:
        found = [one for one in (await store.query_rollouts()).items if isinstance(one, AttemptedRollout)]
        selector = Selector(agent_match="write|rewrite")
        attempts = [
            assemble(one, one.attempt, (await store.query_spans(one.rollout_id)).items, selector) for one in found
        ]
    finally:
        await store.close()
    attempts = [attempt for attempt in attempts if attempt.transitions and attempt.reward is not None]
    calls = [call for attempt in attempts for call in attempt.transitions]
    assert {call.node for call in calls} == {"write", "rewrite"}
    runs = [[one for one in call.outcomes if one.name == "run_sql"] for call in calls]
    assert {len(outcomes) for outcomes in runs} == {1} and all(one.kind == "tool" for [one] in runs)
    rule = {"kind": "tool", "name": "run_sql", "succeeded": 0.1, "failed": -0.2}
    scheme = CREDIT.make({"name": "intermediate", "rules": [rule]})
    for attempt in attempts:
        credit = scheme.assign(attempt)
        assert credit is not None and attempt.reward is not None
        worth = [
            0.1 if one.succeeded else -0.2
            for call in attempt.transitions
            for one in call.outcomes
            if one.name == "run_sql"
        ]
        assert credit.returns_N[0] == pytest.approx(attempt.reward + sum(worth))


def few_tasks(folder: Path) -> Path:
    path = folder / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows("train")[:4]), encoding="utf-8")
    return path
