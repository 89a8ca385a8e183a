from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import AgentNotFound, UsageError
from leyden.core.testing.factories import span
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.selection import make_selector, read_selection
from leyden.core.trainer.trainer import Trainer

SPAN = span("chat", span_id="a")
PREDICATES = """
def starts(span, above):
    return span.name.startswith("chat")

def counts(span, above):
    return len(above)

def raises(span, above):
    return above[0].name

def takes_one(span):
    return True

number = 3

def leaves(span, above):
    raise SystemExit(3)
"""


@pytest.fixture
def predicates(tmp_path: Path) -> str:
    (tmp_path / "predicates.py").write_text(PREDICATES)
    return f"{tmp_path}/predicates.py"


def config(**changes: Any) -> RunConfig:
    return RunConfig(name="r", agent="a.py:agent", policy="p", **changes)


@pytest.mark.parametrize(("name", "selected"), [("starts", True), ("counts", False)])
def test_a_predicate_is_found_by_its_import_string(predicates: str, name: str, selected: bool) -> None:
    assert make_selector(config(predicate=f"{predicates}:{name}")).selects(SPAN, {}) is selected


def test_all_of_a_selection_reaches_the_selector(predicates: str) -> None:
    given = {"agent_match": "a", "span_match": "s", "attribute_match": {"app.x": "x"}}
    selector = make_selector(config(**given))
    assert {name: getattr(selector, name) for name in given} == given


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("strats", AgentNotFound, "did you mean starts"),
        ("takes_one", UsageError, "takes_one cannot be called as predicate"),
        ("number", UsageError, "number cannot be called as predicate"),
    ],
)
def test_a_predicate_that_cannot_work_is_one_line(
    predicates: str, name: str, kind: type[UsageError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        make_selector(config(predicate=f"{predicates}:{name}"))


def test_a_predicate_that_raises_is_the_users_to_mend(predicates: str) -> None:
    selector = make_selector(config(predicate=f"{predicates}:raises"))
    with pytest.raises(UsageError, match=r"predicate raises raised IndexError: .* line 9\) for a call of rollout ro"):
        selector.selects(SPAN, {})


def test_a_predicate_that_exits_does_not_end_the_run_in_silence(predicates: str) -> None:
    selector = make_selector(config(predicate=f"{predicates}:leaves"))
    with pytest.raises(UsageError, match=r"predicate leaves raised SystemExit: 3 \(.* line 17\) for a call of rollout"):
        selector.selects(SPAN, {})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"agent_math": "a"}, "select= takes agent_match, span_match, attribute_match, predicate, not agent_math"),
        ({"span_match": 3}, "takes a str for span_match, not a int"),
        ({"attribute_match": "x"}, "takes a dict for attribute_match, not a str"),
        (
            {"predicate": len},
            "a str for predicate, not a builtin.*; it runs in the learning process, so give its import str",
        ),
    ],
)
def test_a_selection_that_cannot_work_is_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Trainer(select=given)


def test_what_is_none_selects_all() -> None:
    assert read_selection({"agent_match": None, "span_match": "x"}) == {"span_match": "x"}


@pytest.mark.parametrize(
    ("given", "reward", "says"),
    [
        ({}, print, "give the reward so too"),
        ({"input": print}, None, "give the input so too"),
        ({"hooks": [object()]}, None, "give the hooks so too"),
    ],
)
@pytest.mark.parametrize("verb", ["fit", "dev"])
def test_beside_an_import_string_all_else_is_one_too(
    tmp_path: Path, given: dict[str, Any], reward: Any, says: str, verb: str
) -> None:
    trainer = Trainer(policy="p", runs=tmp_path, **given)
    with pytest.raises(UsageError, match=says):
        getattr(trainer, verb)("a.py:agent", [{"q": 1}], reward=reward)
    assert not list(tmp_path.iterdir())
