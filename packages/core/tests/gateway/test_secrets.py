"""Nothing secret of a call reaches the logs or the store, however the call ends."""

import logging

import httpx
import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import scripted_gateway

CODEC = ByteCodec()
PROVIDER_KEY = "sk-proj-4fThe9agents8own7key"
USER = [{"role": "user", "content": "hi"}]


def fragile(request: GenerateRequest) -> ScriptedAnswer:
    if "break" in CODEC.decode(request.prompt_ids):
        raise EngineError("out of memory")
    return ScriptedAnswer(ids=CODEC.answer("hello"))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": USER}, 200),
        ({"messages": USER, "stream": True}, 200),
        ({"messages": USER, "unheard_of": 1}, 400),
        ({"messages": [{"role": "user", "content": "break"}]}, 500),
        ({}, 400),
    ],
)
async def test_no_key_and_no_token_is_logged_or_stored(
    body: dict[str, object], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_gateway(fragile) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        attempt = await gateway.open_attempt()
        foreign = mint(new_key(), attempt.rollout_id, attempt.attempt_id)
        key = {"authorization": f"Bearer {PROVIDER_KEY}", "api-key": PROVIDER_KEY, "cookie": PROVIDER_KEY}
        payload = {"model": "m", **body}
        by_header = {semconv.HEADER_ATTEMPT: attempt.token, **key}
        for path, headers in ((f"/a/{attempt.token}/v1", key), ("/v1", by_header)):
            response = await http.post(f"{path}/chat/completions?api_key={PROVIDER_KEY}", json=payload, headers=headers)
            assert response.status_code == status
            assert attempt.token not in response.text
            assert PROVIDER_KEY not in response.text
        for path in (f"/a/{foreign}/v1/chat/completions", f"/a/{attempt.token}/v1/no-such", f"/{PROVIDER_KEY}"):
            assert (await http.post(path, json=payload, headers=key)).status_code in (401, 404)
        spans = (await gateway.store.query_spans(attempt.rollout_id)).items
    assert len(spans) == 2
    records = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    logged = "\n".join(f"{record.getMessage()} {record.exc_text} {record.args}" for record in records)
    for secret in (PROVIDER_KEY, attempt.token, foreign, gateway.key.hex()):
        assert secret not in logged
        assert secret.encode() not in msgspec.json.encode(spans)
