"""Requests of another program besides model calls: models, embeddings, files and what the endpoint may know besides."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.body import BodyLimits, read_body
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.upstream.forwarding import CREDENTIALS, forwarded, is_forwardable
from leyden.core.gateway.upstream.relay import Upstream
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.integration

OWN_KEY, AGENTS_KEY = "sk-endpoints-own-0123456789", "sk-the-agents-own-0123456789"
EMBEDDINGS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}],
    "model": "embedder",
    "usage": {"prompt_tokens": 2, "total_tokens": 2},
}
MODELS = {"object": "list", "data": [{"id": "embedder", "object": "model", "created": 1, "owned_by": "them"}]}


class Provider:
    """A stand-in for an endpoint: keeps each request, and answers what its path is mapped to."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        """Method, path with query, headers and body."""
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/embeddings": (200, EMBEDDINGS),
            "/v1/models": (200, MODELS),
            "/v1/models/embedder": (200, MODELS["data"][0]),
        }
        self.headers: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        target = scope["raw_path"].decode() + ("?" + scope["query_string"].decode()).rstrip("?")
        self.seen.append((scope["method"], target, headers, await read_body(scope, receive, BodyLimits())))
        missing = {"error": {"message": "no such thing", "type": "invalid_request_error", "param": None, "code": None}}
        status, body = self.answers.get(scope["path"], (404, missing))
        pieces = self.pieces if self.pieces is not None else [json.dumps(body).encode()]
        start = [(b"content-type", b"application/json"), *self.headers]
        await send({"type": "http.response.start", "status": status, "headers": start})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Site:
    """A gateway with one open attempt, and its provider."""

    def __init__(self, url: str, token: str, provider: Provider, gateway: Gateway, store: MemoryStore) -> None:
        self.url, self.token, self.provider, self.gateway, self.store = url, token, provider, gateway, store
        self.base_url = f"{url}/a/{token}/v1"

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.token, max_retries=0)

    def counted(self) -> dict[str, float]:
        name = "leyden_gateway_other_requests_total"
        return {key.removeprefix(name): n for key, n in self.gateway.metrics.snapshot().items() if key.startswith(name)}


@asynccontextmanager
async def site(kind: str = "endpoint", model: str = "", base_url: str | None = None) -> AsyncGenerator[Site]:
    """`endpoint`: it answers the model calls too; `provider`: a policy does; `policy`: no provider is named."""
    provider, store, key = Provider(), MemoryStore(), new_key()
    server = GatewayServer(provider)
    there = await server.start()
    upstream = Upstream(base_url or f"{there}/v1", OWN_KEY, model)
    engine = ScriptedEngine([])
    policy = ServedPolicy(name="policy", engine=engine, codec=ByteCodec())
    gateway = Gateway(
        store,
        upstream if kind == "endpoint" else policy,
        key,
        provider=upstream if kind == "provider" else None,
    )
    own = GatewayServer(gateway.app)
    url = await own.start()
    rollout = await store.start_rollout("task")
    token = mint(key, rollout.rollout_id, rollout.attempt.attempt_id)
    try:
        yield Site(url, token, provider, gateway, store)
        assert (await store.query_spans(rollout.rollout_id)).items == [], "nothing of this is a model call"
    finally:
        await own.stop()
        await server.stop()


@pytest.mark.parametrize("kind", ["endpoint", "provider"])
@pytest.mark.parametrize("model", ["", "chat-model"])
async def test_embeddings_come_from_the_endpoint_with_its_own_key(kind: str, model: str) -> None:
    async with site(kind, model) as run, run.client() as agent:
        answer = await agent.embeddings.create(model="embedder", input="hi", encoding_format="float")
        counted = run.counted()
        [(method, path, headers, body)] = run.provider.seen
    assert answer.data[0].embedding == [0.5, -0.25]
    assert (method, path) == ("POST", "/v1/embeddings")
    assert json.loads(body) == {"model": "embedder", "input": "hi", "encoding_format": "float"}
    assert headers["authorization"] == f"Bearer {OWN_KEY}"
    assert run.token not in str(headers)
    assert not any(name.startswith((semconv.HEADER_PREFIX, "x-stainless")) for name in headers)
    assert counted == {'{kind="forwarded",status="200"}': 1.0}


def test_the_synchronous_client_of_another_program() -> None:
    import asyncio

    async def serve() -> list[Any]:
        async with site() as run:
            return await asyncio.to_thread(call, run)

    def call(run: Site) -> list[Any]:
        with openai.OpenAI(base_url=run.base_url, api_key=run.token, max_retries=0) as agent:
            embedded = agent.embeddings.create(model="embedder", input=["hi"])
            return [embedded.usage.total_tokens, [one.id for one in agent.models.list()]]

    assert asyncio.run(serve()) == [2, ["embedder"]]


@pytest.mark.parametrize("kind", ["policy", "provider"])
async def test_a_policys_models_are_listed_and_others_are_the_providers(kind: str) -> None:
    async with site(kind) as run, run.client() as agent:
        listed = [one.id async for one in agent.models.list()]
        own = await agent.models.retrieve("policy")
        assert (listed, own.id, own.owned_by) == (["policy"], "policy", "system")
        if kind == "provider":
            assert (await agent.models.retrieve("embedder")).owned_by == "them"
        with pytest.raises(openai.NotFoundError) as missing:
            await agent.models.retrieve("unheard-of")
        assert run.counted()['{kind="models",status="404"}'] == 1
    assert (missing.value.code, "no such thing" in str(missing.value)) == (
        (None, True) if kind == "provider" else ("model_not_found", False)
    )


async def test_an_endpoints_models_are_its_own_where_the_agent_names_the_model() -> None:
    async with site("endpoint") as run, run.client() as agent:
        assert [one.id async for one in agent.models.list()] == ["embedder"]
        assert (await agent.models.retrieve("embedder")).owned_by == "them"
        with pytest.raises(openai.NotFoundError, match="no such thing"):
            await agent.models.retrieve("unheard-of")
    async with site("endpoint", "chat-model") as run, run.client() as agent:
        assert [one.id async for one in agent.models.list()] == ["chat-model"]
        assert (await agent.models.retrieve("unheard-of")).id == "unheard-of", "every name is answered"
        assert run.provider.seen == []


async def test_without_a_provider_the_refusal_says_what_is_served_and_how_to_name_one() -> None:
    async with site("policy") as run, run.client() as agent:
        with pytest.raises(openai.NotFoundError) as refused:
            await agent.embeddings.create(model="embedder", input="hi")
        async with httpx.AsyncClient() as http:
            for path in ("audio/speech", "batches", f"x/{run.token}"):
                answer = await http.post(f"{run.base_url}/{path}", json={})
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")
                assert run.token not in answer.text
        assert run.provider.seen == []
    assert (refused.value.code, refused.value.type) == ("unknown_url", "invalid_request_error")
    for words in ("Invalid URL (POST /v1/embeddings)", "/v1/completions", "GET /v1/models", "--provider URL"):
        assert words in str(refused.value)


async def test_errors_of_the_endpoint_are_the_agents() -> None:
    async with site() as run, run.client() as agent:
        limit = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
        run.provider.answers["/v1/embeddings"] = (429, limit)
        run.provider.headers = [(b"retry-after", b"7"), (b"set-cookie", b"a=b"), (b"x-other", b"1")]
        with pytest.raises(openai.RateLimitError, match="slow down") as limited:
            await agent.embeddings.create(model="embedder", input="hi")
        assert limited.value.response.headers["retry-after"] == "7"
        assert "set-cookie" not in limited.value.response.headers
        assert "x-other" not in limited.value.response.headers
        run.provider.headers = []
        with pytest.raises(openai.RateLimitError):
            await agent.with_options(max_retries=1).embeddings.create(model="embedder", input="hi")
        assert len(run.provider.seen) == 3
        assert "cookie" not in run.provider.seen[-1][2]
        run.provider.answers["/v1/embeddings"] = (307, {})
        run.provider.headers = [(b"location", b"http://127.0.0.1:9/v1/embeddings")]
        with pytest.raises(openai.InternalServerError, match="redirect"):
            await agent.embeddings.create(model="embedder", input="hi")
    async with site(base_url="http://127.0.0.1:9/v1") as run, run.client() as agent:
        with pytest.raises(openai.InternalServerError, match="could not be reached"):
            await agent.embeddings.create(model="embedder", input="hi")
        assert run.counted() == {'{kind="forwarded",status="502"}': 1.0}


async def test_files_go_and_come_as_they_are() -> None:
    data = bytes(range(256)) * 1000
    made = {
        "id": "file-1",
        "object": "file",
        "bytes": len(data),
        "created_at": 1,
        "filename": "a",
        "purpose": "user_data",
    }
    async with site() as run, run.client() as agent:
        run.provider.answers["/v1/files"] = (200, made)
        uploaded = await agent.files.create(file=("a.bin", data), purpose="user_data")
        assert uploaded.id == "file-1"
        [(_, _, headers, body)] = run.provider.seen
        assert data in body
        assert headers["content-type"].startswith("multipart/form-data; boundary=")
        run.provider.answers["/v1/files/file-1/content"] = (200, None)
        run.provider.pieces = [data[:7], data[7:]]
        assert (await agent.files.content("file-1")).content == data
        run.provider.answers["/v1/files/file-1"] = (200, {"id": "file-1", "deleted": True, "object": "file"})
        run.provider.pieces = None
        assert (await agent.files.delete("file-1")).deleted
        assert [method for method, *_ in run.provider.seen] == ["POST", "GET", "DELETE"]


async def test_a_stream_that_breaks_off_breaks_off_for_the_agent_too() -> None:
    async with site() as run, httpx.AsyncClient() as http:
        run.provider.pieces = [b"data: 1\n\n"]
        run.provider.headers = [(b"content-length", b"100")]  # and only a part of it comes
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(f"{run.base_url}/embeddings", json={})
        assert run.counted() == {'{kind="forwarded",status="502"}': 1.0}


async def test_no_token_leaves_the_gateway() -> None:
    async with site() as run, httpx.AsyncClient() as http:
        token, key = run.token, {"authorization": f"Bearer {AGENTS_KEY}", "api-key": AGENTS_KEY, "cookie": AGENTS_KEY}
        query = f"a=1&key={AGENTS_KEY}&API-KEY={AGENTS_KEY}&b={token}&c=x{token}y"
        await http.post(f"{run.base_url}/embeddings?{query}", json={}, headers=key | {"openai-beta": token})
        own = {semconv.HEADER_ATTEMPT: token, semconv.HEADER_AGENT: "solver"}
        await http.post(f"{run.url}/v1/embeddings", json={}, headers=key | own)
        await http.post(f"{run.url}/v1/embeddings", json={}, headers={"authorization": f"Bearer {token}"})
        refused = await http.post(f"{run.base_url}/embeddings", json={"user": f"me {token}"})
        [first, *others] = run.provider.seen
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    assert len(others) == 2
    assert first[1] == "/v1/embeddings?a=1"
    assert token not in str(run.provider.seen)
    assert AGENTS_KEY not in str(run.provider.seen)
    assert "solver" not in str(run.provider.seen)


async def test_only_open_attempts_reach_the_provider() -> None:
    async with site() as run, httpx.AsyncClient() as http:
        assert (await http.post(f"{run.url}/v1/embeddings", json={})).status_code == 401
        assert (await http.post(f"{run.url}/a/x.y.z/v1/embeddings", json={})).status_code == 401
        other = await run.store.start_rollout("another")
        await run.store.update_attempt(other.rollout_id, other.attempt.attempt_id, "succeeded")
        ended = mint(run.gateway._key, other.rollout_id, other.attempt.attempt_id)  # pyright: ignore[reportPrivateUsage]
        assert (await http.post(f"{run.url}/a/{ended}/v1/embeddings", json={})).status_code == 403
        assert run.provider.seen == []


async def test_what_no_agent_may_do_to_a_server_is_not_sent() -> None:
    async with site() as run, httpx.AsyncClient() as http:
        for path in ("load_lora_adapter", "unload_lora_adapter", "x/%2e%2e/y", "a%00b", "a%0d%0ab", "é", "a//b", "a;b"):
            answer = await http.post(f"{run.base_url}/{path}", json={})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url"), path
        assert (await http.request("TRACE", f"{run.base_url}/embeddings")).status_code == 404
        assert run.provider.seen == []


async def test_what_may_be_a_model_call_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "leyden.gateway"):
        async with site() as run, httpx.AsyncClient() as http:
            for path in ("embeddings", "agents/completions", "agents/completions"):
                await http.post(f"{run.base_url}/{path}", json={})
            assert len(run.provider.seen) == 3
    assert [record.getMessage().split(" is ")[0] for record in caplog.records] == ["POST /v1/agents/completions"]


@given(st.text(max_size=40))
def test_a_path_is_sent_only_where_every_server_reads_it_as_the_same(path: str) -> None:
    if is_forwardable("POST", path):
        segments = path.split("/")
        assert path.isascii()
        assert "" not in segments
        assert not {".", ".."} & set(segments)
        assert not set("%\\;?#") & set(path)


@given(st.text(max_size=30), st.binary(max_size=60), st.from_regex("[A-Za-z0-9_.-]{8,20}", fullmatch=True))
def test_no_token_is_in_what_is_sent(path: str, around: bytes, token: str) -> None:
    def scope(query: bytes, header: bytes) -> Scope:
        return {"method": "POST", "query_string": query, "headers": [(b"accept", header), (b"x-other", header)]}

    secret = token.encode()
    for body in (around, around + secret + around):
        try:
            request = forwarded(scope(b"q=" + around + secret + b"&key=v", around + secret), path, body, [token])
        except Refusal:
            assert secret in body or token in path
            continue
        assert token not in request.path
        assert not any(token in value for value in request.headers.values())
        assert not any(f"{name}=" in request.path.partition("?")[2].split("&") for name in CREDENTIALS)
