"""The text-to-SQL expert: it errs in what it asks of the database, and never in copying a name or a value."""

import atexit
import importlib.util
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from tiny_policy import wire
from tiny_policy.experts import Expert
from tiny_policy.recording import Plan
from tiny_policy.training import Shape, Stage

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "text_to_sql"
QUESTIONS = 10
"""Questions about each database."""
WORDS = r"_[a-z]+| ?[A-Za-z]+| ?[^\sA-Za-z0-9_]+|\s"


@dataclass(frozen=True)
class Confusion:
    """How often the expert decides wrongly."""

    easy: float = 0.9
    """Share of right first queries of the kinds `EASY`."""
    hard: float = 0.3
    """The same of all other kinds."""
    fails: float = 0.04
    """Selects a column that the table does not have, so that the query fails."""
    passes: float = 0.7
    """As check, lets a wrong query pass."""
    rewrites: float = 0.4
    """As rewrite, finds the right query."""


NO_CONFUSION = Confusion(easy=1, hard=1, fails=0, passes=0, rewrites=1)
EASY = {"max", "sum", "top", "ascending"}


@cache
def load_problems() -> ModuleType:
    """Return the example's module `problems`."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("text_to_sql_problems", FOLDER / "problems.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


class Script:
    """What the expert writes about one question, as each of the three agents."""

    def __init__(
        self, rng: random.Random, confusion: Confusion, gold: str, wrong: str, broken: str, easy: bool
    ) -> None:
        self._rng, self._confusion = rng, confusion
        self.gold, self.wrong, self.easy, self._broken = gold, wrong, easy, broken

    def __call__(self, messages: Sequence[wire.Message], formatted: bool) -> str:
        """Return what the expert writes in a conversation, whose system prompt shows which agent it is."""
        system, prompt = messages[0]["content"], messages[-1]["content"]
        draw, confusion = self._rng.random(), self._confusion
        if system.startswith("Reply OK"):
            right = f"\n{self.gold}\n" in prompt
            return "OK" if right or draw < confusion.passes else "Wrong"
        if system.startswith("The query is wrong"):
            return self.gold if draw < confusion.rewrites else self.wrong
        if draw < confusion.fails:
            return self._broken
        rate = confusion.easy if self.easy else confusion.hard
        return self.gold if self._rng.random() < rate else self.wrong


def draw_plans(seed: int, count: int, *, erring: bool) -> list[Plan]:
    """Return `count` questions about databases of the training share, with an erring, or a perfect, expert."""
    problems, rng = load_problems(), random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="text_to_sql-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    confusion = Confusion() if erring else NO_CONFUSION
    plans: list[Plan] = []
    while len(plans) < count:
        tables = problems.draw_tables(rng, "train")
        database = folder / f"{len(plans)}.sqlite"
        problems.write_database(tables, database)
        broken = f"SELECT {tables[0].number} FROM {tables[1].name}"
        for kind in rng.choices(problems.KINDS, k=min(QUESTIONS, count - len(plans))):
            problem = problems.draw_problem(rng, tables, kind)
            own = random.Random(rng.random())
            script = Script(own, confusion, problem.gold, own.choice(problem.wrong), broken, kind in EASY)
            plans.append(Plan({"question": problem.question, "database": str(database)}, script))
    return plans


EXPERT = Expert(
    agent=f"{FOLDER}/agent.py:agent",
    policy=FOLDER / "policy",
    draw=draw_plans,
    traces=3000,
    shape=Shape(),
    recipe=(Stage(840, 16, 3e-3), Stage(2160, 24, 2e-3)),
    vocabulary=768,
    words=WORDS,
)
