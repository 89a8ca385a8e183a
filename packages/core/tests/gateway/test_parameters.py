"""The table of parameters is true: each field is sent, and does what its row says."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from leyden.core.data.identity import mint, new_key
from leyden.core.data.rollout import RolloutMode
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.anthropic import request as messages_request
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy, sampling_for
from leyden.core.gateway.chat import request as chat_request
from leyden.core.gateway.codec import Forced, Message, ToolDefinition
from leyden.core.gateway.completions import request as completions_request
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.model_request import SamplingFields, checked_sampling
from leyden.core.gateway.parameter_notes import NOTES
from leyden.core.gateway.parameters import DIALECTS, KEPT_IN_TRAINING, OVERRIDDEN, Effect, parameters, table
from leyden.core.gateway.responses import request as responses_request
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine

PAGE = Path(__file__).parents[4] / "docs" / "wire.md"
USER = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {"type": "object", "properties": {"town": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": WEATHER}
SCHEMA = {"type": "json_schema", "name": "n", "schema": WEATHER}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Delft"}}\n</tool_call>'
TWO_CALLS = f"{CALL}\n{CALL}"

PATHS = {
    "chat": "chat/completions",
    "completions": "completions",
    "responses": "responses",
    "messages": "messages",
}
MINIMAL: Mapping[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": USER},
    "completions": {"model": "m", "prompt": "hi", "max_tokens": 200},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 2000, "messages": USER},
}
TOOLS: Mapping[str, dict[str, Any]] = {
    "chat": {"tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"tools": [{"type": "function", **FUNCTION}]},
    "messages": {"tools": [{"name": "weather", "input_schema": WEATHER}]},
}
THINKING = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "a"}],
    },
    {"role": "user", "content": "and"},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "b"}],
    },
    {"role": "user", "content": "now"},
]
VALUES: Mapping[str, Any] = {
    "best_of": 2,
    "chat_template_kwargs": {"enable_thinking": False},
    "context_management": [{"type": "compaction"}],
    "context_management.edits": [{"type": "clear_thinking_20251015"}],
    "echo": True,
    "fallbacks": [{"model": "other"}],
    "frequency_penalty": 0.5,
    "functions": [FUNCTION],
    "guided_choice": ["yes", "no"],
    "guided_grammar": "start: /a/",
    "guided_json": WEATHER,
    "guided_regex": "[ab]",
    "include": ["message.output_text.logprobs"],
    "input": "other words",
    "instructions": "Be brief.",
    "logit_bias": {"7": 5},
    "max_completion_tokens": 3,
    "max_output_tokens": 16,
    "max_tokens": 3,
    "max_tool_calls": 1,
    "mcp_servers": [{"type": "url", "url": "https://elsewhere.invalid", "name": "n"}],
    "messages": [{"role": "user", "content": "other words"}],
    "metadata": {"a": "b"},
    "min_p": 0.1,
    "modalities": ["text", "audio"],
    "model": "another",
    "n": 2,
    "output_config.effort": "low",
    "output_config.format": {"type": "json_schema", "schema": WEATHER},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "previous_response_id": "resp_nowhere",
    "prompt": "other words",
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "repetition_penalty": 1.5,
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    "return_token_ids": True,
    "seed": 7,
    "stop": ["hell"],
    "stop_sequences": ["hell"],
    "stop_token_ids": [7],
    "store": False,
    "stream": True,
    "stream_options.include_obfuscation": True,
    "stream_options.include_usage": True,
    "structured_outputs": {"json": WEATHER},
    "system": "Be brief.",
    "temperature": 0.5,
    "text.format": SCHEMA,
    "text.verbosity": "low",
    "thinking.budget_tokens": 1024,
    "thinking.display": "omitted",
    "thinking.type": "disabled",
    "tool_choice": "required",
    "tool_choice.disable_parallel_tool_use": True,
    "tool_choice.name": "weather",
    "tool_choice.type": "any",
    "top_k": 5,
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncation": "auto",
}
"""Values that have an effect if a field has any; other fields get a text."""
OTHER_VALUES: Mapping[tuple[str, str], Any] = {
    ("chat", "logprobs"): True,
    ("completions", "logprobs"): 2,
    ("chat", "stream_options.include_obfuscation"): False,
    ("responses", "stream_options.include_obfuscation"): False,
}
BESIDE: Mapping[str, dict[str, Any]] = {
    "stream_options.include_usage": {"stream": True, "stream_options": {}},
    "stream_options.include_obfuscation": {"stream": True, "stream_options": {}},
    "thinking.budget_tokens": {"thinking": {"type": "enabled"}},
    "thinking.display": {"thinking": {"type": "enabled"}},
    "tool_choice.disable_parallel_tool_use": {"tool_choice": {"type": "auto"}},
    "tool_choice.name": {"tool_choice": {"type": "tool", "name": "other"}},
    "context_management.edits": {"messages": THINKING},
}
"""Fields that a request needs beside a field, with and without it."""


class VisibleCodec(ByteCodec):
    """A codec whose prompts contain the reasoning and the variables, as some chat templates do."""

    def encode(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        forced: Forced | None = None,
        *,
        formatted: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        reasoning = [message.get("reasoning_content") for message in messages]
        return [*json.dumps([reasoning, variables]).encode(), *super().encode(messages, tools, forced)]


class Seen:
    """What became of one request: the status, the body, and what the engine was asked."""

    def __init__(self, answer: httpx.Response, asked: list[GenerateRequest]) -> None:
        self.status = answer.status_code
        self.text = _without_ids(answer.text)
        self.asked = [(one.prompt_ids, one.sampling, one.stop_ids, one.top_logprobs) for one in asked]
        self.sampling = [one.sampling for one in asked]


def _without_ids(text: str) -> str:
    """The text of an answer without what differs between two equal requests."""
    text = re.sub(r'"(created|created_at|completed_at)":\d+', "", text)
    text = re.sub(r"(chatcmpl-|cmpl-|resp_|msg_|call_|toolu_|req_|fc_)[\w-]+", "", text)
    return re.sub(r'"obfuscation":"[^"]*"', '"obfuscation":""', text)


async def send(dialect: str, fields: Mapping[str, Any], mode: RolloutMode | None = None) -> Seen:
    codec, key, store = VisibleCodec(), new_key(), MemoryStore()
    text = TWO_CALLS if "tools" in fields else "hello"
    if "thinking" in fields:
        text = f"<think>\nHm.\n</think>\n\n{text}"
    engine = ScriptedEngine(
        lambda _: ScriptedAnswer(ids=codec.answer(text), chunk_size=3),
        model=ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY),
    )
    server = GatewayServer(Gateway(store, ServedPolicy(name="policy", engine=engine, codec=codec), key).app)
    rollout = await store.start_rollout("a task", mode=mode)
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        async with httpx.AsyncClient() as client:
            url = f"{await server.start()}/a/{token}/v1/{PATHS[dialect]}"
            return Seen(await client.post(url, json=fields), engine.requests)
    finally:
        await server.stop()
        await engine.close()
        await store.close()


def requests_of(dialect: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request without the field, and the same request with it."""
    without: dict[str, Any] = {**MINIMAL[dialect], **BESIDE.get(name, {})}
    if "tool" in name and name != "tools":
        without |= TOOLS[dialect]
    if name == "tool_choice.name":
        without["tools"] = [*without["tools"], {"name": "other", "input_schema": WEATHER}]
    if (dialect, name) == ("chat", "top_logprobs"):
        without["logprobs"] = True
    value = TOOLS[dialect]["tools"] if name == "tools" else VALUES.get(name, "x")
    value = OTHER_VALUES.get((dialect, name), value)
    field, _, part = name.partition(".")
    return without, {**without, field: {**without.get(field, {}), part: value} if part else value}


ROWS = [(dialect, name, effect) for name, effects in parameters().items() for dialect, effect in effects.items()]


@pytest.mark.integration
@pytest.mark.parametrize(("dialect", "name", "effect"), ROWS, ids=[f"{d}-{n}" for d, n, _ in ROWS])
async def test_a_field_does_what_its_row_says(dialect: str, name: str, effect: Effect) -> None:
    without, given = requests_of(dialect, name)
    before, after = await send(dialect, without), await send(dialect, given)
    assert before.status == 200, before.text
    if effect is Effect.REFUSED:
        error = json.loads(after.text)["error"]
        assert (after.status, error["type"]) == (400, "invalid_request_error")
        assert name in error["message"]
        return
    if name == "previous_response_id":
        assert json.loads(after.text)["error"]["code"] == "previous_response_not_found"
        return
    assert after.status == 200, after.text
    changed = before.asked != after.asked
    if effect is Effect.RECORDED:
        assert not changed
        assert dialect == "responses" or after.text == before.text
    elif effect is Effect.HONOURED:
        assert changed or after.text != before.text
    else:
        assert before.sampling != after.sampling
        trained = await send(dialect, without, "train"), await send(dialect, given, "train")
        assert trained[0].sampling == trained[1].sampling


@pytest.mark.integration
@pytest.mark.parametrize("name", ["audio", "background", "mcp_servers"])
async def test_a_refusal_says_what_to_do_instead(name: str) -> None:
    [dialect] = parameters()[name]
    answer = await send(dialect, requests_of(dialect, name)[1])
    assert NOTES[name] in json.loads(answer.text)["error"]["message"]


def test_every_field_that_is_accepted_is_in_the_table() -> None:
    known = {
        "chat": chat_request.KNOWN,
        "completions": completions_request.KNOWN,
        "responses": responses_request.KNOWN,
        "messages": messages_request.KNOWN,
    }
    assert known.keys() == DIALECTS.keys()
    for dialect, names in known.items():
        rows = {name.partition(".")[0] for name, effects in parameters().items() if dialect in effects}
        assert rows == names


def test_fields_without_an_effect_have_a_reason() -> None:
    explained = {name for _, name, effect in ROWS if effect in (Effect.RECORDED, Effect.REFUSED)}
    assert explained <= NOTES.keys() <= parameters().keys()


async def test_training_overrides_exactly_the_fields_of_the_table() -> None:
    fields = SamplingFields(
        temperature=0.3,
        top_p=0.4,
        seed=1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias={"1": 1},
        top_k=3,
        min_p=0.2,
        repetition_penalty=1.2,
        stop_token_ids=[4],
    )
    asked = checked_sampling(fields, ("max_tokens", 9))
    rollout = await MemoryStore().start_rollout("a task", mode="train")
    used = sampling_for(rollout, asked, Sampling())
    kept = {name for name in Sampling.__struct_fields__ if getattr(used, name) == getattr(asked, name)}
    assert not OVERRIDDEN & kept
    assert {"max_tokens", "stop_ids"} <= kept
    assert set(SamplingFields.__struct_fields__) == OVERRIDDEN | KEPT_IN_TRAINING


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text(), "run `make tables`"
