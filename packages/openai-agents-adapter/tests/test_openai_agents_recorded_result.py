"""A `RunResult`, restored from its record, is scored as the result itself."""

import pytest
from agents import Agent, OpenAIChatCompletionsModel, RunContextWrapper, RunResult
from openai import AsyncOpenAI

from leyden.core.data.plain.recorded_form import recorded_form
from leyden.core.data.plain.recorded_object import NotRecorded, Restored

KEY = "sk-a-key-that-nobody-may-store"


def test_a_run_result_has_its_final_output_and_no_key() -> None:
    client = AsyncOpenAI(api_key=KEY)
    agent = Agent(name="asker", model=OpenAIChatCompletionsModel("m", client))
    given = RunResult(
        input="2 + 2?",
        new_items=[],
        raw_responses=[],
        final_output={"answer": 4},
        input_guardrail_results=[],
        output_guardrail_results=[],
        tool_input_guardrail_results=[],
        tool_output_guardrail_results=[],
        context_wrapper=RunContextWrapper(None),
        _last_agent=agent,
    )
    form = recorded_form(given).text or ""
    assert KEY not in form
    found = Restored(form)
    last_agent = found.value._last_agent
    assert (found.value.final_output, found.value.input, last_agent.name) == (
        {"answer": 4},
        "2 + 2?",
        "asker",
    )
    assert isinstance(found.value, RunResult)
    assert found.refused == []
    with pytest.raises(NotRecorded):
        assert last_agent.model.model
