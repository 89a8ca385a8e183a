"""The votes of the examples: which results count as the same answer, without a model."""

import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import agents
import pytest

from leyden.core.runner.adapters.finding import AgentSource

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def modules_of_one_example(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Each example has modules called `agent` and `reward`, which other tests may have imported."""
    names = ("agent", "reward")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).parent != ROOT / "examples"])
    yield
    for name in names:
        sys.modules.pop(name, None)


def loaded(name: str) -> Any:
    source = AgentSource.load(f"{ROOT}/examples/{name}/vote.py:vote")
    assert source.adapter.name == "vote"
    return source.agent


def said(text: str) -> Any:
    return SimpleNamespace(messages=[SimpleNamespace(content=text)])


def test_math_votes_on_the_number_or_the_option() -> None:
    answer = loaded("math").answer
    assert answer(said("Answer: 1,200")) == answer(said("So. Answer: 1200")) != answer(said("Answer: 1201"))
    assert answer(said("Answer: (b)")) == "B"
    assert answer(said("I do not know")) is None


def test_question_answering_votes_on_the_normalised_text(monkeypatch: pytest.MonkeyPatch) -> None:
    without_traces = partial(agents.set_default_openai_key, use_for_tracing=False)
    monkeypatch.setattr(agents, "set_default_openai_key", without_traces)  # it would export those of later tests
    answer = loaded("qa").answer
    assert answer("<answer>The River</answer>") == answer("<answer> river. </answer>") == "river"
    assert answer("river") is None


def test_text_to_sql_votes_on_the_rows_and_its_single_agent_only_writes() -> None:
    vote = loaded("text_to_sql")
    assert set(vote.agent.get_graph().nodes) == {"__start__", "write", "__end__"}
    database = str(next((ROOT / "examples/text_to_sql/databases").rglob("*.sqlite")).resolve())

    def rows(query: str) -> Any:
        return vote.answer({"database": database, "query": query})

    assert rows("SELECT 1 UNION SELECT 2 ORDER BY 1") == rows("SELECT 2 UNION SELECT 1 ORDER BY 1 DESC") is not None
    assert rows("SELECT 1") != rows("SELECT 2")
    assert rows("DROP TABLE x") is None
