"""The section `agentlightning` of a dictionary: what Leyden does anyway is taken, everything else is one line."""

from typing import Any

import pytest

from leyden.core.algorithm.verl.algorithm import VERL, VERLConfig
from leyden.core.algorithm.verl.driver.agent_lightning_section import without_section
from leyden.core.errors import UsageError

AGGREGATOR = {"trajectory_max_prompt_length": 2048, "trajectory_max_response_length": 8192}


def of(**aggregator: Any) -> dict[str, Any]:
    return {"agentlightning": {"trace_aggregator": {**AGGREGATOR, **aggregator}}, "data": {"train_batch_size": 4}}


@pytest.mark.parametrize("config", [of(), of(level="transition"), {"data": {"train_batch_size": 4}}])
def test_a_row_for_each_call_is_what_leyden_does(config: dict[str, Any]) -> None:
    assert without_section(config) == {"data": {"train_batch_size": 4}}
    assert VERL(config).config.config == config


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            of(level="trajectory"),
            r"^agentlightning\.trace_aggregator\.level: 'trajectory' is not possible with Leyden: ",
        ),
        ({"agentlightning.trace_aggregator.level": "trajectory"}, r"data\.max_prompt_length"),
        ({"agentlightning": {"port": 9999}}, r"^agentlightning\.port has no meaning in Leyden, .*: remove it$"),
        ({"agentlightning": "all"}, r"^agentlightning has no meaning in Leyden"),
    ],
)
def test_anything_else_is_refused_with_its_path(config: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        VERL(config)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match=said):
        VERL(VERLConfig(config=config))
