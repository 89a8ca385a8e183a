from typing import Any

import pytest

from leyden.core.data.resources import LLM, NamedResources, PromptTemplate
from leyden.core.data.rollout import Attempt, AttemptedRollout
from leyden.core.errors import UsageError
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.rollout_function import rollout

RESOURCES: NamedResources = {
    "prompt": PromptTemplate(template="{q}"),
    "main_llm": LLM(endpoint="http://x", model="m"),
    "other_llm": LLM(endpoint="http://y", model="n"),
}
CLAIMED = AttemptedRollout(
    rollout_id="r",
    input=None,
    start_time=0.0,
    attempt=Attempt(rollout_id="r", attempt_id="a", sequence_id=1, start_time=0.0),
)


def test_arguments_are_given_by_name() -> None:
    @rollout
    def agent(
        question: str, llm: LLM, prompt_template: PromptTemplate, resources: NamedResources, rollout: Any
    ) -> float:
        assert (question, llm.model, prompt_template.template) == ("why", "m", "{q}")
        assert resources is RESOURCES
        assert rollout is CLAIMED
        return 0.5

    assert isinstance(agent, LitAgent)
    assert not agent.is_async()
    assert agent.training_rollout("why", RESOURCES, CLAIMED) == 0.5


async def test_a_coroutine_function_is_awaited() -> None:
    @rollout
    async def agent(task: str) -> dict[str, float]:
        return {"length": len(task)}

    assert agent.is_async()
    assert await agent.validation_rollout_async("abc", RESOURCES, CLAIMED) == {"length": 3}


def test_the_function_can_still_be_called() -> None:
    @rollout
    def agent(task: int, rollout: Any = None, scale: float = 2.0) -> float:
        return task * scale

    assert agent(3, scale=1.0) == 3.0
    assert agent.rollout(3, {}, CLAIMED) == 6.0


def test_an_argument_that_is_not_offered_is_named() -> None:
    def agent(task: int, lmm: LLM) -> float:
        return 1.0

    with pytest.raises(UsageError, match="agent has a parameter 'lmm'; parameters can be resources, llm"):
        rollout(agent)
    with pytest.raises(UsageError, match="must take the task"):
        rollout(lambda: 1.0)


def test_a_resource_that_is_missing_is_named() -> None:
    @rollout
    def agent(task: int, llm: LLM) -> float:
        return 1.0

    with pytest.raises(UsageError, match=r"type LLM, but the rollout has \['prompt'\]"):
        agent.rollout(1, {"prompt": PromptTemplate(template="")}, CLAIMED)
