"""Requests of the Completions API: any JSON is either read as it is meant, or refused."""

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.gateway.chat.request import MAX_CHOICES
from leyden.core.gateway.completions.request import KNOWN, parse_completions, prompt_messages
from leyden.core.gateway.refusal import Refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
PROMPTS = st.one_of(
    st.text(),
    st.lists(st.text(), min_size=1, max_size=5),
    st.lists(st.integers(0, 300), min_size=1),
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=4), min_size=1, max_size=5),
)
FIELDS = st.dictionaries(st.sampled_from(sorted(KNOWN | {"messages", "best", ""})), JSON, max_size=6)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "x", **fields}).encode()


@given(FIELDS)
def test_any_fields_are_read_or_refused_with_a_reason(fields: dict[str, Any]) -> None:
    try:
        request = parse_completions(body(**fields))
    except Refusal as refusal:
        assert refusal.status == 400
        assert refusal.body.message
        return
    assert request.prompts
    assert 1 <= request.choices * len(request.prompts) <= MAX_CHOICES
    assert 0 <= request.top_logprobs <= 5
    assert request.sampling.max_tokens is not None
    assert fields.keys() <= KNOWN
    assert not fields.get("suffix")


@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_completions(data)
    except Refusal as refusal:
        assert refusal.status == 400


@given(PROMPTS)
def test_a_prompt_is_what_was_sent(prompt: Any) -> None:
    request = parse_completions(body(prompt=prompt))
    is_list = isinstance(prompt, list) and not isinstance(prompt[0], int)
    sent = cast("list[Any]", prompt if is_list else [prompt])
    assert [one if isinstance(one, str) else list(one) for one in request.prompts] == sent
    recorded = msgspec.json.decode(prompt_messages(json.dumps(prompt).encode()) or "")
    assert len(recorded) == len(sent)


@pytest.mark.parametrize("prompt", ['{"id": "pmpt_1"}', "[]", "[1, []]", "7", "[[1], 2]", "nonsense"])
def test_what_is_no_prompt_has_no_messages(prompt: str) -> None:
    assert prompt_messages(prompt.encode()) is None


def test_defaults_are_the_providers() -> None:
    request = parse_completions(body())
    assert (request.sampling.max_tokens, request.choices, request.logprobs, request.echo) == (16, 1, False, False)
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)
    assert (request.include_usage, request.padded) == (False, False)
    null = parse_completions(json.dumps({"model": "m"} | dict.fromkeys(KNOWN - {"model"})).encode())
    assert null.prompts == ("",)
    assert null.sampling == request.sampling


def test_events_are_padded_only_on_request() -> None:
    padded = parse_completions(body(stream=True, stream_options={"include_obfuscation": True}))
    assert (padded.stream, padded.padded) == (True, True)
