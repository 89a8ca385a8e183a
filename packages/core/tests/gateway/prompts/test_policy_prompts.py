"""Prompts that are replaced before a policy reads them: real clients, a real gateway, a scripted policy."""

import asyncio
import json
import logging
from typing import Any

import anthropic
import httpx
import openai
import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits, Role
from leyden.core.data.span import Span
from leyden.core.engine.base import GenerateRequest
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway
from leyden.core.trajectory.prompts.discover import RecordedCalls, find_prompts

pytestmark = pytest.mark.integration

CODEC = ByteCodec()
OWN, NEW = "You solve sums.", "You are a careful accountant."
TASK: list[Any] = [{"role": "user", "content": "Task: 1 + 2"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {}}},
}


def answer(_: GenerateRequest) -> ScriptedAnswer:
    return ScriptedAnswer(ids=CODEC.answer("3"))


def component(role: Role, text: str, new: str, **fields: Any) -> PromptComponent:
    return PromptComponent(name=f"{role}{len(fields)}{new}"[:40], role=role, text=text, new_text=new, **fields)


SYSTEM = component("system", OWN, NEW)


async def attempt_with(gateway: ScriptedGateway, *components: PromptComponent) -> AttemptHandle:
    await gateway.store.add_resources({"prompts": PromptEdits(components=components)})
    return await gateway.open_attempt()


def prompt_text(gateway: ScriptedGateway, number: int = -1) -> str:
    """What the policy read in a call; a prompt's control tokens are left out."""
    return CODEC.decode(gateway.engine.requests[number].prompt_ids)


def client(attempt: AttemptHandle, **how: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x", max_retries=0, **how)


def found_texts(calls: list[Span]) -> dict[str, str]:
    """The agent's own prompts, as they are found in its calls."""
    found = find_prompts([RecordedCalls(task="Task: 1 + 2", spans=calls)])
    return {component.name: component.text for component in found.edits.components}


def recorded(span: Span, name: str) -> Any:
    return json.loads(str(span.attributes[name]))


async def test_the_policy_reads_the_new_text_and_the_record_has_both() -> None:
    messages: list[Any] = [{"role": "system", "content": OWN}, *TASK]
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, SYSTEM)
        async with client(attempt) as agent:
            reply = await agent.chat.completions.create(model="m", messages=messages)
        [span] = await gateway.calls(attempt)
        assert found_texts([span]) == {"system": OWN}
        read = prompt_text(gateway)
    new = [{"role": "system", "content": NEW}, *TASK]
    assert (NEW in read, OWN in read) == (True, False)
    assert unpack_ids(span.attributes[semconv.PROMPT_IDS]).tolist() == CODEC.encode(new)  # type: ignore[arg-type]
    assert recorded(span, semconv.INPUT_MESSAGES) == new
    assert recorded(span, semconv.PROMPT_EDITS) == [{"component": SYSTEM.name, "role": "system", "own": OWN}]
    assert NEW not in reply.model_dump_json()


async def test_without_a_new_text_nothing_is_changed_or_recorded() -> None:
    body = b'{"model":"m", "messages":[{"role":"system","content":"You solve sums."},{"role":"user","content":"a"}]}'
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, PromptComponent(name="system", role="system", text=OWN))
        async with httpx.AsyncClient() as http:
            await http.post(f"{attempt.base_url}/chat/completions", content=body)
        [span] = await gateway.calls(attempt)
        assert OWN in prompt_text(gateway)
    assert semconv.PROMPT_EDITS not in span.attributes
    assert str(span.attributes[semconv.INPUT_MESSAGES]).encode() in body


async def test_values_of_variables_are_carried_over_in_parts_and_in_any_order() -> None:
    user = component("user", "Task: {v1} of {v2}", "{v2}! Do {v1} with {{care}}.", part=1)
    content = [
        {"type": "text", "text": "First part {x}."},
        {"type": "text", "text": "Task: the sum 😀 of {1, 2}"},
    ]
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, user)
        async with client(attempt) as agent:
            await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])  # type: ignore[misc,list-item]
        [span] = await gateway.calls(attempt)
    [message] = recorded(span, semconv.INPUT_MESSAGES)
    assert [part["text"] for part in message["content"]] == ["First part {x}.", "{1, 2}! Do the sum 😀 with {care}."]


async def test_a_text_of_the_task_that_imitates_a_component_is_not_replaced() -> None:
    imitations: list[list[Any]] = [
        [{"role": "user", "content": OWN}],
        [{"role": "system", "content": f"{OWN}\n"}, {"role": "user", "content": f"system: {OWN}"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": OWN}, {"role": "user", "content": OWN}],
    ]
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, SYSTEM, component("user", "hello {v1}", "bye {v1}"))
        async with client(attempt) as agent:
            for messages in imitations:
                await agent.chat.completions.create(model="m", messages=messages)
        spans = await gateway.calls(attempt)
    assert [recorded(span, semconv.INPUT_MESSAGES) for span in spans] == imitations
    assert not any(semconv.PROMPT_EDITS in span.attributes for span in spans)


async def test_only_the_named_agent_and_node_have_the_new_text() -> None:
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, component("system", OWN, NEW, agent="writer", node="draft"))
        body = {"model": "m", "messages": [{"role": "system", "content": OWN}, *TASK]}
        async with httpx.AsyncClient() as http:
            for agent, node in (("writer", "draft"), ("writer", "check"), ("other", "draft"), ("", "")):
                headers = {semconv.HEADER_AGENT: agent, semconv.HEADER_NODE: node}
                await http.post(f"{attempt.base_url}/chat/completions", json=body, headers=headers)
        read = [NEW in prompt_text(gateway, number) for number in range(4)]
    assert read == [True, False, False, False]


async def test_an_attempt_runs_with_the_version_of_its_resources() -> None:
    messages: list[Any] = [{"role": "system", "content": OWN}, *TASK]
    async with scripted_gateway(answer) as gateway:
        first = await attempt_with(gateway, SYSTEM)
        second = await attempt_with(gateway, component("system", OWN, "Second text."))
        plain = await gateway.store.add_resources({})
        without = await gateway.open_attempt()
        for attempt in (second, first, without, second):
            async with client(attempt) as agent:
                await agent.chat.completions.create(model="m", messages=messages)
        read = [prompt_text(gateway, number) for number in range(4)]
    assert plain.version
    assert [text.split("\n")[1] for text in read] == ["Second text.", NEW, OWN, "Second text."]


async def test_descriptions_of_tools_are_replaced_where_the_policy_reads_them() -> None:
    tool = component("tool", "adds", "adds two numbers", tool="add")
    messages: list[Any] = TASK
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, tool)
        async with client(attempt) as agent:
            await agent.chat.completions.create(model="m", messages=messages, tools=[TOOL])  # type: ignore[list-item]
            reply = await agent.responses.create(
                model="m",
                input="Task",
                tools=[{"type": "function", "name": "add", "description": "adds", "parameters": {}, "strict": None}],
            )
        spans = await gateway.calls(attempt)
        read = [prompt_text(gateway, number) for number in range(2)]
    assert all('"description": "adds two numbers"' in text for text in read)
    assert [recorded(span, semconv.TOOL_DEFINITIONS)[0]["function"]["description"] for span in spans] == [
        "adds two numbers"
    ] * 2
    assert reply.tools[0].description == "adds"  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_return_the_agents_own_instructions_and_continue_with_its_own_items(stream: bool) -> None:
    edits = (SYSTEM, component("developer", "Be brief.", "Be very brief."))
    asked: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Task: 1 + 2"}]
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, *edits)
        async with client(attempt) as agent:
            if stream:
                async with agent.responses.stream(model="m", input=asked, instructions=OWN) as events:
                    seen = [repr(event) async for event in events]
                    reply = await events.get_final_response()
                assert not any("very brief" in event or NEW in event for event in seen)
            else:
                reply = await agent.responses.create(model="m", input=asked, instructions=OWN)
            assert reply.instructions == OWN
            read = await agent.responses.retrieve(reply.id)
            items = await agent.responses.input_items.list(reply.id)
            more = await agent.responses.create(
                model="m", input="And now?", previous_response_id=reply.id, instructions=OWN
            )
        assert (read.instructions, more.instructions) == (OWN, OWN)
        assert "Be brief." in items.model_dump_json()
        assert "very brief" not in items.model_dump_json()
        assert found_texts(await gateway.calls(attempt)) == {"system": OWN, "developer": "Be brief."}
        for number in (0, 1):
            assert NEW in prompt_text(gateway, number)
            assert "Be very brief." in prompt_text(gateway, number)


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_have_their_system_blocks_replaced(stream: bool) -> None:
    system: list[Any] = [
        {"type": "text", "text": "You solve sums.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Today is Monday."},
    ]
    edit = component("system", f"{OWN}\nToday is {{v1}}.", f"{{v1}}: {NEW}")
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, edit)
        root = attempt.base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=root, api_key="x", max_retries=0) as client:
            agent: Any = client
            how: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Task"}], "system": system}
            if stream:
                async with agent.messages.stream(max_tokens=50, **how) as events:
                    reply = await events.get_final_message()
            else:
                reply = await agent.messages.create(max_tokens=50, **how)
            counted = await agent.messages.count_tokens(**how)
        read = CODEC.decode(gateway.engine.requests[-1].prompt_ids)
        assert found_texts(await gateway.calls(attempt)) == {"system": f"{OWN}\nToday is Monday."}
    assert f"Monday: {NEW}" in read
    assert counted.input_tokens == reply.usage.input_tokens == len(gateway.engine.requests[-1].prompt_ids)
    assert NEW not in reply.model_dump_json()


async def test_prompts_of_completions_are_replaced_unless_the_response_repeats_them() -> None:
    edit = component("prompt", "Q: {v1}\nA:", "Question: {v1}\nAnswer:", position=1)
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, edit)
        async with client(attempt) as agent:
            await agent.completions.create(model="m", prompt=["Q: a\nA:", "Q: b\nA:"])
            echoed = await agent.completions.create(model="m", prompt=["x", "Q: b\nA:"], echo=True)
        spans = await gateway.calls(attempt)
        read = {CODEC.decode(request.prompt_ids) for request in gateway.engine.requests}
    assert {"Q: a\nA:", "Question: b\nAnswer:", "Q: b\nA:"} <= read
    assert echoed.choices[1].text.startswith("Q: b\nA:")
    assert [semconv.PROMPT_EDITS in span.attributes for span in spans] == [False, True, False, False]


async def test_a_retry_gets_the_answer_of_its_first_try() -> None:
    body = {"model": "m", "messages": [{"role": "system", "content": OWN}, *TASK]}
    async with scripted_gateway(answer) as gateway:
        attempt = await attempt_with(gateway, SYSTEM)
        async with httpx.AsyncClient() as http:
            first = await http.post(f"{attempt.base_url}/chat/completions", json=body)
            again = {"x-stainless-retry-count": "1"}
            second = await http.post(f"{attempt.base_url}/chat/completions", json=body, headers=again)
        assert second.json() == first.json()
        assert len(gateway.engine.requests) == 1


async def test_another_text_at_the_place_is_sent_unchanged_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    messages: list[Any] = [{"role": "system", "content": "Another prompt."}, *TASK]
    with caplog.at_level(logging.WARNING, "leyden.prompts"):
        async with scripted_gateway(answer) as gateway:
            attempt = await attempt_with(gateway, SYSTEM)
            async with client(attempt) as agent:
                await asyncio.gather(*(agent.chat.completions.create(model="m", messages=messages) for _ in range(3)))
            assert "Another prompt." in prompt_text(gateway)
    assert len(caplog.records) == 1
    assert "another text as system message 1 than the prompt component" in caplog.text
