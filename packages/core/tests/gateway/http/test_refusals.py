"""What a client must not get by asking for it: other attempts' answers, other servers, other paths, our memory."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from fuzz.mutations import Request
from fuzz.wire import Answer, Connection
from leyden.core.data import semconv
from leyden.core.gateway.app import GatewayLimits
from leyden.core.gateway.http.body import BodyLimits
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.scripted_engine import ScriptedAnswer
from leyden.core.testing.scripted_gateway import AttemptHandle, ScriptedGateway, scripted_gateway

CODEC = ByteCodec()
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hi"}
KEY = "sk-the-agents-own-0123456789"
ENGINE_PATHS = (
    "/update_weights", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/inference/v1/generate", "/score", "/pause",
    "/v1/embeddings", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache",
)  # fmt: skip
OTHER_PATHS = (
    "/v1/../update_weights", "/v1/../v1/models", "/metrics/../v1/models", "/v1/%2e%2e/v1/models", "//v1/models", "*",
    "/v1//models", "/v1/models/", "/V1/models", "/v1/models%00", "/v1\\models", "/v1;/models", "/a//v1/models",
    "/healthz/../metrics",
)  # fmt: skip
PATIENCE = 10.0


@asynccontextmanager
async def serving(**how: Any) -> AsyncGenerator[tuple[ScriptedGateway, AttemptHandle, httpx.AsyncClient]]:
    """A gateway, an open attempt, and a client in its name."""

    def hello(_: object) -> ScriptedAnswer:
        return ScriptedAnswer(ids=CODEC.answer("hello"))

    async with scripted_gateway(hello, **how) as gateway:
        attempt = await gateway.open_attempt()
        async with httpx.AsyncClient(base_url=attempt.base_url, headers={"authorization": f"Bearer {KEY}"}) as http:
            yield gateway, attempt, http


async def raw(gateway: ScriptedGateway, request: Request, token: str | None = None) -> Answer:
    """Send a request byte by byte, as no library would."""
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    connection = Connection(host, int(port), PATIENCE)
    try:
        return await connection.ask(request, [(semconv.HEADER_ATTEMPT.encode(), token.encode())] if token else [])
    finally:
        await connection.close()


def code(answer: httpx.Response | Answer) -> tuple[int, str | None]:
    """Status and code of a refusal, which is in OpenAI's form."""
    status, body = (answer.status, answer.body) if isinstance(answer, Answer) else (answer.status_code, answer.content)
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["code"]


async def test_a_retry_of_another_attempts_call_is_a_call_of_its_own() -> None:
    async with serving() as (gateway, attempt, http):
        made = (await http.post("/chat/completions", json=CHAT)).json()
        again = {"x-stainless-retry-count": "1"}
        assert (await http.post("/chat/completions", json=CHAT, headers=again)).json()["id"] == made["id"]
        other = await gateway.open_attempt()
        answer = await http.post(f"{other.base_url}/chat/completions", json=CHAT, headers=again)
        assert answer.json()["id"] != made["id"]
        assert (len(await gateway.calls(attempt)), len(await gateway.calls(other))) == (1, 1)


async def test_an_item_of_another_attempt_cannot_be_referred_to() -> None:
    async with serving() as (gateway, _, http):
        made = (await http.post("/responses", json=RESPONSES)).json()
        body = {"model": "m", "input": [{"type": "item_reference", "id": made["output"][0]["id"]}]}
        other = await gateway.open_attempt()
        assert code(await http.post(f"{other.base_url}/responses", json=body)) == (404, None)
        assert (await http.post("/responses", json=body)).status_code == 200


async def test_of_two_tokens_the_path_says_whose_call_it_is() -> None:
    async with serving() as (gateway, attempt, http):
        other = await gateway.open_attempt()
        answer = await http.post("/chat/completions", json=CHAT, headers={semconv.HEADER_ATTEMPT: other.token})
        assert answer.status_code == 200
        assert (len(await gateway.calls(attempt)), await gateway.calls(other)) == (1, [])


async def test_a_body_that_does_not_come_is_refused_and_its_connection_ends() -> None:
    limits = GatewayLimits(body=BodyLimits(gap_seconds=0.05))
    async with serving(limits=limits) as (gateway, attempt, _):
        for headers in ([(b"content-length", b"100")], [(b"transfer-encoding", b"chunked")]):
            answer = await raw(gateway, Request(kind="slow", headers=headers, body=b"", framed=False), attempt.token)
            assert code(answer) == (408, "request_timeout")
            assert answer.closes
    assert gateway.engine.requests == []


async def test_nothing_of_an_engine_can_be_reached() -> None:
    async with serving() as (gateway, attempt, http):
        headers = {semconv.HEADER_ATTEMPT: attempt.token}
        for path in ENGINE_PATHS:
            for method in ("GET", "POST"):
                for prefix in ("", f"/a/{attempt.token}", f"/a/{attempt.token}/v1"):
                    answer = await http.request(method, gateway.url + prefix + path, json={}, headers=headers)
                    assert code(answer) == (404, "unknown_url"), prefix + path
    assert (gateway.engine.requests, gateway.engine.versions) == ([], [])


async def test_a_path_is_never_read_as_another() -> None:
    async with serving() as (gateway, attempt, _):
        for path in OTHER_PATHS:
            answer = await raw(gateway, Request(kind="path", method="GET", path=path, framed=False), attempt.token)
            assert code(answer)[0] in (400, 404), path
            assert attempt.token.encode() not in answer.body


async def test_encoded_slashes_are_slashes_and_open_nothing_more() -> None:
    async with serving() as (gateway, attempt, _):
        path = f"/a/{attempt.token}%2fv1%2fmodels"
        assert (await raw(gateway, Request(kind="path", method="GET", path=path))).status == 200
        assert code(await raw(gateway, Request(kind="path", method="GET", path="/v1%2fmodels")))[0] == 401
        encoded_path = Request(kind="path", method="GET", path="/v1/models/..%2f..%2fmetrics")
        assert code(await raw(gateway, encoded_path, attempt.token)) == (404, "model_not_found")


@asynccontextmanager
async def other_server() -> AsyncGenerator[tuple[str, list[object]]]:
    """A server that nobody may call: its address, and who did."""
    callers: list[object] = []

    def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(reader)
        writer.close()

    server = await asyncio.start_server(called, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", callers
    finally:
        server.close()
        await server.wait_closed()


async def test_a_server_named_in_a_body_is_refused() -> None:
    async with serving() as (gateway, _, http), other_server() as (url, callers):
        for field in ("base_url", "api_base", "api_key", "extra_body", "extra_headers", "custom_llm_provider"):
            for path, body in (("/chat/completions", CHAT), ("/responses", RESPONSES)):
                value = {"base_url": url} if field.startswith("extra") else url
                answer = await http.post(path, json=body | {field: value})
                assert code(answer)[0] == 400
                assert field in answer.json()["error"]["message"]
    assert (gateway.engine.requests, callers) == ([], [])


async def test_a_server_named_in_a_head_is_not_called() -> None:
    async with serving() as (gateway, attempt, http), other_server() as (url, callers):
        host = url.removeprefix("http://").removesuffix("/v1")
        names = ("x-upstream", "x-base-url", "x-target-url", "x-forwarded-host", "forwarded", "x-original-url", "host")
        for name in names:
            value = host if name == "host" else f"host={host}" if name == "forwarded" else url
            answer = await http.post("/chat/completions", json=CHAT, headers={name: value})
            assert answer.json()["choices"][0]["message"]["content"] == "hello"
        body = json.dumps(CHAT).encode()
        proxied = await raw(gateway, Request(kind="absolute", path=f"{url}/chat/completions", body=body), attempt.token)
        tunnel = await raw(gateway, Request(kind="tunnel", method="CONNECT", path=host, framed=False), attempt.token)
        assert b"hello" in proxied.body
        assert tunnel.status >= 400
    assert callers == []


async def test_a_policy_that_is_not_configured_is_refused() -> None:
    async with serving() as (gateway, _, http):
        for name in ("other", "http://127.0.0.1:1/v1", "../policy", "policy%00", "%ff", "a" * 3000):
            headers = {semconv.HEADER_POLICY: name}
            for path, body in (("/chat/completions", CHAT), ("/responses", RESPONSES)):
                assert code(await http.post(path, json=body, headers=headers)) == (404, "model_not_found")
        configured = await http.post("/chat/completions", json=CHAT, headers={semconv.HEADER_POLICY: "policy"})
        assert configured.status_code == 200
    assert len(gateway.engine.requests) == 1


BODY = json.dumps(CHAT).encode()
SECOND = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


TWO_ENDS: tuple[list[tuple[bytes, bytes]], ...] = (
    [(b"content-length", b"%d" % len(BODY)), (b"content-length", b"3")],
    [(b"content-length", b"3"), (b"content-length", b"%d" % len(BODY))],
    [(b"content-length", b"%d" % len(BODY)), (b"transfer-encoding", b"chunked")],
    [(b"transfer-encoding", b"chunked"), (b"content-length", b"0")],
    [(b"transfer-encoding", b"xchunked")],
    [(b"transfer-encoding", b"chunked, identity")],
    [(b"content-length", b"+3")],
    [(b"content-length", b"0x3")],
)


async def test_a_request_with_two_ends_is_refused_and_nothing_behind_it_is_read() -> None:
    async with serving() as (gateway, attempt, _):
        for headers in TWO_ENDS:
            smuggling = Request(kind="smuggling", headers=headers, body=BODY + SECOND, framed=False)
            answer = await raw(gateway, smuggling, attempt.token)
            assert code(answer)[0] == 400
            assert answer.closes
    assert gateway.engine.requests == []


async def test_what_is_no_request_behind_one_does_not_cost_it_its_answer() -> None:
    async with serving() as (gateway, attempt, _):
        length = [(b"content-length", b"%d" % len(BODY))]
        answer = await raw(gateway, Request(kind="rest", headers=length, body=BODY + b"rest\r\n\r\n"), attempt.token)
        assert b"hello" in answer.body
        assert answer.closes


async def test_what_is_nested_too_deeply_is_refused_not_failed() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"p": "@"}}}
    bodies = (CHAT | {"tools": [tool]}, CHAT | {"metadata": {"api_key": "@"}}, CHAT | {"prediction": "@"})
    async with serving() as (_, _, http):
        answers = [
            await http.post("/chat/completions", content=json.dumps(body).replace('"@"', "[" * depth + "]" * depth))
            for body in bodies
            for depth in (100, 600, 900, 970, 990, 2000)
        ]
    assert {answer.status_code for answer in answers} == {200, 400}


async def test_a_key_in_a_field_that_is_only_a_hint_is_not_recorded() -> None:
    async with serving() as (gateway, attempt, http):
        assert (
            await http.post("/chat/completions", json=CHAT | {"metadata": {"api_key": KEY, "n": "1"}})
        ).status_code == 200
        (call,) = await gateway.calls(attempt)
    assert json.loads(str(call.attributes[semconv.SAMPLING_ASKED])) == {"metadata": {"api_key": "***", "n": "1"}}
    assert KEY not in str(call)
