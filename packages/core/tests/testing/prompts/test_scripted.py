from collections.abc import Mapping

import pytest

from leyden.core.data.resources import PromptTemplate, Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UsageError
from leyden.core.testing.prompts.scripted import ScriptedPrompts, ScriptedPromptsConfig
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext


def length(resources: Mapping[str, Resource], task: Task) -> float | None:
    prompt = resources["prompt"]
    assert isinstance(prompt, PromptTemplate)
    return None if task == "no reward" else float(len(prompt.format(q="")))


def context(*tasks: Task, steps: int) -> ScriptedPromptContext:
    return ScriptedPromptContext(tasks, {"prompt": PromptTemplate(template="12{q}")}, length, steps=steps)


def texts(context: ScriptedPromptContext) -> list[str]:
    prompts = [version["prompt"] for version in context.versions]
    return [prompt.template for prompt in prompts if isinstance(prompt, PromptTemplate)]


async def test_the_best_candidate_of_each_step_is_published() -> None:
    config = ScriptedPromptsConfig(candidates=[["1", "123"], ["1"], ["{missing}", "1234{q}"]], repeats=2)
    run = context("a", "no reward", "b", steps=4)
    await ScriptedPrompts(config).run(run)
    assert texts(run) == ["12{q}", "123", "123", "1234{q}", "1234{q}"]
    assert [line["reward"] for line in run.lines] == [3.0, 3.0, 4.0, 4.0]
    assert run.state == [[2.0, 1.0, 3.0], [3.0, 1.0], [3.0, 0.0, 4.0], [4.0]], "a failed rollout counts 0"
    assert run.calls == ["restore", "before", *["publish", "checkpoint"] * 4, "after"]


async def test_equal_rewards_keep_the_published_prompt() -> None:
    run = context("a", steps=1)
    await ScriptedPrompts(ScriptedPromptsConfig(candidates=[["ab"]])).run(run)
    assert texts(run) == ["12{q}", "12{q}"]


async def test_held_out_tasks_may_be_used() -> None:
    run = ScriptedPromptContext(
        ["a"], {"prompt": PromptTemplate(template="")}, length, held_out={"val": ["b", "c"]}, steps=1
    )
    await ScriptedPrompts(ScriptedPromptsConfig(candidates=[["x"]], held_out="val")).run(run)
    assert {(request.held_out, request.row) for request in run.requests} == {("val", 0), ("val", 1)}


async def test_a_prompt_that_the_run_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, match="no prompt template 'other'; give --prompt NAME=FILE"):
        await ScriptedPrompts(ScriptedPromptsConfig(prompt="other")).run(context("a", steps=1))
