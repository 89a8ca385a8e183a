"""A gateway that is up before its policy is: calls wait for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from leyden.core.data.identity import mint, new_key
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine

CODEC = ByteCodec()
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def hello(_: GenerateRequest) -> ScriptedAnswer:
    return ScriptedAnswer(ids=CODEC.answer("hello"))


def policy(name: str) -> ServedPolicy:
    engine = ScriptedEngine(hello, model=ModelInfo(name=name, context_length=4096, vocab_size=VOCABULARY))
    return ServedPolicy(name=name, engine=engine, codec=CODEC)


@asynccontextmanager
async def waiting_gateway() -> AsyncGenerator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway without a policy, and a client that calls it for an open attempt."""
    store, key = MemoryStore(), new_key()
    gateway = Gateway(store, None, key)
    server = GatewayServer(gateway.app)
    url = await server.start()
    rollout = await store.start_rollout("task", mode="train")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        async with httpx.AsyncClient(base_url=f"{url}/a/{token}/v1", timeout=30) as http:
            yield gateway, http
    finally:
        await server.stop()


async def test_calls_wait_until_there_is_a_policy() -> None:
    async with waiting_gateway() as (gateway, http):
        calls = [
            asyncio.create_task(http.post("/chat/completions", json=BODY)),
            asyncio.create_task(http.post("/responses", json={"model": "m", "input": "hi"})),
            asyncio.create_task(http.post("/responses/input_tokens", json={"model": "m", "input": "hi"})),
            asyncio.create_task(http.get("/models")),
        ]
        root = str(http.base_url).partition("/a/")[0]
        async with httpx.AsyncClient() as other:
            assert (await other.get(f"{root}/healthz")).status_code == 200
            assert (await other.get(f"{root}/metrics")).status_code == 200
        assert not any(call.done() for call in calls)
        gateway.answer_with(policy("first"), {"second": policy("second")})
        answers = await asyncio.gather(*calls)
        assert [answer.status_code for answer in answers] == [200] * 4
        assert answers[0].json()["choices"][0]["message"]["content"] == "hello"
        assert [model["id"] for model in answers[3].json()["data"]] == ["first", "second"]
        metrics = (await http.get(f"{root}/metrics")).text
        assert 'policy="first"' in metrics
        assert 'policy="second"' in metrics


async def test_a_client_that_does_not_wait_is_not_answered_later() -> None:
    async with waiting_gateway() as (gateway, http):
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/chat/completions", json=BODY, timeout=0.2)
        await http.get(f"{str(http.base_url).partition('/a/')[0]}/healthz")
        served = policy("first")
        gateway.answer_with(served)
        assert (await http.get("/models")).status_code == 200
        assert isinstance(served.engine, ScriptedEngine)
        assert not served.engine.requests
