"""Dry runs: calls forwarded to an OpenAI-compatible endpoint, seen from both sides."""

import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.identity import mint, new_key
from leyden.core.data.span import Span
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.http.asgi import send_json
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.upstream.answer_view import AnswerView, read_answer
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.gateway.upstream.token_ids import TokenIdFilter, without_ids
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.servers.vllm_double import CONTEXT, VOCAB, VllmDouble

USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ANSWER = {
    "id": "gen-1",
    "object": "chat.completion",
    "created": 1,
    "model": "real-model",
    "provider": "a field of its own",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [CALL]}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
}
DELTAS: list[dict[str, Any]] = [
    {"model": "real-model", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hel"}}]},
    {"model": "real-model", "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "length"}]},
    {"model": "real-model", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
]
EVENTS = b"".join(b"data: " + json.dumps(delta).encode() + b"\n\n" for delta in DELTAS) + b"data: [DONE]\n\n"


class Provider:
    """A stand-in for another endpoint: it sends prepared answers, and keeps the requests."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.status, self.content_type, self.body = 200, b"application/json", json.dumps(ANSWER).encode()
        self.unknown: str | None = None
        """A field that it refuses, as OpenAI does any that it does not know."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.seen.append((headers, json.loads(await read_body(scope, receive, BodyLimits()))))
        if self.unknown in self.seen[-1][1]:
            message = f"Unrecognized request argument supplied: {self.unknown}"
            return await send_json(send, 400, json.dumps({"error": {"message": message}}).encode())
        if self.status != 200:
            return await send_json(send, self.status, self.body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.content_type)]})
        for n in range(0, len(self.body), 50):
            await send({"type": "http.response.body", "body": self.body[n : n + 50], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Dev:
    """A gateway in front of `provider`, with one open attempt."""

    def __init__(self, url: str, provider: Provider, store: MemoryStore, rollout_id: str, token: str) -> None:
        self.provider, self._store, self._rollout_id = provider, store, rollout_id
        self.base_url = f"{url}/a/{token}/v1"

    async def post(self, **fields: Any) -> httpx.Response:
        async with httpx.AsyncClient(headers={"authorization": "Bearer sk-the-agents"}) as http:
            body = {"model": "gpt-4o", "messages": USER, **fields}
            return await http.post(f"{self.base_url}/chat/completions", json=body)

    async def spans(self) -> list[Span]:
        return (await self._store.query_spans(self._rollout_id)).items


@asynccontextmanager
async def dev(base_url: str | None = None, model: str = "real-model") -> AsyncGenerator[Dev]:
    provider, store, key = Provider(), MemoryStore(), new_key()
    endpoint = GatewayServer(provider)
    there = await endpoint.start()
    server = GatewayServer(Gateway(store, Upstream(base_url or f"{there}/v1/", "sk-configured", model), key).app)
    here = await server.start()
    rollout = await store.start_rollout("task")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        yield Dev(here, provider, store, rollout.rollout_id, token)
    finally:
        await server.stop()
        await endpoint.stop()


async def test_a_call_is_forwarded_with_our_key_and_model_and_answered_unchanged() -> None:
    async with dev() as run:
        response = await run.post(temperature=0, top_k=5)
        [(headers, body)] = run.provider.seen
        [span] = await run.spans()
    assert body == {
        "model": "real-model",
        "messages": USER,
        "temperature": 0,
        "top_k": 5,
        "return_token_ids": True,
    }
    assert headers["authorization"] == "Bearer sk-configured"
    assert not any(name.startswith(semconv.HEADER_PREFIX) for name in headers)
    assert response.content == run.provider.body
    assert span.attributes[semconv.NOT_TRAINED] == "answered by an upstream"
    assert span.attributes[semconv.REQUEST_MODEL] == "gpt-4o"
    assert span.attributes[semconv.RESPONSE_MODEL] == "real-model"
    assert (span.attributes[semconv.INPUT_TOKENS], span.attributes[semconv.OUTPUT_TOKENS]) == (5, 7)
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) == USER
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["tool_calls"] == [CALL]
    assert json.loads(str(span.attributes[semconv.SAMPLING_ASKED])) == {"temperature": 0, "top_k": 5}
    assert semconv.PROMPT_IDS not in span.attributes
    assert span.attributes[semconv.CALL_ID]
    assert span.attributes[semconv.RESPONSE_ID] == "gen-1"


async def test_images_are_passed_on_unchanged_also_where_the_server_has_to_fetch_them() -> None:
    urls = ("https://example.com/a.png", "data:image/png;base64,AAAA")
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls]
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}, *parts]}]
    async with dev() as run:
        response = await run.post(messages=messages)
        [(_, body)] = run.provider.seen
        [span] = await run.spans()
    assert response.content == run.provider.body
    assert body["messages"] == messages
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) == messages


async def test_a_stream_passes_byte_for_byte() -> None:
    async with dev() as run:
        run.provider.content_type, run.provider.body = b"text/event-stream", EVENTS
        response = await run.post(stream=True)
        [span] = await run.spans()
    assert response.content == EVENTS
    assert response.headers["content-type"] == "text/event-stream"
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES])) == [{"role": "assistant", "content": "Hello"}]
    assert span.attributes[semconv.FINISH_REASONS] == ["length"]
    assert span.attributes[semconv.OUTPUT_TOKENS] == 2


async def test_the_providers_own_errors_reach_the_agent_unchanged() -> None:
    async with dev() as run:
        run.provider.status = 429
        run.provider.body = (
            b'{"error":{"message":"slow down","type":"tokens","param":null,"code":"rate_limit_exceeded"}}'
        )
        async with openai.AsyncOpenAI(base_url=run.base_url, api_key="x", max_retries=0) as agent:
            with pytest.raises(openai.RateLimitError, match="slow down"):
                await agent.chat.completions.create(model="m", messages=USER)
        [span] = await run.spans()
    assert (span.status.code, span.attributes[semconv.ERROR_TYPE]) == ("error", "429")


async def test_an_endpoint_out_of_reach_is_a_bad_gateway() -> None:
    async with dev("http://127.0.0.1:9/v1") as run:
        response = await run.post()
        [span] = await run.spans()
    assert response.status_code == 502
    assert "could not be reached" in response.json()["error"]["message"]
    assert span.status.code == "error"


async def test_redirects_are_not_followed() -> None:
    async with dev() as run:
        run.provider.status = 307
        assert (await run.post()).status_code == 502
        assert len(run.provider.seen) == 1


async def test_a_body_that_is_no_json_is_refused_here() -> None:
    async with dev() as run, httpx.AsyncClient() as http:
        response = await http.post(f"{run.base_url}/chat/completions", content=b"not json")
        assert response.status_code == 400
        assert run.provider.seen == []


def test_the_key_is_not_shown() -> None:
    assert "sk-secret" not in repr(Upstream("https://host/v1", "sk-secret", "m"))


def test_streamed_tool_calls_are_put_together_by_their_index() -> None:
    def delta(**fields: Any) -> bytes:
        return b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": fields}]}) + b"\n\n"

    def part(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
        return {"index": index, **fields, "function": {"arguments": arguments}}

    body = (
        delta(role="assistant", content=None, tool_calls=[part(0, "", id="a", type="function")])
        + delta(tool_calls=[part(0, '{"x"')])
        + delta(tool_calls=[part(1, "{}", id="b", type="function")])
        + delta(tool_calls=[part(0, ": 1}")])
    )
    [message] = json.loads(read_answer(body, streamed=True).output or "")
    assert [(call["id"], call["function"]["arguments"]) for call in message["tool_calls"]] == [
        ("a", '{"x": 1}'),
        ("b", "{}"),
    ]


@pytest.mark.parametrize("body", [b"", b"data: {", b"\xff\xfe", b'{"choices": 3}', b"[]"])
def test_an_answer_that_cannot_be_read_is_recorded_as_unknown(body: bytes) -> None:
    assert read_answer(body, streamed=False) == read_answer(body, streamed=True) == AnswerView()


# --- Models


async def test_without_a_model_the_agents_own_names_are_sent_on(caplog: pytest.LogCaptureFixture) -> None:
    async with dev(model="") as run:
        for model in ("gpt-4.1", "gpt-4.1-mini"):
            assert (await run.post(model=model)).status_code == 200
        nameless = await run.post(model="")
        asked = [body["model"] for _, body in run.provider.seen]
    assert asked == ["gpt-4.1", "gpt-4.1-mini"]
    assert nameless.status_code == 400
    assert (
        "the request names no model: give its name at the endpoint, as --model" in nameless.json()["error"]["message"]
    )
    assert not [record for record in caplog.records if record.name == "leyden.gateway"]


async def test_a_model_that_answers_for_others_is_said_once_for_each(caplog: pytest.LogCaptureFixture) -> None:
    async with dev() as run:
        for model in ("gpt-4.1", "gpt-4.1-mini", "gpt-4.1", "real-model"):
            await run.post(model=model)
        assert {body["model"] for _, body in run.provider.seen} == {"real-model"}
    output = [record.getMessage() for record in caplog.records if record.name == "leyden.gateway"]
    assert [line.partition(",")[0] for line in output] == [
        "The agent requests the model 'gpt-4.1'; 'real-model' answers instead",
        "The agent requests the model 'gpt-4.1-mini'; 'real-model' answers instead",
    ]


async def test_the_endpoints_own_models_are_listed_where_any_may_be_asked_for() -> None:
    double = VllmDouble()
    url = await double.start()
    async with dev(f"{url}/v1", model="") as run, httpx.AsyncClient() as http:
        listed = (await http.get(f"{run.base_url}/models")).json()
        one = (await http.get(f"{run.base_url}/models/whichever")).json()
    await double.stop()
    assert [model["max_model_len"] for model in listed["data"]] == [CONTEXT]
    assert one["id"] == "whichever"
    async with dev("http://127.0.0.1:9/v1", model="") as run, httpx.AsyncClient() as http:
        assert (await http.get(f"{run.base_url}/models")).json()["data"][0]["id"] == "endpoint"


# --- Token ids


@pytest.fixture
async def double() -> AsyncIterator[VllmDouble]:
    """A server that has token ids for whoever asks."""
    double = VllmDouble()
    await double.start()
    yield double
    await double.stop()


def events_of(response: httpx.Response) -> list[Any]:
    """The events of a stream, decoded."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_recorded_where_the_server_has_them_and_the_agent_sees_none(
    stream: bool, double: VllmDouble
) -> None:
    question = {"messages": USER, "max_tokens": 5, "stream": stream}
    async with dev(f"{double.url}/v1", model="") as run, httpx.AsyncClient() as http:
        direct = await http.post(f"{double.url}/v1/chat/completions", json={"model": "gpt-4o", **question})
        given = await run.post(**question)
        [span] = await run.spans()
    if stream:
        assert events_of(given) == events_of(direct)
    else:
        assert given.json() == direct.json()
    prompt, ids = (
        unpack_ids(cast("bytes", span.attributes[name])) for name in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS)
    )
    assert list(prompt) == [ord("h") % VOCAB, ord("i") % VOCAB]
    output = json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"]
    assert "".join(f" {i}" for i in ids) == output
    assert len(ids) == 5
    assert span.attributes[semconv.RESPONSE_ID] == f"chatcmpl-{zlib.crc32(bytes(list(prompt))):08x}"
    assert (span.attributes[semconv.INPUT_TOKENS], span.attributes[semconv.OUTPUT_TOKENS]) == (2, 5)
    assert span.attributes[semconv.NOT_TRAINED] == "answered by an upstream"
    assert not {semconv.RESPONSE_LOGPROBS, semconv.SAMPLING_LOGPROBS, semconv.SAMPLING_USED} & set(span.attributes)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_asks_itself_gets_ids_and_its_logprobs_are_recorded(
    stream: bool, double: VllmDouble
) -> None:
    async with dev(f"{double.url}/v1", model="") as run:
        given = await run.post(return_token_ids=True, logprobs=True, max_tokens=3, stream=stream)
        [span] = await run.spans()
    assert '"prompt_token_ids": [' in given.text
    logprobs = unpack_log_probs(cast("bytes", span.attributes[semconv.RESPONSE_LOGPROBS]))
    ids = unpack_ids(cast("bytes", span.attributes[semconv.RESPONSE_IDS]))
    last = [ord("i") % VOCAB, *ids]
    assert list(logprobs) == pytest.approx([double.logprobs(a)[b] for a, b in pairwise(last)])


async def test_a_server_that_refuses_the_parameter_is_asked_without_it_and_remembered() -> None:
    async with dev() as run:
        run.provider.unknown = "return_token_ids"
        for _ in range(3):
            assert (await run.post()).content == run.provider.body
        asked = ["return_token_ids" in body for _, body in run.provider.seen]
        assert len(await run.spans()) == 3
    assert asked == [True, False, False, False]


async def test_another_refusal_does_not_end_the_asking() -> None:
    async with dev() as run:
        run.provider.unknown = "top_k"
        refused = await run.post(top_k=5)
        assert (await run.post()).status_code == 200
        asked = ["return_token_ids" in body for _, body in run.provider.seen]
    assert refused.status_code == 400
    assert "top_k" in refused.json()["error"]["message"]
    assert asked == [True, False, True]


@given(cuts=st.lists(st.integers(0, len(EVENTS)), max_size=8), with_ids=st.booleans())
def test_a_stream_loses_its_ids_and_nothing_else_however_it_is_cut(cuts: list[int], with_ids: bool) -> None:
    events = EVENTS.replace(b'"delta"', b'"token_ids": [1, 2], "delta"') if with_ids else EVENTS
    kept, positions = TokenIdFilter(), [0, *sorted(cuts), len(events)]
    out = b"".join(kept.push(events[a:b]) for a, b in pairwise(positions)) + kept.rest()
    expected = EVENTS.replace(b'"delta"', b'"token_ids": null, "delta"') if with_ids else EVENTS
    assert read_answer(out, streamed=True) == read_answer(expected, streamed=True)
    assert b"[1" not in out
    assert with_ids or out == EVENTS


def test_what_is_no_json_passes_as_it_is() -> None:
    for body in (b'{"token_ids": ', b'"token_ids"', b'{"choices": 3, "token_ids": []}'):
        assert without_ids(body) == body
