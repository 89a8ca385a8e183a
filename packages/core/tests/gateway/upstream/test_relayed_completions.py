"""Completions that an endpoint answers in the policy's place: sent on, passed back unchanged, and recorded."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.memory import MemoryStore

pytestmark = pytest.mark.integration

LOGPROBS = {"tokens": [" w", "orld"], "token_logprobs": [-0.5, -0.25], "top_logprobs": None, "text_offset": [5, 7]}
CHOICE = {"index": 0, "text": " world", "finish_reason": "stop", "logprobs": LOGPROBS}
USAGE = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}


def whole(*choices: dict[str, Any]) -> dict[str, Any]:
    head = {"id": "cmpl-theirs", "object": "text_completion", "created": 1, "model": "theirs"}
    return {**head, "choices": list(choices), "usage": USAGE}


class Provider:
    """A stand-in for an endpoint; `ids` has it send token ids as vLLM does, `refuses` has it refuse that field."""

    def __init__(self, *choices: dict[str, Any], ids: bool = False, refuses: bool = False) -> None:
        self.choices, self.ids, self.refuses = choices or (CHOICE,), ids, refuses
        self.seen: list[tuple[str, dict[str, Any], str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = json.loads(await read_body(scope, receive, BodyLimits()))
        self.seen.append((scope["path"], body, dict(scope["headers"])[b"authorization"].decode()))
        wanted = body.pop("return_token_ids", False)
        status, kind, data = 200, b"application/json", json.dumps(whole(*self._choices(wanted))).encode()
        if self.refuses and wanted:
            status = 400
            data = b'{"error":{"message":"Unrecognized request argument supplied: return_token_ids"}}'
        elif body.get("stream"):
            kind = b"text/event-stream"
            pieces = [whole(one) for choice in self._choices(wanted) for one in _halves(choice)]
            data = b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces) + b"data: [DONE]\n\n"
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": data})

    def _choices(self, wanted: bool) -> list[dict[str, Any]]:
        ids = {"prompt_token_ids": [7, 8], "token_ids": [9, 10]} if wanted and self.ids else {}
        return [{**choice, **ids} for choice in self.choices]


def _halves(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """A choice in two events, each with a token."""
    first, second = ({**choice, "text": text, "finish_reason": None} for text in (" w", "orld"))
    for n, half in enumerate((first, second)):
        half["logprobs"] = {name: values and [values[n]] for name, values in LOGPROBS.items()}
        if "token_ids" in half:
            half["token_ids"] = [choice["token_ids"][n]]
    return [first, {**second, "finish_reason": "stop"}]


@asynccontextmanager
async def relayed(provider: Provider) -> AsyncGenerator[tuple[openai.AsyncOpenAI, list[Span]]]:
    """A client of the gateway, and the spans after the block."""
    store, key, spans = MemoryStore(), new_key(), list[Span]()
    there = GatewayServer(provider)
    upstream = Upstream(f"{await there.start()}/v1", "sk-configured")
    server = GatewayServer(Gateway(store, upstream, key).app)
    url = await server.start()
    rollout = await store.start_rollout("task")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        async with openai.AsyncOpenAI(base_url=f"{url}/a/{token}/v1", api_key=token, max_retries=0) as agent:
            yield agent, spans
        spans += (await store.query_spans(rollout.rollout_id)).items
    finally:
        await server.stop()
        await there.stop()


async def text_of(agent: openai.AsyncOpenAI, *, stream: bool, **fields: Any) -> str:
    answer: Any = await agent.completions.create(model="m", stream=stream, **fields)
    choices = [choice async for event in answer for choice in event.choices] if stream else answer.choices
    assert all(getattr(choice, "token_ids", None) is None for choice in choices), "the agent gets no token ids"
    return "".join(choice.text for choice in choices)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ids", [False, True])
async def test_a_call_is_relayed_and_recorded(stream: bool, ids: bool) -> None:
    provider = Provider(ids=ids)
    async with relayed(provider) as (agent, spans):
        assert await text_of(agent, stream=stream, prompt="Hello", max_tokens=3, logprobs=0) == " world"
    [(path, body, key)] = provider.seen
    [span] = spans
    assert (path, body["prompt"], body["max_tokens"], key) == ("/v1/completions", "Hello", 3, "Bearer sk-configured")
    attributes = span.attributes
    assert json.loads(str(attributes[semconv.INPUT_MESSAGES])) == [{"role": "user", "content": "Hello"}]
    assert json.loads(str(attributes[semconv.OUTPUT_MESSAGES])) == [{"role": "assistant", "content": " world"}]
    assert attributes[semconv.FINISH_REASONS] == ["stop"]
    assert attributes[semconv.DIALECT] == "completions"
    assert attributes[semconv.NOT_TRAINED] == "answered by an upstream"
    assert attributes[semconv.RESPONSE_ID] == "cmpl-theirs"
    assert (attributes[semconv.INPUT_TOKENS], attributes[semconv.OUTPUT_TOKENS]) == (2, 2)
    assert json.loads(str(attributes[semconv.SAMPLING_ASKED])) == {"max_tokens": 3, "logprobs": 0}
    assert (semconv.PROMPT_IDS in attributes) == ids
    if ids:
        packed = [attributes[key] for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.RESPONSE_LOGPROBS)]
        assert all(isinstance(one, bytes) for one in packed)
        prompt, response, logprobs = (one for one in packed if isinstance(one, bytes))
        assert (unpack_ids(prompt).tolist(), unpack_ids(response).tolist()) == ([7, 8], [9, 10])
        assert unpack_log_probs(logprobs).tolist() == [-0.5, -0.25]


async def test_an_endpoint_that_knows_no_token_ids_is_asked_once() -> None:
    provider = Provider(refuses=True)
    async with relayed(provider) as (agent, spans):
        for _ in range(2):
            assert await text_of(agent, stream=False, prompt=[1, 2]) == " world"
    assert len(provider.seen) == 3
    recorded: Any = json.loads(str(spans[0].attributes[semconv.INPUT_MESSAGES]))
    assert recorded == [{"role": "user", "content": [{"type": "token_ids", "token_ids": [1, 2]}]}]


async def test_several_prompts_are_one_record_of_an_endpoint() -> None:
    provider = Provider(CHOICE, {**CHOICE, "index": 1, "text": " moon"}, ids=True)
    async with relayed(provider) as (agent, spans):
        assert await text_of(agent, stream=False, prompt=["a", "b"]) == " world moon"
    [span] = spans
    assert [one["content"] for one in json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))] == [" world", " moon"]
    assert semconv.PROMPT_IDS not in span.attributes
