"""A grammar that the engine cannot follow is refused in each dialect's own format, and the refusal is recorded."""

from typing import Any

import httpx
import pytest

from leyden.core.data import reasons, semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.errors import UnusableGrammar
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import scripted_gateway

pytestmark = pytest.mark.integration

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
NAMED = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER, "response_format": {"type": "json_schema", "json_schema": NAMED}},
    "completions": {"prompt": "hi", "guided_json": SCHEMA},
    "responses": {"input": "hi", "text": {"format": NAMED}},
    "messages": {
        "max_tokens": 9,
        "messages": USER,
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_the_engine_cannot_follow_is_a_refusal(path: str, stream: bool) -> None:
    async with scripted_gateway(lambda _: UnusableGrammar("too complex")) as gateway, httpx.AsyncClient() as client:
        attempt = await gateway.open_attempt()
        asked = {"model": "m", "stream": stream, **BODIES[path]}
        answer = await client.post(f"{attempt.base_url}/{path}", json=asked)
        [span] = await gateway.calls(attempt)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["message"].endswith("The format of the answer is not available here: too complex")
    assert span.attributes[semconv.NOT_TRAINED] == reasons.REFUSED


async def test_a_grammar_that_fails_within_a_streamed_answer_ends_it_with_an_error() -> None:
    failing = ScriptedAnswer(ids=list(b'{"a": "'), chunk_size=3, error=UnusableGrammar("too complex"))
    async with scripted_gateway(lambda _: failing) as gateway, httpx.AsyncClient() as client:
        attempt = await gateway.open_attempt()
        asked = {"model": "m", "stream": True, **BODIES["chat/completions"]}
        answer = await client.post(f"{attempt.base_url}/chat/completions", json=asked)
        [span] = await gateway.calls(attempt)
    assert answer.status_code == 200
    assert '"code":"invalid_value"' in answer.text.splitlines()[-2]
    ids = span.attributes[semconv.RESPONSE_IDS]
    assert isinstance(ids, bytes) and list(unpack_ids(ids)) == list(b'{"a": "')
    assert span.attributes[semconv.NOT_TRAINED] == reasons.REFUSED
