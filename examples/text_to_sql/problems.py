"""Generated databases, and questions about them with the right query and the queries of usual mistakes."""

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from words import words

PAGE_BYTES = 512


class Table(NamedTuple):
    """A table: its columns in order, its parent's name if it has one, and its rows."""

    name: str
    text: str
    number: str
    parent: str | None
    rows: tuple[tuple[int, str, int, int | None], ...]

    @property
    def key(self) -> str | None:
        """The column that refers to the parent."""
        return None if self.parent is None else f"{self.parent}_id"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return ("id", self.text, self.number, *filter(None, [self.key]))


@dataclass(frozen=True)
class Problem:
    """A question, its kind, the query that answers it, and queries that usual mistakes lead to."""

    question: str
    kind: str
    gold: str
    wrong: tuple[str, ...]


def draw_apart(rng: random.Random, names: tuple[str, ...], count: int) -> list[str]:
    """Draw names of which no two have a word in common, so that a word shows which name is meant."""
    while True:
        drawn = rng.sample(names, count)
        parts = [part for name in drawn for part in name.split("_")]
        if len(set(parts)) == len(parts):
            return drawn


def draw_tables(rng: random.Random, share: str) -> list[Table]:
    """Draw a parent table and one or two tables that refer to it, in names of a share; no name comes twice."""
    count = rng.choice((2, 2, 2, 2, 3))
    names, numbers, texts = (draw_apart(rng, words(kind, share), count) for kind in ("table", "number", "text"))
    tables: list[Table] = []
    for number in range(count):
        parent = tables[0] if tables else None
        size = rng.randint(4, 5) if parent is None else rng.randint(6, 9)
        values = rng.sample(words("value", share), size if parent is None else 3)
        amounts = rng.sample(range(2, 100), size)
        rows = [
            (n + 1, values[n] if parent is None else rng.choice(values), amounts[n], None if parent is None else 1)
            for n in range(size)
        ]
        if parent is not None:
            rows = [(*row[:3], rng.randint(1, len(parent.rows))) for row in rows]
        tables.append(Table(names[number], texts[number], numbers[number], parent and parent.name, tuple(rows)))
    return tables


def statements(tables: list[Table]) -> list[str]:
    """Return the SQL that makes the database."""
    made: list[str] = []
    for table in tables:
        columns = ["id INTEGER PRIMARY KEY", f"{table.text} TEXT", f"{table.number} INTEGER"]
        if table.key is not None:
            columns.append(f"{table.key} INTEGER REFERENCES {table.parent}(id)")
        made.append(f"CREATE TABLE {table.name} ({', '.join(columns)})")
        for row in table.rows:
            values = ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in row if value)
            made.append(f"INSERT INTO {table.name} VALUES ({values})")
    return made


def write_database(tables: list[Table], path: Path) -> None:
    """Write the database file, in place of one that is there."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.executescript(";".join(statements(tables)))
        connection.commit()
    finally:
        connection.close()


def _list(rng: random.Random, t: Table, value: str) -> Problem:
    wordings = "What is the {n} of the {t} with {c} {v}?", "Show the {n} of all {t} whose {c} is {v}."
    gold = f"SELECT {t.number} FROM {t.name} WHERE {t.text} = '{value}'"
    return Problem(_worded(rng, wordings, t, value), "list", gold, (f"SELECT {t.number} FROM {t.name}",))


def _count(rng: random.Random, t: Table, value: str) -> Problem:
    wordings = "How many {t} have {c} {v}?", "Count the {t} with {c} {v}."
    gold = f"SELECT COUNT(*) FROM {t.name} WHERE {t.text} = '{value}'"
    return Problem(_worded(rng, wordings, t, value), "count", gold, (f"SELECT COUNT(*) FROM {t.name}",))


AGGREGATES = {
    "max": ("highest", "largest", "SUM"),
    "min": ("lowest", "smallest", "MAX"),
    "avg": ("average", "mean", "SUM"),
    "sum": ("total", "summed", "AVG"),
}


def _aggregate(rng: random.Random, t: Table, kind: str) -> Problem:
    *adjectives, other = AGGREGATES[kind]
    wordings = "What is the {a} {n} of the {t}?", "Find the {a} {n} of all {t}."
    question = _worded(rng, wordings, t, a=rng.choice(adjectives))
    gold = f"SELECT {kind.upper()}({t.number}) FROM {t.name}"
    return Problem(question, kind, gold, (f"SELECT {other}({t.number}) FROM {t.name}",))


def _first(rng: random.Random, t: Table, kind: str) -> Problem:
    adjectives = ("highest", "largest") if kind == "top" else ("lowest", "smallest")
    wordings = "What is the {c} of the {t} with the {a} {n}?", "Show the {c} where {t} have the {a} {n}."
    query = f"SELECT {t.text} FROM {t.name} ORDER BY {t.number} {{}} LIMIT 1"
    gold, wrong = query.format("DESC"), query.format("ASC")
    if kind == "bottom":
        gold, wrong = wrong, gold
    return Problem(_worded(rng, wordings, t, a=rng.choice(adjectives)), kind, gold, (wrong,))


def _order(rng: random.Random, t: Table, kind: str) -> Problem:
    direction = "lowest" if kind == "ascending" else "highest"
    wordings = "List the {c} of all {t} by {n}, {a} first.", "Sort the {t} by {n}, {a} first, and show the {c}."
    query = f"SELECT {t.text} FROM {t.name} ORDER BY {t.number} {{}}"
    gold, wrong = query.format("ASC"), query.format("DESC")
    if kind == "descending":
        gold, wrong = wrong, gold
    return Problem(_worded(rng, wordings, t, a=direction), kind, gold, (wrong,))


def _group(rng: random.Random, t: Table) -> Problem:
    wordings = "How many {t} are there for each {c}?", "Count the {t} per {c}."
    gold = f"SELECT {t.text}, COUNT(*) FROM {t.name} GROUP BY {t.text}"
    return Problem(_worded(rng, wordings, t), "group", gold, (f"SELECT COUNT(*) FROM {t.name}",))


def _join(rng: random.Random, t: Table, parent: Table, value: str, kind: str) -> Problem:
    selected, alone = ("COUNT(*)", "COUNT(*)") if kind == "join_count" else (f"T1.{t.number}", t.number)
    wordings = "What is the {n} of the {t} of {p} with {pc} {v}?", "Show the {n} of {t} whose {p} have {pc} {v}."
    if kind == "join_count":
        wordings = "How many {t} belong to {p} with {pc} {v}?", "Count the {t} whose {p} have {pc} {v}."
    question = _worded(rng, wordings, t, value, p=parent.name, pc=parent.text)
    joined = f"SELECT {selected} FROM {t.name} AS T1 JOIN {parent.name} AS T2 ON T1.{t.key} = T2.id"
    gold = f"{joined} WHERE T2.{parent.text} = '{value}'"
    return Problem(question, kind, gold, (f"SELECT {alone} FROM {t.name}",))


def _worded(rng: random.Random, wordings: tuple[str, ...], table: Table, value: str = "", **more: str) -> str:
    return rng.choice(wordings).format(t=table.name, n=table.number, c=table.text, v=value, **more)


KINDS = (
    *("list", "count", "max", "min", "avg", "sum", "top", "bottom"),
    *("ascending", "descending", "group", "join", "join_count"),
)


def draw_problem(rng: random.Random, tables: list[Table], kind: str) -> Problem:
    """Draw a question of one kind about one of the tables."""
    table = rng.choice(tables[1:])
    if kind.startswith("join"):
        return _join(rng, table, tables[0], rng.choice(tables[0].rows)[1], kind)
    if kind in ("list", "count"):
        return {"list": _list, "count": _count}[kind](rng, table, rng.choice(table.rows)[1])
    if kind == "group":
        return _group(rng, table)
    table = rng.choice(tables)
    make = _aggregate if kind in AGGREGATES else _first if kind in ("top", "bottom") else _order
    return make(rng, table, kind)
