"""Formats and sampling parameters of requests: any value is honoured or refused, and hostile ones block nothing."""

import json
import threading
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data.sampling import recorded_sampling
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.engine.request_validation import check_request
from leyden.core.errors import GrammarError
from leyden.core.gateway.answer_format import check_format
from leyden.core.gateway.chat.request import parse_chat
from leyden.core.gateway.model_request import ModelRequest
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.responses.request import checked_request, read_draft
from leyden.core.grammar import rules
from leyden.core.grammar.compiler import check_grammar
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import scripted_gateway

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
MODEL = ModelInfo(name="m", context_length=64, vocab_size=2**31)

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(
        ["json_schema", "json_object", "text", "#", "#/$defs/a", "object", "string", "start: /a/", "(", "a/b"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "json_schema",
                    "name",
                    "schema",
                    "strict",
                    "properties",
                    "$ref",
                    "$defs",
                    "enum",
                    "anyOf",
                    "a",
                    "items",
                    "pattern",
                    "required",
                    "json",
                    "regex",
                    "choice",
                    "grammar",
                    "json_object",
                    "7",
                    "-1",
                    "99999999999",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def named(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


def flat(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "name": "n", "schema": schema}


FORMATS: st.SearchStrategy[Any] = st.one_of(
    JSON,
    JSON.map(named),
    JSON.map(flat),
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "structured_outputs",
            "logit_bias",
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "stop_token_ids",
            "chat_template_kwargs",
            "reasoning_effort",
            "return_token_ids",
        ]
    ),
    JSON | st.floats(-3, 3) | st.dictionaries(st.integers(-1, 99).map(str), st.floats(-101, 101), max_size=3),
    max_size=3,
)


def is_usable(request: ModelRequest) -> bool:
    """An accepted request can be sampled, or is refused once its format is read."""
    check_request(GenerateRequest(request_id="r", prompt_ids=[1], sampling=request.sampling), MODEL)
    assert recorded_sampling(request.sampling.recorded()) == request.sampling
    if request.answer_format is None:
        return True
    try:
        check_format(request.answer_format)
    except Refusal as refusal:
        assert refusal.status == 400
        assert refusal.body.param == request.answer_format.field
        return False
    return bool(ByteCodec().grammar([], None, request.answer_format))


@given(fields=FIELDS, response_format=st.just({"type": "text"}) | FORMATS)
def test_a_chat_request_is_read_or_refused(fields: dict[str, Any], response_format: Any) -> None:
    body = {"model": "m", "messages": [USER], "response_format": response_format, **fields}
    try:
        request = parse_chat(json.dumps(body).encode())
    except Refusal as refusal:
        assert refusal.status == 400
    else:
        is_usable(request)


@given(
    form=FORMATS, fields=st.dictionaries(st.sampled_from(["top_p", "top_logprobs", "temperature"]), JSON, max_size=1)
)
def test_a_responses_request_is_read_or_refused(form: Any, fields: dict[str, Any]) -> None:
    body = {"model": "m", "input": "hi", "text": {"format": form}, **fields}
    try:
        draft = read_draft(json.dumps(body).encode())
        request = checked_request(draft, draft.items, [])
    except Refusal as refusal:
        assert refusal.status == 400
    else:
        is_usable(request)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "json"),
        ({"guided_json": SCHEMA}, "json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json"),
        ({"structured_outputs": {"regex": "a|b"}}, "regex"),
        ({"guided_choice": ["a", "b"]}, "choice"),
        ({"guided_grammar": "start: /a/"}, "grammar"),
    ],
)
def test_formats_that_are_honoured(fields: dict[str, Any], kind: str) -> None:
    request = parse_chat(json.dumps({"model": "m", "messages": [USER], **fields}).encode())

    assert request.answer_format is not None
    assert request.answer_format.kind == kind
    assert request.answer_format.field.startswith(next(iter(fields)))
    assert is_usable(request)


def deep(levels: int) -> bytes:
    return b'{"properties": {"a": ' * levels + b"{}" + b"}}" * levels


@pytest.mark.parametrize(
    "schema",
    [
        deep(150),
        deep(450),
        deep(5_000),
        json.dumps({"enum": ["x" * 10] * 20_000}).encode(),
        json.dumps({"description": "x" * (16 << 20)}).encode(),
        b'{"type": "string", "pattern": "((("}',
    ],
    ids=["deep", "deeper", "deepest", "enum", "16 MiB", "pattern"],
)
def test_hostile_schemas_are_refused(schema: bytes) -> None:
    head = b'{"model": "m", "messages": [{"role": "user", "content": ""}], '
    for field in (
        b'"guided_json": %s}',
        b'"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": %s}}}',
    ):
        with pytest.raises(Refusal) as refused:
            request = parse_chat(head + field % schema)
            assert request.answer_format is not None
            check_format(request.answer_format)
        assert refused.value.status == 400
        assert len(str(refused.value)) < 700


@pytest.mark.integration
async def test_grammars_are_made_on_other_threads_than_the_event_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the request: the time for a grammar does not follow from it."""
    threads, original = list[threading.Thread](), check_grammar

    def checked(grammar: str) -> None:
        threads.append(threading.current_thread())
        original(grammar)

    monkeypatch.setattr(rules, "check_grammar", checked)
    body = {"model": "m", "messages": [USER], "guided_regex": "never (seen){1,3} before"}
    async with scripted_gateway(lambda _: ScriptedAnswer(ids=ByteCodec().answer("x"))) as gateway:
        attempt = await gateway.open_attempt()
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{attempt.base_url}/chat/completions", json=body)

    assert answer.status_code == 200
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.integration
async def test_a_format_that_no_grammar_can_express_is_refused_as_the_agents_mistake() -> None:
    async with scripted_gateway(lambda _: ScriptedAnswer(ids=ByteCodec().answer("x"))) as gateway:
        attempt = await gateway.open_attempt()
        async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="k", max_retries=0) as agent:
            with pytest.raises(openai.BadRequestError, match="no answer can be limited to this format") as refused:
                await agent.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "hi"}],
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "n", "schema": {"type": "no type"}},
                    },
                )
            answer = await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        (call, _) = await gateway.calls(attempt)

    assert refused.value.param == "response_format.json_schema"
    assert answer.choices[0].message.content == "x"
    assert call.status.code == "error"


def test_the_grammar_error_is_no_other_error() -> None:
    with pytest.raises(GrammarError):
        rules.AnswerFormat(kind="grammar", text="{").check()
