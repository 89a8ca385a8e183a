"""Searched keys: where a run has them, how values are read from its settings and put there."""

from typing import Any

import pytest

from leyden.core.errors import UsageError
from leyden.core.tuning.settings import setting_of, setting_path, values_of, with_settings
from leyden.core.tuning.space import read_space

BASE: dict[str, Any] = {"steps": 4, "sampling": {"max_tokens": 9}, "algorithm_config": {"learning_rate": 1e-3}}


def test_a_key_is_a_field_of_the_run_or_an_option_of_its_algorithm() -> None:
    assert setting_path("tasks_per_step", BASE) == ("tasks_per_step",)
    assert setting_path("sampling.temperature", BASE) == ("sampling", "temperature")
    assert setting_path("credit.gamma", BASE) == ("algorithm_config", "credit.gamma")
    assert setting_path("algorithm_config.credit.gamma", BASE) == ("algorithm_config", "credit.gamma")
    assert setting_path("spans", {"algorithm": "sft"}) == ("algorithm_config", "spans")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "lerning_rate",
            r"neither a run nor the algorithm lightning_rl has this .*; did you mean learning_rate\?",
        ),
        ("group-size", r"did you mean group_size\?"),
        ("seed", "it cannot be searched: give --seeds"),
        ("eval_every", "it cannot be searched: give --eval-every"),
        ("held_out", "it cannot be searched"),
        ("algorithm_config", "name one option of the algorithm"),
        ("algorithm_config.steps", "neither a run nor the algorithm"),
    ],
)
def test_a_key_that_cannot_be_searched_is_refused(key: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        setting_path(key, BASE)


def test_values_are_put_in_their_places_and_nothing_else_changes() -> None:
    space = read_space(["learning_rate=1e-4..1e-2", "sampling.temperature=0.5..2", "group_size=2..9:int"])
    found = with_settings(BASE, space, {"learning_rate": 2e-3, "sampling.temperature": 1.5, "group_size": 3})
    assert found == {
        "steps": 4,
        "sampling": {"max_tokens": 9, "temperature": 1.5},
        "algorithm_config": {"learning_rate": 2e-3},
        "group_size": 3,
    }
    assert BASE["algorithm_config"] == {"learning_rate": 1e-3}


def test_a_scheme_replaces_its_options_and_searched_options_reach_into_it() -> None:
    base = {"algorithm_config": {"credit": "discounted", "credit.gamma": 0.5}}
    space = read_space(["credit.gamma=0.1..1", "credit=uniform,discounted"])
    assert with_settings(base, space, {"credit": "uniform"})["algorithm_config"] == {"credit": "uniform"}
    both = with_settings(base, space, {"credit.gamma": 0.9, "credit": "discounted"})
    assert list(both["algorithm_config"].items()) == [("credit", "discounted"), ("credit.gamma", 0.9)]


def test_another_algorithm_begins_without_the_options_of_the_first() -> None:
    space = read_space(["algorithm=lightning_rl,dpo", "learning_rate=1e-4..1e-2"])
    base = {"algorithm_config": {"credit": "discounted"}}
    found = with_settings(base, space, {"learning_rate": 1e-3, "algorithm": "dpo"})
    assert found["algorithm_config"] == {"learning_rate": 1e-3}


def test_the_value_of_a_key_is_the_default_if_the_run_has_none() -> None:
    assert setting_of(BASE, "group_size") == 8
    assert setting_of(BASE, "sampling.temperature") == 1.0
    assert setting_of({}, "credit") == {"name": "uniform"}
    assert setting_of({"algorithm_config": {"credit": "discounted"}}, "credit.gamma") == 0.95
    assert setting_of({"algorithm_config": {"credit.gamma": 0.5, "learning_rate": 1}}, "learning_rate") == 1


def test_values_outside_the_search_are_left_out() -> None:
    space = read_space(["learning_rate=1e-4..1e-2", "credit=uniform,discounted", "group_size=2..4:int"])
    assert values_of(BASE, space) == {"learning_rate": 1e-3, "credit": "uniform"}
