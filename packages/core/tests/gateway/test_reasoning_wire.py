"""Reasoning on the wire: apart from the answer in each dialect, and in the history as it was sampled."""

import json
from typing import Any

import anthropic
import openai
import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint
from leyden.core.engine.base import GenerateRequest
from leyden.core.gateway.reasoning import sealed
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway

pytestmark = pytest.mark.integration

CODEC = ByteCodec()
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
THINKS = f"<think>\nOne and two.\n</think>\n\n{CALL}"
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}
MESSAGES_TOOL: Any = {"name": "add", "input_schema": PARAMETERS}
ENABLED: Any = {"type": "enabled", "budget_tokens": 1024}
USER: Any = {"role": "user", "content": "What is 1 + 2?"}


def always(text: str, **how: Any) -> Script:
    def script(_: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer(text), **how)

    return script


def openai_client(attempt: AttemptHandle) -> Any:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="k", max_retries=0)


def anthropic_client(attempt: AttemptHandle) -> Any:
    return anthropic.AsyncAnthropic(base_url=attempt.base_url.removesuffix("/v1"), api_key="k", max_retries=0)


def check_extension(gateway: ScriptedGateway) -> None:
    """The second prompt must begin with the first one and its answer, token by token."""
    first, second = gateway.engine.requests
    sampled = CODEC.answer(THINKS)
    assert second.prompt_ids[: len(first.prompt_ids) + len(sampled)] == first.prompt_ids + sampled


async def message_of(gateway: ScriptedGateway, attempt: AttemptHandle) -> dict[str, Any]:
    """The recorded message of an attempt's first call."""
    [message] = json.loads(str((await gateway.calls(attempt))[0].attributes[semconv.OUTPUT_MESSAGES]))
    return message


@pytest.mark.parametrize("kept", ["reasoning_content", "reasoning"])
async def test_a_chat_history_with_reasoning_extends_the_prompt_exactly(kept: str) -> None:
    async with scripted_gateway(always(THINKS)) as gateway:
        attempt = await gateway.open_attempt()
        async with openai_client(attempt) as agent:
            create = agent.chat.completions.create
            answer = await create(model="m", messages=[USER], tools=[CHAT_TOOL])
            message = answer.choices[0].message
            back = message.model_dump(exclude={"reasoning_content", "reasoning"}, exclude_none=True)
            back[kept] = getattr(message, kept)
            result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
            await create(model="m", messages=[USER, back, result], tools=[CHAT_TOOL])
        assert (message.reasoning_content, message.reasoning, message.content) == ("One and two.",) * 2 + (None,)
        assert answer.usage.completion_tokens_details.reasoning_tokens == len("<think>\nOne and two.\n</think>")
        check_extension(gateway)
        assert (await message_of(gateway, attempt))["reasoning_content"] == "One and two."


async def test_a_chat_stream_sends_reasoning_in_pieces_of_its_own() -> None:
    text = "<think>\nOne and two.\n</think>\n\nIt is 3."
    async with (
        scripted_gateway(always(text, chunk_size=2)) as gateway,
        openai_client(await gateway.open_attempt()) as agent,
    ):
        stream = await agent.chat.completions.create(model="m", messages=[USER], stream=True, logprobs=True)
        choices = [chunk.choices[0] async for chunk in stream]
    deltas = [choice.delta for choice in choices]
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "One and two."
    assert "".join(delta.content or "" for delta in deltas) == "It is 3."
    first = next(n for n, delta in enumerate(deltas) if delta.content)
    assert not any(thoughts[first:]), "the reasoning comes before the content"
    tokens = [token.token for choice in choices if choice.logprobs for token in choice.logprobs.content or ()]
    assert "".join(tokens) == "It is 3."


@pytest.mark.parametrize("how", ["items", "copies", "stored"])
async def test_items_of_reasoning_in_a_history_extend_the_prompt_exactly(how: str) -> None:
    fields: dict[str, Any] = {"model": "m", "tools": [RESPONSES_TOOL], "store": how == "stored"}
    if how == "copies":
        fields["include"] = ["reasoning.encrypted_content"]
    async with scripted_gateway(always(THINKS)) as gateway:
        attempt = await gateway.open_attempt()
        async with openai_client(attempt) as agent:
            answer = await agent.responses.create(input=[USER], **fields)
            items = [item.model_dump(exclude_none=True) for item in answer.output]
            result = {"type": "function_call_output", "call_id": items[1]["call_id"], "output": "3"}
            if how == "stored":
                await agent.responses.create(input=[result], previous_response_id=answer.id, **fields)
            else:
                if how == "copies":
                    del items[0]["content"]
                await agent.responses.create(input=[USER, *items, result], **fields)
        assert answer.output[0].content[0].text == "One and two."
        assert answer.output[0].encrypted_content == (sealed("One and two.") if how == "copies" else None)
        check_extension(gateway)
        assert semconv.LEFT_OUT not in (await gateway.calls(attempt))[1].attributes


async def test_an_answer_cut_off_in_its_reasoning_has_an_incomplete_item_of_it() -> None:
    how: dict[str, Any] = {"model": "m", "input": [USER], "max_output_tokens": 16}
    async with (
        scripted_gateway(always(THINKS, chunk_size=4)) as gateway,
        openai_client(await gateway.open_attempt()) as agent,
    ):
        answer = await agent.responses.create(**how)
        events = [event async for event in await agent.responses.create(**how, stream=True)]
        chat = await agent.chat.completions.create(model="m", messages=[USER], max_tokens=16)
    [item] = answer.output
    assert (item.type, item.status, item.content[0].text) == ("reasoning", "incomplete", "One and ")
    [last] = events[-1].response.output
    assert (events[-1].type, last.status, last.content) == ("response.incomplete", "incomplete", item.content)
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("", "length")
    assert chat.choices[0].message.reasoning_content == "One and "


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_blocks_in_a_history_extend_the_prompt_exactly(display: str, stream: bool) -> None:
    fields: dict[str, Any] = {"model": "m", "max_tokens": 2000, "tools": [MESSAGES_TOOL]}
    fields["thinking"] = ENABLED | {"display": display}
    async with scripted_gateway(always(THINKS, chunk_size=4)) as gateway:
        attempt = await gateway.open_attempt()
        async with anthropic_client(attempt) as agent:
            if stream:
                async with agent.messages.stream(messages=[USER], **fields) as events:
                    answer = await events.get_final_message()
            else:
                answer = await agent.messages.create(messages=[USER], **fields)
            back = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
            result = {"type": "tool_result", "tool_use_id": answer.content[1].id, "content": "3"}
            await agent.messages.create(messages=[USER, back, {"role": "user", "content": [result]}], **fields)
        assert [block.type for block in answer.content] == ["thinking", "tool_use"]
        assert answer.content[0].thinking == ("One and two." if display == "summarized" else "")
        assert answer.content[0].signature
        check_extension(gateway)
        assert (await message_of(gateway, attempt))["reasoning_content"] == "One and two."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
async def test_an_agent_that_does_not_enable_thinking_gets_no_thinking_block(thinking: Any, stream: bool) -> None:
    text = "<think>\nOne and two.\n</think>\n\nIt is 3."
    fields: dict[str, Any] = {} if thinking is None else {"thinking": thinking}
    async with scripted_gateway(always(text, chunk_size=4)) as gateway:
        attempt = await gateway.open_attempt()
        async with anthropic_client(attempt) as agent:
            async with agent.messages.stream(model="m", max_tokens=2000, messages=[USER], **fields) as events:
                answer = await events.get_final_message()
            if not stream:
                answer = await agent.messages.create(model="m", max_tokens=2000, messages=[USER], **fields)
        assert [(block.type, block.text) for block in answer.content] == [("text", "It is 3.")]
        assert answer.usage.output_tokens == len(CODEC.answer(text))
        assert (await message_of(gateway, attempt))["reasoning_content"] == "One and two."


async def test_a_retry_gets_the_reasoning_again() -> None:
    async with scripted_gateway(always(THINKS)) as gateway:
        attempt = await gateway.open_attempt()
        async with openai_client(attempt) as agent:
            how: dict[str, Any] = {"model": "m", "messages": [USER], "tools": [CHAT_TOOL]}
            first = await agent.chat.completions.create(**how)
            again = await agent.chat.completions.create(**how, extra_headers={"x-stainless-retry-count": "1"})
        assert again.model_dump() == first.model_dump()
        assert len(await gateway.calls(attempt)) == 1


async def test_an_answer_in_a_required_format_has_no_reasoning() -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    async with (
        scripted_gateway(always('<think>{"a": 1}</think>')) as gateway,
        openai_client(await gateway.open_attempt()) as agent,
    ):
        answer = await agent.chat.completions.create(model="m", messages=[USER], response_format=schema)
    assert answer.choices[0].message.content == '<think>{"a": 1}</think>'
    assert "reasoning_content" not in answer.choices[0].message.model_dump()


async def test_a_stored_answer_with_reasoning_is_found_again_after_a_restart() -> None:
    store = MemoryStore()
    async with scripted_gateway(always(THINKS), store=store) as gateway:
        attempt = await gateway.open_attempt()
        async with openai_client(attempt) as agent:
            answer = await agent.responses.create(model="m", input=[USER], tools=[RESPONSES_TOOL])
    async with scripted_gateway(always(THINKS), store=store) as restarted:
        token = mint(restarted.key, attempt.rollout_id, attempt.attempt_id)
        again: Any = openai.AsyncOpenAI(base_url=f"{restarted.url}/a/{token}/v1", api_key="k")
        async with again as agent:
            assert await agent.responses.retrieve(answer.id) == answer
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    await store.close()
