"""Runs mutated queries by the text-to-SQL example's `run_readonly`, and prints what they did to file, time and memory.

The queries are those of the training tasks and a list of attacks, spliced, repeated and mutilated from a seed. The
exit code is 1 if the database's folder changed, or if a query ran longer than its limit and a second.

    python scripts/sql_safety.py --count 10000 --seed 0
"""

import argparse
import hashlib
import importlib.util
import json
import random
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "text_to_sql"
OVERRUN = 1.0
"""Seconds that a query may take beyond its limit: SQLite looks at the clock between instructions, not within one."""
NUMBERS = "SELECT value FROM n"
MANY = f"WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n) {NUMBERS}"
GROWING = (
    "WITH RECURSIVE g(t) AS (SELECT 'aaaaaaaaaaaaaaaa' UNION ALL SELECT t || t FROM g) SELECT max(length(t)) FROM g"
)
ATTACKS = (
    "DELETE FROM {t}",
    "UPDATE {t} SET id = id + 1",
    "INSERT INTO {t} VALUES (1, 'x', 2)",
    "REPLACE INTO {t} VALUES (1, 'x', 2)",
    "DROP TABLE {t}",
    "ALTER TABLE {t} RENAME TO gone",
    "CREATE TABLE made AS SELECT * FROM {t}",
    "CREATE TEMP TABLE made AS SELECT * FROM {t}",
    "CREATE VIRTUAL TABLE made USING fts5(text)",
    "CREATE TRIGGER fires AFTER INSERT ON {t} BEGIN DELETE FROM {t}; END",
    "SELECT 1; DELETE FROM {t}",
    "WITH a AS (SELECT 1) DELETE FROM {t}",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "SAVEPOINT s",
    "VACUUM",
    "VACUUM INTO '{folder}/copied.sqlite'",
    "ATTACH '{folder}/attached.sqlite' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "REINDEX",
    "ANALYZE",
    "EXPLAIN SELECT * FROM {t}",
    "PRAGMA query_only = OFF",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = WAL",
    "PRAGMA user_version = 7",
    "PRAGMA temp_store_directory = '{folder}'",
    "PRAGMA hard_heap_limit = 0",
    "SELECT * FROM pragma_journal_mode('wal')",
    "SELECT load_extension('{folder}/library')",
    "SELECT readfile('/etc/hostname')",
    "SELECT writefile('{folder}/written', 'x')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT sqlite_compileoption_get(1)",
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT hex(zeroblob(500000000))",
    "SELECT printf('%.*c', 1000000000, 'x')",
    "SELECT format('%1000000000d', 1)",
    "SELECT replace(hex(id), '0', '00000000000000') FROM {t}",
    "SELECT char(" + ", ".join(["65"] * 500) + ")",
    "SELECT '" + "x" * 4000 + "'",
    "SELECT " + "(" * 900 + "1" + ")" * 900,
    "SELECT " + "-" * 2000 + "1",
    "SELECT 1" + " UNION ALL SELECT 1" * 200,
    "SELECT 1" + ", 1" * 1500,
    MANY,
    GROWING,
    MANY.replace(NUMBERS, "SELECT count(*) FROM n"),
    MANY.replace(NUMBERS, "SELECT group_concat(value) FROM n"),
    MANY.replace(NUMBERS, "SELECT value FROM n ORDER BY value DESC"),
    MANY.replace(NUMBERS, "SELECT count(DISTINCT hex(hex(value))) FROM n"),
    MANY.replace(NUMBERS, "SELECT sum(value) OVER (ORDER BY -value) FROM n"),
    MANY.replace("UNION ALL", "UNION"),
    "SELECT count(*) FROM " + ", ".join(f"{{t}} AS a{number}" for number in range(12)),
    "SELECT * FROM " + ", ".join(f"{{t}} AS a{number}" for number in range(12)),
    "SELECT a0.id FROM " + ", ".join(f"{{t}} AS a{number}" for number in range(12)) + " ORDER BY random()",
    "SELECT group_concat(t) FROM (SELECT hex(hex(hex(hex('aaaaaaaaaaaa')))) AS t FROM {t} a, {t} b, {t} c)",
    "WITH RECURSIVE g(t) AS (SELECT 'a' UNION ALL SELECT t || t FROM g LIMIT 14) SELECT trim(max(t), max(t)) FROM g",
    "WITH RECURSIVE g(t) AS (SELECT 'a' UNION ALL SELECT t || t FROM g LIMIT 14) SELECT "
    + ", ".join(["instr(t, t || 'b'), trim(t, t || 'b'), replace(t, 'a', t)"] * 30)
    + " FROM g",
    "WITH RECURSIVE g(t) AS (SELECT 'a' UNION ALL SELECT t || t FROM g LIMIT 14) SELECT t LIKE '"
    + "%a" * 90
    + "b' FROM g a, {t} b, {t} c",
    "SELECT id FROM {t} WHERE id GLOB '" + "*[a-z]" * 30 + "'",
    "SELECT ?1",
    "SELECT * FROM {t} WHERE id = :id",
    "SELECT 1 \x00 FROM {t}",
    "SELECT '\ud800'",
    "",
    ";",
    "-- nothing",
)
TOKEN = re.compile(r"'[^']*'|\w+|\s+|.", re.DOTALL)


def load_safe_sqlite() -> ModuleType:
    """Return the example's module `safe_sqlite`."""
    spec = importlib.util.spec_from_file_location("text_to_sql_safe_sqlite", FOLDER / "safe_sqlite.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def mutate(rng: random.Random, queries: list[str]) -> str:
    """Return a query with one to four changes: tokens gone, repeated, exchanged, from another query, or huge."""
    tokens = TOKEN.findall(rng.choice(queries))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(tokens) + 1)
        end = min(len(tokens), at + rng.randint(1, 6))
        other = TOKEN.findall(rng.choice(queries))
        start = rng.randrange(len(other) + 1)
        piece = {
            "gone": [],
            "repeated": tokens[at:end] * rng.choice((2, 3, 50)),
            "other": other[start : start + rng.randint(1, 30)],
            "all": [" ", rng.choice(("UNION ALL", "UNION", ";", "EXCEPT", ",", "AND", "(")), " ", *other],
            "huge": [rng.choice(("999999999999999999999", "-1", "1e308", "0", "2147483647", "x'00'", "NULL", "*"))],
        }[rng.choice(("gone", "repeated", "other", "all", "huge"))]
        tokens[at:end] = piece
    return "".join(tokens)


def contents(folder: Path) -> str:
    """Return a digest of all names and bytes in a folder."""
    parts = [path.name.encode() + path.read_bytes() for path in sorted(folder.iterdir())]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def peak_megabytes() -> float:
    """Return the most memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


@dataclass
class Figures:
    """What the queries did."""

    changes: int = 0
    """Queries after which the folder of the database had other contents."""
    longest: float = 0.0
    """Seconds of the query that took longest."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """Number of queries that returned rows, and that were refused, by reason."""
    grown: float = 0.0
    """Megabytes by which the peak of the process's memory rose."""


def run_queries(queries: list[str], database: Path, seconds: float) -> Figures:
    """Run each query on the database and look at its folder afterwards."""
    safe, figures = load_safe_sqlite(), Figures()
    before, peak = contents(database.parent), peak_megabytes()
    for query in queries:
        started = time.monotonic()
        try:
            safe.run_readonly(database, query, seconds)
            figures.outcomes["returned"] += 1
        except safe.QueryError as error:
            figures.outcomes[reason_of(str(error))] += 1
        figures.longest = max(figures.longest, time.monotonic() - started)
        if contents(database.parent) != before:
            figures.changes += 1
            before = contents(database.parent)
    figures.grown = peak_megabytes() - peak
    return figures


def reason_of(message: str) -> str:
    """Return the kind of an error."""
    kinds = {
        "not authorized": "not authorized|prohibited",
        "too long": "longer than",
        "too large": "more than|too big|too large|too many|too much memory|overflow|maximum depth|out of memory",
        "several statements": "one statement",
    }
    return next((kind for kind, pattern in kinds.items() if re.search(pattern, message)), "invalid")


def draw_queries(count: int, seed: int, folder: Path) -> tuple[list[str], Path]:
    """Return the attacks and mutated queries, `count` in all, and a database in `folder` that they are made for."""
    rng = random.Random(seed)
    rows = [json.loads(line) for line in (FOLDER / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    chosen = [row["gold"] for row in rows if row["database"] == rows[0]["database"]]
    database = folder / "database.sqlite"
    shutil.copyfile(FOLDER / rows[0]["database"], database)
    table = re.split(r"FROM ", chosen[0])[1].split()[0]
    attacks = [attack.replace("{t}", table).replace("{folder}", str(folder)) for attack in ATTACKS]
    mutated = [mutate(rng, attacks + chosen * 3) for _ in range(max(0, count - len(attacks)))]
    return (attacks + mutated)[:count], database


def main() -> None:
    """Run the queries and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.1, help="limit of each query, default %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        queries, database = draw_queries(options.count, options.seed, Path(folder))
        figures = run_queries(queries, database, options.seconds)
    print(f"{len(queries)} queries, seed {options.seed}: {figures.changes} changed a file, the longest took")
    print(f"{figures.longest:.2f} s of {options.seconds} s, peak memory rose by {figures.grown:.0f} MB")
    print(dict(figures.outcomes.most_common()))
    sys.exit(1 if figures.changes or figures.longest > options.seconds + OVERRUN else 0)


if __name__ == "__main__":
    main()
