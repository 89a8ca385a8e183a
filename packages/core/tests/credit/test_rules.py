"""What outcomes are worth, rule by rule."""

import json
from typing import Any

import msgspec
import pytest

from leyden.core.credit.rules import Rule, intermediate_rewards
from leyden.core.data.transition import Outcome
from leyden.core.errors import TrainingError, UsageError
from leyden.core.testing.factories import transition


def outcome(kind: Any, succeeded: bool | None, text: str | None = None, name: str = "sql") -> Outcome:
    return Outcome(kind=kind, name=name, succeeded=succeeded, text=text)


def worth(rules: list[dict[str, Any]], *outcomes: Outcome) -> float:
    call = transition(outcomes=outcomes)
    (reward,) = intermediate_rewards([msgspec.convert(rule, Rule) for rule in rules], [call])
    return float(reward)


def whole_number(text: str) -> bool:
    return int(text) > 0


def broken(text: str) -> bool:
    raise KeyError(text)


@pytest.mark.parametrize(("succeeded", "expected"), [(True, 0.5), (False, -0.25), (None, 0.0)])
def test_without_a_text_to_look_at_the_record_decides_and_silence_is_worth_nothing(
    succeeded: bool | None, expected: float
) -> None:
    assert worth([{"kind": "tool", "succeeded": 0.5, "failed": -0.25}], outcome("tool", succeeded, "rows")) == expected


@pytest.mark.parametrize(
    ("succeeded", "text", "expected"),
    [
        (True, "3 rows", 1.0),
        (True, "error: no such table", -1.0),
        (None, "3 rows", 1.0),
        (None, "error: no such table", -1.0),
        (False, "3 rows", -1.0),  # what the record calls failed has failed
        (True, None, 1.0),
        (None, None, 0.0),
    ],
)
def test_a_pattern_looks_at_what_a_tool_returned(succeeded: bool | None, text: str | None, expected: float) -> None:
    rule = {"kind": "tool", "matches": r"\A(?!error)", "succeeded": 1.0, "failed": -1.0}
    assert worth([rule], outcome("tool", succeeded, text)) == expected


@pytest.mark.parametrize(
    ("reads", "text", "expected"),
    [
        ("json:loads", '{"a": 1}', 1.0),
        ("json:loads", "0", 1.0),  # only False is False
        ("json:loads", "{a", -1.0),
        ("whole_number", "7", 1.0),
        ("whole_number", "-7", -1.0),
        ("whole_number", "seven", -1.0),
    ],
)
def test_a_function_reads_an_answer(reads: str, text: str, expected: float, request: pytest.FixtureRequest) -> None:
    reads = reads if ":" in reads else f"{request.path}:{reads}"
    rule = {"kind": "answer", "reads": reads, "succeeded": 1.0, "failed": -1.0}
    assert worth([rule], outcome("answer", None, text)) == expected


def test_a_function_that_fails_in_another_way_stops_the_run(request: pytest.FixtureRequest) -> None:
    with pytest.raises(TrainingError, match=r"test_rules.py:broken raised KeyError: .* for 'seven'"):
        worth(
            [{"kind": "answer", "reads": f"{request.path}:broken", "succeeded": 1.0}], outcome("answer", None, "seven")
        )


def test_the_first_rule_that_fits_counts_and_outcomes_add_up() -> None:
    rules = [{"name": "^sql", "succeeded": 0.5}, {"kind": "tool", "succeeded": 0.1}]
    outcomes = [outcome("tool", True), outcome("tool", True, name="clock"), outcome("operation", True, name="clock")]
    assert worth(rules, *outcomes) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"kind": "tool"}, "needs a reward or a penalty"),
        ({"name": "(", "succeeded": 1.0}, "name '\\(' is not a regular expression"),
        ({"matches": "(", "succeeded": 1.0}, "matches '\\(' is not a regular expression"),
        ({"kind": "answer", "succeeded": 1.0}, "needs matches or reads"),
        ({"matches": "x", "reads": "json:loads", "succeeded": 1.0}, "not both"),
        ({"reads": "json:nothing", "succeeded": 1.0}, "nothing"),
        ({"reads": "json:__name__", "succeeded": 1.0}, "is not a function"),
    ],
)
def test_rules_that_cannot_work_are_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        msgspec.json.decode(json.dumps(rule), type=Rule)
