"""The Completions API as OpenAI's own client sees it: sync and async, plain and streamed, errors, retries, hang-ups."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import httpx
import openai
import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.identity import mint, new_key
from leyden.core.data.rollout import Attempt, EnqueueRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.errors import EngineError
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.seeds import CallSeeds
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import STOP, VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine, scripted_log_prob
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

CODEC = ByteCodec()
pytestmark = pytest.mark.integration


def numbered(request: GenerateRequest) -> ScriptedAnswer:
    """An answer that names its prompt, and its choice if there are several."""
    prompt, number = CODEC.decode(request.prompt_ids), request.request_id.rpartition("-")[2]
    text = f"<{prompt}>" if len(number) > 4 else f"<{prompt}>{number}"
    return ScriptedAnswer(ids=[*text.encode(), STOP], chunk_size=3)


def client(attempt: AttemptHandle, max_retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x", max_retries=max_retries)


def ids_of(span: Span, key: str) -> list[int]:
    packed = span.attributes[key]
    assert isinstance(packed, bytes)
    return unpack_ids(packed).tolist()


async def trajectory(gateway: ScriptedGateway, attempt: AttemptHandle) -> Trajectory:
    found = await gateway.store.find_attempt(attempt.rollout_id, attempt.attempt_id)
    assert found is not None
    rollout, own = found
    assert isinstance(rollout, Rollout)
    assert isinstance(own, Attempt)
    return assemble(rollout, own, await gateway.calls(attempt), Selector())


async def test_a_text_is_continued_without_the_chat_template_and_trained() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer = await agent.completions.create(model="m", prompt="Say this:", user="u")
        [span] = await gateway.calls(attempt)
        [call] = (await trajectory(gateway, attempt)).transitions
    assert (answer.object, answer.model, answer.id[:5]) == ("text_completion", "m", "cmpl-")
    [choice] = answer.choices
    assert (choice.index, choice.text, choice.logprobs, choice.finish_reason) == (0, "<Say this:>", None, "stop")
    assert answer.usage is not None
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 9,
        "completion_tokens": 12,
        "total_tokens": 21,
    }
    assert call.prompt_ids.tolist() == list(b"Say this:")
    assert call.response_ids.tolist() == [*b"<Say this:>", STOP]
    assert span.attributes[semconv.DIALECT] == "completions"
    assert span.attributes[semconv.OPERATION] == "text_completion"
    assert json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) == [{"role": "user", "content": "Say this:"}]
    assert json.loads(str(span.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "<Say this:>"
    assert json.loads(str(span.attributes[semconv.SAMPLING_ASKED])) == {"user": "u"}


def test_the_synchronous_client() -> None:
    async def serve() -> None:
        async with scripted_gateway(numbered) as gateway:
            attempt = await gateway.open_attempt()
            assert await asyncio.to_thread(call, attempt) == ["<a>", "<a>"]

    def call(attempt: AttemptHandle) -> list[str]:
        with openai.OpenAI(base_url=attempt.base_url, api_key="x") as agent:
            whole = agent.completions.create(model="m", prompt="a")
            with agent.completions.create(model="m", prompt="a", stream=True) as events:
                pieces = [choice.text for event in events for choice in event.choices]
        assert len(pieces) > 1
        return [whole.choices[0].text, "".join(pieces)]

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        (["one", "two"], [list(b"one"), list(b"two")]),
        (list(b"hi"), [list(b"hi")]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [[STOP]]),
        (None, [[STOP]]),
    ],
)
async def test_every_form_of_prompt(prompt: Any, ids: list[list[int]]) -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer = await agent.completions.create(model="m", prompt=prompt, n=2)
        spans = await gateway.calls(attempt)
        calls = await trajectory(gateway, attempt)
    assert [choice.index for choice in answer.choices] == list(range(2 * len(ids)))
    assert [ids_of(span, semconv.PROMPT_IDS) for span in spans] == [one for one in ids for _ in range(2)]
    assert [span.attributes[semconv.CHOICE_INDEX] for span in spans] == list(range(2 * len(ids)))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert {str(span.attributes[semconv.RESPONSE_ID]) for span in spans} == {answer.id}
    assert len(calls.transitions) + len(calls.untrained) == 2 * len(ids)


async def test_answers_to_several_prompts_are_all_trained_and_are_no_alternatives() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer = await agent.completions.create(model="m", prompt=["one", "two", "three"])
        calls = await trajectory(gateway, attempt)
        async with httpx.AsyncClient() as http:
            measures = (await http.get(f"{gateway.url}/metrics")).text
    assert [choice.text for choice in answer.choices] == ["<one>0", "<two>1", "<three>2"]
    assert [bytes(call.prompt_ids.tolist()) for call in calls.transitions] == [b"one", b"two", b"three"]
    assert calls.untrained == {}
    assert 'leyden_gateway_calls_total{dialect="completions",policy="policy",status="200"} 1.0' in measures
    assert 'leyden_gateway_tokens_total{kind="prompt",policy="policy"} 11.0' in measures


async def test_a_stream_of_several_prompts_ends_with_its_usage() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        texts, ends, usages = {0: "", 1: "", 2: "", 3: ""}, dict[int, Any](), list[Any]()
        async with client(attempt) as agent:
            events = await agent.completions.create(
                model="m", prompt=["a", "b"], n=2, echo=True, stream=True, stream_options={"include_usage": True}
            )
            async for event in events:
                assert event.object == "text_completion"
                usages.append(event.usage)
                for choice in event.choices:
                    texts[choice.index] += choice.text
                    ends |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    assert texts == {0: "a<a>0", 1: "a<a>1", 2: "b<b>2", 3: "b<b>3"}
    assert ends == dict.fromkeys(range(4), "stop")
    assert set(usages[:-1]) == {None}
    assert (usages[-1].prompt_tokens, usages[-1].completion_tokens) == (2, 20)


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tokens_stop_and_the_default_of_sixteen(stream: bool) -> None:
    async def text(agent: openai.AsyncOpenAI, **fields: Any) -> tuple[str, str | None]:
        answer: Any = await agent.completions.create(model="m", prompt="x" * 30, stream=stream, **fields)
        choices = [choice async for event in answer for choice in event.choices] if stream else answer.choices
        return "".join(choice.text for choice in choices), choices[-1].finish_reason

    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            assert await text(agent) == ("<" + "x" * 15, "length")
            assert await text(agent, max_tokens=3) == ("<xx", "length")
            assert await text(agent, max_tokens=100, stop=["x>", "?"]) == ("<" + "x" * 29, "stop")
            assert await text(agent, max_tokens=0) == ("", "length")
        spans = await gateway.calls(attempt)
        calls = await trajectory(gateway, attempt)
    assert len(gateway.engine.requests) == 3
    assert len(spans) == 4
    assert list(calls.untrained.values()) == ["empty response"]


async def test_logprobs_have_the_legacy_format() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt("val")
        async with client(attempt) as agent:
            [two] = (await agent.completions.create(model="m", prompt="héé", logprobs=2, max_tokens=4)).choices
            [none] = (await agent.completions.create(model="m", prompt="hi", logprobs=0, max_tokens=2)).choices
    assert two.logprobs is not None
    # "<hé" in bytes: the letter é has two tokens, and neither is a whole character
    assert two.logprobs.tokens == ["<", "h", "bytes:\\xc3", "bytes:\\xa9"]
    assert two.logprobs.text_offset == [3, 4, 5, 5]
    assert two.logprobs.token_logprobs == [
        scripted_log_prob(a, b) for a, b in [(0xA9, 60), (60, 104), (104, 0xC3), (0xC3, 0xA9)]
    ]
    likeliest: Any = two.logprobs.top_logprobs
    for shown, name, value in zip(likeliest, two.logprobs.tokens or (), two.logprobs.token_logprobs or (), strict=True):
        assert shown[name] == value
        assert 2 <= len(shown) <= 3
    assert none.logprobs is not None
    assert none.logprobs.top_logprobs == [
        {"<": scripted_log_prob(ord("i"), ord("<"))},
        {"h": scripted_log_prob(ord("<"), ord("h"))},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("prompt", ["hi é", list("hi é".encode())])
async def test_an_echo_has_the_logprobs_of_the_prompt(prompt: Any, max_tokens: int, stream: bool) -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer: Any = await agent.completions.create(
                model="m", prompt=prompt, echo=True, logprobs=0, max_tokens=max_tokens, stream=stream
            )
            choices = [choice async for event in answer for choice in event.choices] if stream else answer.choices
        [span] = await gateway.calls(attempt)
    shown = [choice.logprobs for choice in choices if choice.logprobs is not None]
    tokens, values, offsets = (
        [item for one in shown for item in getattr(one, name)] for name in ("tokens", "token_logprobs", "text_offset")
    )
    ids = [*"hi é".encode(), *b"<hi"][: 5 + max_tokens]
    assert "".join(choice.text for choice in choices) == "hi é" + "<hi"[:max_tokens]
    assert tokens == ["h", "i", " ", "bytes:\\xc3", "bytes:\\xa9", "<", "h", "i"][: len(ids)]
    assert values == [None, *(scripted_log_prob(a, b) for a, b in pairwise(ids))]
    assert offsets == [0, 1, 2, 3, 3, 4, 5, 6][: len(ids)]
    recorded = span.attributes[semconv.PROMPT_LOGPROBS]
    assert isinstance(recorded, bytes)
    assert unpack_log_probs(recorded).tolist() == values[1:5]
    assert ids_of(span, semconv.RESPONSE_IDS) == ids[5:]


async def test_the_likeliest_tokens_of_a_prompt_are_not_made_up() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            answer = await agent.completions.create(model="m", prompt="hi", echo=True, logprobs=3, max_tokens=1)
    assert answer.choices[0].logprobs is not None
    shown: Any = answer.choices[0].logprobs.top_logprobs
    assert (shown[:2], shown[2]["<"]) == ([None, None], scripted_log_prob(ord("i"), ord("<")))


REFUSED: list[tuple[dict[str, Any], str | None, str | None, str]] = [
    ({"suffix": "end"}, "suffix", "unsupported_parameter", "cannot fill a gap"),
    ({"best_of": 3}, "best_of", "unsupported_parameter", "must equal 'n'"),
    ({"n": 3, "best_of": 2}, "best_of", "invalid_value", "at least 'n'"),
    ({"logprobs": 6}, "logprobs", "integer_above_max_value", "<= 5"),
    ({"logprobs": -1}, "logprobs", "integer_below_min_value", ">= 0"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value", ">= 0"),
    ({"temperature": 3}, "temperature", "decimal_above_max_value", "<= 2"),
    ({"n": 129}, "n", "integer_above_max_value", "<= 128"),
    ({"prompt": ["x"] * 65, "n": 2}, "prompt", "invalid_value", "at most 128"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value", "only allowed when 'stream'"),
    ({"stop": [""]}, "stop", "invalid_value", "none of them empty"),
    ({"prompt": []}, "prompt", "invalid_value", "no array may be empty"),
    ({"prompt": [[]]}, "prompt", "invalid_value", "no array may be empty"),
    ({"prompt": ["x", 1]}, "prompt", "invalid_value", "array of token ids"),
    ({"prompt": [259]}, "prompt", "invalid_value", "259 is outside the vocabulary"),
    ({"prompt": [[0], [-1]]}, "prompt", "invalid_value", "-1 is outside the vocabulary"),
    ({"prompt": {"id": "pmpt_1"}}, None, "invalid_value", "got `object`"),
    ({"prompt": "x" * 300}, "prompt", "context_length_exceeded", "maximum context length is 256 tokens"),
    ({"prompt": "x" * 256}, "prompt", "context_length_exceeded", "256 tokens"),
    ({"prompt": ["x" * 200] * 30}, "prompt", "context_length_exceeded", "together"),
    ({"messages": []}, None, None, "Unrecognized request argument supplied: messages"),
]


@pytest.mark.parametrize(("fields", "param", "code", "words"), REFUSED)
async def test_what_cannot_be_answered_is_refused_in_the_providers_words(
    fields: dict[str, Any], param: str | None, code: str | None, words: str
) -> None:
    async with scripted_gateway(numbered, context_length=256) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            with pytest.raises(openai.BadRequestError, match="(?s)" + words.replace("?", r"\?")) as raised:
                await agent.post("/completions", body={"model": "m", "prompt": "x", **fields}, cast_to=object)
        calls = await trajectory(gateway, attempt)
    assert (raised.value.param, raised.value.code) == (param, code)
    assert gateway.engine.requests == []
    assert list(calls.untrained.values()) == ["refused"]


async def test_a_prompt_that_fills_the_context_is_scored_and_no_more() -> None:
    async with scripted_gateway(numbered, context_length=16) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            whole = await agent.completions.create(model="m", prompt="x" * 16, echo=True, logprobs=0, max_tokens=0)
            cut = await agent.completions.create(model="m", prompt="x" * 12, max_tokens=100)
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.token_logprobs or ()) == 16
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("<xxx", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_tries_again_gets_the_answer_that_was_recorded(stream: bool) -> None:
    body = {"model": "m", "prompt": ["ab", "c"], "n": 2, "echo": True, "logprobs": 2, "stream": stream}
    async with scripted_gateway(numbered) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        url = f"{attempt.base_url}/completions"
        first = await http.post(url, json=body)
        again = await http.post(url, json=body, headers={"x-stainless-retry-count": "1"})
        assert len(await gateway.calls(attempt)) == 4
    assert len(gateway.engine.requests) == 4
    if not stream:
        assert again.json() == first.json()
        return
    assert _contents(first.text) == _contents(again.text)


def _contents(events: str) -> dict[int, tuple[str, list[Any]]]:
    """The text and the log-probabilities of each choice of a stream, however it was cut into events."""
    found: dict[int, tuple[str, list[Any]]] = {}
    for line in events.split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            text, values = found.get(choice["index"], ("", []))
            more = [*zip(*choice["logprobs"].values(), strict=True)] if choice["logprobs"] else []
            found[choice["index"]] = text + choice["text"], [*values, *more]
    return found


async def test_the_clients_own_retry_is_one_call() -> None:
    calls: list[str] = []

    def failing_once(request: GenerateRequest) -> ScriptedAnswer | Exception:
        calls.append(request.request_id)
        return EngineError("busy") if len(calls) == 1 else numbered(request)

    async with scripted_gateway(failing_once) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt, max_retries=1) as agent:
            answer = await agent.completions.create(model="m", prompt="hi")
            with pytest.raises(openai.NotFoundError):
                await agent.with_options(default_headers={semconv.HEADER_POLICY: "other"}).completions.create(
                    model="m", prompt="hi"
                )
        recorded = await trajectory(gateway, attempt)
    assert answer.choices[0].text == "<hi>"
    assert (len(recorded.transitions), list(recorded.untrained.values())) == (1, ["engine error"])


async def test_an_engine_that_fails_in_a_stream_is_an_error_of_the_client() -> None:
    def failing(request: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=list(b"ab"), chunk_size=1, error=EngineError("lost"))

    async with scripted_gateway(failing) as gateway:
        attempt = await gateway.open_attempt()
        async with client(attempt) as agent:
            events = await agent.completions.create(model="m", prompt="hi", stream=True)
            with pytest.raises(openai.APIError, match="lost"):
                async for _ in events:
                    pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_aborts_its_call_which_is_not_trained(stream: bool) -> None:
    def held(request: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=list(b"abc"), chunk_size=1, held=True)

    async with scripted_gateway(held) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        body = {"model": "m", "prompt": ["hi", "ho"], "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"{attempt.base_url}/completions", json=body, timeout=httpx.Timeout(10, read=0.2))
        while len(await gateway.calls(attempt)) < 2:
            await asyncio.sleep(0.01)
        recorded = await trajectory(gateway, attempt)
        assert gateway.engine.in_flight == 0
    assert list(recorded.untrained.values()) == ["client disconnected"] * 2


async def test_a_seed_gives_every_prompt_the_same_and_every_choice_another() -> None:
    async with scripted_gateway(numbered) as gateway:
        attempt = await gateway.open_attempt("val")
        async with client(attempt) as agent:
            await agent.completions.create(model="m", prompt=["a", "b"], n=2, seed=5, temperature=0.5, top_p=0.9)
    asked = {request.request_id[-1]: request.sampling for request in gateway.engine.requests}
    assert [asked[number].seed for number in "0123"] == [5, 6, 5, 6]
    assert {(one.temperature, one.top_p, one.max_tokens) for one in asked.values()} == {(0.5, 0.9, 16)}


async def test_a_stream_is_padded_on_request() -> None:
    async with scripted_gateway(numbered) as gateway, httpx.AsyncClient() as http:
        attempt = await gateway.open_attempt()
        body = {"model": "m", "prompt": "hi", "stream": True}
        plain = await http.post(f"{attempt.base_url}/completions", json=body)
        padded = await http.post(
            f"{attempt.base_url}/completions", json=body | {"stream_options": {"include_obfuscation": True}}
        )
    assert "obfuscation" not in plain.text
    events = [json.loads(line[6:]) for line in padded.text.split("\n\n")[:-2]]
    assert all(event["obfuscation"] for event in events)


async def test_a_deterministic_run_gives_equal_prompts_of_one_request_seeds_of_their_own() -> None:
    async def seeds() -> list[int | None]:
        engine = ScriptedEngine(numbered, model=ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY))
        store, key = MemoryStore(), new_key()
        policy = ServedPolicy(name="policy", engine=engine, codec=CODEC, call_seeds=CallSeeds(4))
        server = GatewayServer(Gateway(store, policy, key).app)
        url = await server.start()
        await store.enqueue_many_rollouts([EnqueueRollout(input="a task", rollout_id="ro", mode="train")])
        claimed = await store.dequeue_rollout()
        assert claimed is not None
        token = mint(key, "ro", claimed.attempt.attempt_id)
        async with openai.AsyncOpenAI(base_url=f"{url}/a/{token}/v1", api_key="x", max_retries=0) as agent:
            answer = await agent.completions.create(model="m", prompt=["a", "b", "a"])
        await server.stop()
        assert [choice.text[:3] for choice in answer.choices] == ["<a>", "<b>", "<a>"]
        by_prompt = sorted(engine.requests, key=lambda request: request.request_id.rpartition("-")[2])
        return [request.sampling.seed for request in by_prompt]

    first = await seeds()
    assert first == await seeds()
    assert len(set(first)) == 3
