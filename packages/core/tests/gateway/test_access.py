"""Who may call, which paths exist, and what is kept out of logs."""

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import GatewayError
from leyden.core.gateway.app import Gateway, GatewayLimits
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.body import BodyLimits
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.limits.admission import AdmissionLimits
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import Script, ScriptedAnswer, ScriptedEngine
from leyden.core.testing.scripted_gateway import ScriptedGateway, scripted_gateway

CODEC = ByteCodec()
WAYS_IN = ("leyden dev", "leyden train", "leyden exec", "LEYDEN_CAPTURE,", "LEYDEN_GATEWAY_URL", "LEYDEN_CAPTURE_TOKEN")
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def hello(_: GenerateRequest) -> ScriptedAnswer:
    return ScriptedAnswer(ids=CODEC.answer("hello"))


@asynccontextmanager
async def serving(script: Script = hello, **how: Any) -> AsyncGenerator[tuple[ScriptedGateway, httpx.AsyncClient]]:
    async with scripted_gateway(script, **how) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        yield gateway, http


def error(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


async def test_the_token_may_come_by_path_by_private_header_or_as_the_key() -> None:
    async with serving() as (gateway, http):
        attempt = await gateway.open_attempt()
        for path, headers in (
            (f"/a/{attempt.token}/v1/chat/completions", {"authorization": "Bearer sk-the-agents-own"}),
            ("/v1/chat/completions", {semconv.HEADER_ATTEMPT: attempt.token, "authorization": "Bearer sk-other"}),
            ("/v1/chat/completions", {"authorization": f"Bearer {attempt.token}"}),
        ):
            assert (await http.post(path, json=BODY, headers=headers)).status_code == 200
        assert len(await gateway.calls(attempt)) == 3


async def test_a_wrong_or_missing_token_is_refused_before_the_engine() -> None:
    async with serving() as (gateway, http):
        attempt = await gateway.open_attempt()
        foreign = mint(new_key(), attempt.rollout_id, attempt.attempt_id)
        for path, headers in (
            ("/v1/chat/completions", {}),
            ("/v1/chat/completions", {"authorization": "Bearer sk-something"}),
            ("/v1/chat/completions", {semconv.HEADER_ATTEMPT: foreign}),
            (f"/a/{foreign}/v1/chat/completions", {semconv.HEADER_ATTEMPT: attempt.token}),
            (f"/a/{attempt.token}x/v1/chat/completions", {}),
        ):
            response = await http.post(path, json=BODY, headers=headers)
            assert response.status_code == 401
            assert error(response)["code"] == "invalid_api_key"
            assert all(way in error(response)["message"] for way in WAYS_IN)
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-x", max_retries=0) as agent:
            with pytest.raises(openai.AuthenticationError):
                await agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert gateway.engine.requests == []


async def test_an_attempt_that_has_ended_is_refused() -> None:
    async with serving() as (gateway, http):
        ended = await gateway.open_attempt()
        await gateway.store.update_attempt(ended.rollout_id, ended.attempt_id, status="succeeded")
        cancelled = await gateway.open_attempt()
        await gateway.store.update_rollout(cancelled.rollout_id, status="cancelled")
        unknown = mint(gateway.key, "no-such-rollout", "no-such-attempt")
        misplaced = mint(gateway.key, (await gateway.open_attempt()).rollout_id, ended.attempt_id)
        for token in (ended.token, cancelled.token, unknown, misplaced):
            response = await http.post(f"/a/{token}/v1/chat/completions", json=BODY)
            assert response.status_code == 403
            assert error(response)["code"] == "attempt_closed"
    assert gateway.engine.requests == []


async def test_an_earlier_attempt_is_answered_while_it_is_open() -> None:
    async with serving() as (gateway, http):
        first = await gateway.open_attempt()
        await gateway.store.start_attempt(first.rollout_id)
        assert (await http.post(f"{first.base_url}/chat/completions", json=BODY)).status_code == 200
        assert len(await gateway.calls(first)) == 1
        await gateway.store.update_attempt(first.rollout_id, first.attempt_id, status="timeout")
        assert (await http.post(f"{first.base_url}/chat/completions", json=BODY)).status_code == 403


async def test_paths_outside_the_list_do_not_exist() -> None:
    async with serving() as (gateway, http):
        attempt = await gateway.open_attempt()
        for method, path in (
            ("POST", f"/a/{attempt.token}/v1/load_lora_adapter"),
            ("POST", "/a/x"),
            ("POST", f"/a/{attempt.token}/v1/../../update_weights"),
            ("POST", f"/a/{attempt.token}/v1/chat/completions/"),
            ("GET", "/"),
            ("GET", "/docs"),
        ):
            response = await http.request(method, path, follow_redirects=False)
            assert (response.status_code, error(response)["code"]) == (404, "unknown_url")
        for path in ("/v1/embeddings", "/v1/load_lora_adapter", "/a/x/v1/embeddings"):
            response = await http.post(path)
            assert (response.status_code, error(response)["code"]) == (401, "invalid_api_key")
        response = await http.get(f"/a/{attempt.token}/v1/chat/completions")
        assert (response.status_code, error(response)["code"]) == (405, "method_not_allowed")


async def test_health_and_models() -> None:
    async with serving() as (gateway, http):
        attempt = await gateway.open_attempt()
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/v1/models")).status_code == 401
        async with openai.AsyncOpenAI(base_url=attempt.base_url, api_key="x") as agent:
            assert [model.id async for model in agent.models.list()] == ["policy"]
        await gateway.store.update_attempt(attempt.rollout_id, attempt.attempt_id, "succeeded")
        ended = await http.get("/v1/models", headers={"authorization": f"Bearer {attempt.token}"})
        assert (ended.status_code, error(ended)["code"]) == (403, "attempt_closed")


async def test_a_body_that_is_too_large_is_refused_however_it_arrives() -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(3):
            yield b" " * 500

    async with serving(limits=GatewayLimits(body=BodyLimits(max_bytes=1000, max_decoded_bytes=1000))) as (
        gateway,
        http,
    ):
        url = f"{(await gateway.open_attempt()).base_url}/chat/completions"
        for content in (b" " * 1001, chunks()):
            response = await http.post(url, content=content)
            assert (response.status_code, error(response)["code"]) == (413, "request_too_large")
        bomb = gzip.compress(b" " * 100_000)
        response = await http.post(url, content=bomb, headers={"content-encoding": "gzip"})
        assert (len(bomb) < 1000, response.status_code) == (True, 413)
        response = await http.post(url, content=b"x", headers={"content-encoding": "br"})
        assert (response.status_code, "gzip" in response.headers["accept-encoding"]) == (415, True)
        packed = gzip.compress(json.dumps(BODY).encode())
        assert (await http.post(url, content=packed, headers={"content-encoding": "gzip"})).status_code == 200
        assert (await http.post(url, json=BODY)).status_code == 200


async def test_calls_wait_for_their_turn_and_are_refused_when_too_many_do() -> None:
    limits = GatewayLimits(admission=AdmissionLimits(max_concurrent=1, max_waiting=1))
    answers = [ScriptedAnswer(ids=CODEC.answer("hi"), delay=0.2) for _ in range(2)]
    async with serving(answers, limits=limits) as (gateway, http):
        url = f"{(await gateway.open_attempt()).base_url}/chat/completions"
        responses = await asyncio.gather(*(http.post(url, json=BODY) for _ in range(3)))
        measures = (await http.get("/metrics")).text
    assert sorted(response.status_code for response in responses) == [200, 200, 429]
    refused = next(response for response in responses if response.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert error(refused)["code"] == "too_many_waiting"
    assert gateway.engine.peak == 1
    assert 'leyden_gateway_calls_total{dialect="chat",policy="policy",status="200"} 2.0' in measures
    assert 'leyden_gateway_refused_total{reason="too_many_waiting"} 1.0' in measures


async def test_a_client_that_leaves_the_line_is_not_answered() -> None:
    limits = GatewayLimits(admission=AdmissionLimits(max_concurrent=1))
    answers = [ScriptedAnswer(ids=CODEC.answer("hi"), delay=0.3) for _ in range(2)]
    async with serving(answers, limits=limits) as (gateway, http):
        attempt = await gateway.open_attempt()
        url = f"{attempt.base_url}/chat/completions"
        first = asyncio.create_task(http.post(url, json=BODY))
        while not gateway.engine.in_flight:
            await asyncio.sleep(0.005)
        with pytest.raises(httpx.ReadTimeout):
            await http.post(url, json=BODY, timeout=httpx.Timeout(20, read=0.05))
        assert (await first).status_code == 200
        assert len(await gateway.calls(attempt)) == len(gateway.engine.requests) == 1


async def test_no_token_is_logged_even_when_something_breaks(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenStore(MemoryStore):
        async def find_attempt(self, rollout_id: str, attempt_id: str) -> Any:
            raise OSError("unreadable")

    caplog.set_level(logging.DEBUG)
    async with serving(store=BrokenStore()) as (gateway, http):
        attempt = await gateway.open_attempt()
        response = await http.post(f"{attempt.base_url}/chat/completions", json=BODY)
        assert response.status_code == 500
        assert "unreadable" not in response.text
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert "unreadable" in caplog.text
    assert not any(attempt.token in message for message in logged)


async def test_other_applications_can_be_mounted_beside_it() -> None:
    async def store_server(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    policy = ServedPolicy(name="p", engine=ScriptedEngine([]), codec=CODEC)
    server = GatewayServer(Gateway(MemoryStore(), policy, new_key(), mounts={"/store": store_server}).app)
    async with httpx.AsyncClient(base_url=await server.start()) as http:
        assert (await http.post("/store/v1/rollouts")).text == "/store/v1/rollouts"
        assert (await http.get("/healthz")).status_code == 200
    await server.stop()
    await server.stop()


async def test_a_port_that_is_taken_is_one_clear_error() -> None:
    async with serving() as (gateway, _):
        port = int(gateway.url.rpartition(":")[2])
        with pytest.raises(GatewayError, match=f"cannot listen on 127.0.0.1:{port}"):
            await GatewayServer(_nothing, port=port).start()


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


async def test_hundreds_of_idle_connections_do_not_hold_it_up() -> None:
    async with serving() as (gateway, http):
        attempt = await gateway.open_attempt()
        host, port = gateway.url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
        assert (await http.post(f"{attempt.base_url}/chat/completions", json=BODY)).status_code == 200
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 2
    for _, writer in idle:
        writer.close()
