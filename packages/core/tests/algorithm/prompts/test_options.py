"""No option of an algorithm that trains prompts is accepted and ignored."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from prompt_sessions import hinted

from leyden.core.algorithm.registry import ALGORITHMS, algorithm_class
from leyden.core.algorithm.task_rollouts import RolloutRequest, RolloutResult
from leyden.core.data.resources import PromptTemplate
from leyden.core.testing.prompts.hints import hinted_tasks
from leyden.core.testing.prompts.reflection import add_demanded
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext
from leyden.core.trainer.preflight.options import OptionReads

SHARED: dict[str, dict[str, Any]] = {
    "components": {"components": ["pro*"]},
    "reflection": {"reflection": {"model": "m"}},
    "budget": {"budget": {"rollouts": 40}},
    "validation": {"validation": "val"},
    "validation_share": {"validation_share": 0.4},
}
GIVEN: dict[str, dict[str, dict[str, Any]]] = {
    "apo": {
        **SHARED,
        "edit": {"edit": {"model": "e"}},
        "diversity_temperature": {"diversity_temperature": 0.5},
        "beam_width": {"beam_width": 2},
        "branch_factor": {"branch_factor": 2},
        "minibatch": {"minibatch": 2},
        "worst": {"worst": 2},
        "best": {"best": 0},
        "perfect_score": {"perfect_score": 1.0},
        "validation_batch": {"validation_batch": 3},
        "initial_validation": {"initial_validation": False},
        "gradient_template": {"gradient_template": "<prompt> <rollouts>"},
        "edit_template": {"edit_template": "<prompt> <gradient>"},
    },
    "gepa": {
        **SHARED,
        "minibatch": {"minibatch": 2},
        "proposals": {"proposals": 2},
        "selection": {"selection": "current_best"},
        "frontier": {"frontier": "objective"},
        "component_selection": {"component_selection": "all"},
        "merges": {"merges": 0},
        "acceptance": {"acceptance": "improvement_or_equal"},
        "perfect_score": {"perfect_score": 2.0},
        "reflection_template": {"reflection_template": "<curr_param> <side_info>"},
    },
}


class WithDimensions(ScriptedPromptContext):
    async def run_tasks(self, requests: Sequence[RolloutRequest]) -> list[RolloutResult]:
        return [replace(one, dimensions={"all": one.reward or 0.0}) for one in await super().run_tasks(requests)]


def test_every_option_is_listed_here() -> None:
    kinds = {name: algorithm_class(name) for name in ALGORITHMS}
    prompts = {name: kind for name, kind in kinds.items() if not kind.needs_policy}
    assert GIVEN.keys() == prompts.keys()
    for name, kind in prompts.items():
        assert set(kind.Config.__struct_fields__) == GIVEN[name].keys(), name


@pytest.mark.parametrize(("algorithm", "option"), [(name, one) for name, given in GIVEN.items() for one in given])
async def test_an_option_that_is_given_is_read(algorithm: str, option: str) -> None:
    option_reads = OptionReads(algorithm, GIVEN[algorithm][option])
    assert option_reads.given == [option]
    tasks = hinted_tasks(12)
    context = WithDimensions(
        tasks,
        {"prompt": PromptTemplate(template="{question}")},
        hinted,
        held_out={"val": tasks[:3]},
        steps=2,
        reflect=add_demanded,
    )
    await option_reads.algorithm.run(context)
    assert option_reads.unread == ()
