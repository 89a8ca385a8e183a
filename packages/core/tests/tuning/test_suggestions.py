"""Suggestions: keys that a run has, with domains around its own values that a study accepts."""

from typing import Any

import pytest
from scripted_studies import BASE

from leyden.core.tuning.settings import with_settings
from leyden.core.tuning.space import read_space
from leyden.core.tuning.suggestions import suggested

RUN: dict[str, Any] = {**BASE, "tasks_per_step": 16, "group_size": 8}


@pytest.mark.parametrize("credit", [None, "discounted", "final", {"name": "discounted", "gamma": 0.5}])
def test_each_domain_contains_the_runs_own_value_and_can_be_searched(credit: Any) -> None:
    options: dict[str, Any] = {"learning_rate": 6e-4}
    if credit is not None:
        options["credit"] = credit
    run: dict[str, Any] = {**RUN, "algorithm_config": options}
    found = {one.key: one for one in suggested(run)}
    assert list(found)[:3] == ["learning_rate", "credit", "epochs"]
    assert found["learning_rate"].domain == "0.00012..0.003:log"
    assert found["group_size"].domain == "4..16:int"
    assert [key for key, one in found.items() if one.changes_cost] == ["group_size", "tasks_per_step"]
    space = read_space([f"{one.key}={one.domain}" for one in found.values()])
    own = {key: space[key].value_of(one.own) for key, one in found.items()}
    assert None not in own.values()
    values = {key: value for key, value in own.items() if value is not None}
    assert suggested(with_settings(run, space, values)) == suggested(run)


def test_an_algorithm_without_these_keys_has_other_suggestions() -> None:
    run: dict[str, Any] = {**RUN, "algorithm": "apo", "algorithm_config": {}}
    assert not {"learning_rate", "credit"} & {one.key for one in suggested(run)}


def test_a_value_that_is_no_number_is_not_searched() -> None:
    keys = {one.key for one in suggested({**RUN, "tasks_per_step": None, "group_size": 1})}
    assert not {"tasks_per_step", "group_size"} & keys
