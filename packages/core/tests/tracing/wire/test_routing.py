import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2
import pytest

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, outside_attempt, set_caller
from leyden.core.tracing.wire import gateway_pool, routing

PROVIDER = "https://api.provider.invalid/v1"
"""A name that cannot be resolved: a call that is not routed fails, or is seen by a mock transport."""
CHAT = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
LIBRARIES = [pytest.param(httpx, id="httpx"), pytest.param(httpx2, id="httpx2")]


@pytest.fixture
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


def attempt_at(gateway: Endpoint, number: int = 0) -> OpenAttempt:
    return factories.attempt(gateway.url, rollout_id=f"ro-{number}", attempt_id=f"at-{number}", token=f"token/{number}")


def sink(http: Any, seen: list[Any], **more: Any) -> Any:
    """A client whose provider is a list."""

    def answer(request: Any) -> Any:
        seen.append(request)
        return http.Response(200, json={"from": "provider"})

    return http.Client(base_url=PROVIDER, transport=http.MockTransport(answer), **more)


@pytest.mark.parametrize("http", LIBRARIES)
def test_a_chat_call_goes_to_the_gateway_and_the_agent_sees_its_provider(http: Any, gateway: Endpoint) -> None:
    reached: list[Any] = []
    headers = {
        "Authorization": "Bearer sk-secret",
        "Api-Key": "sk-secret",
        "X-Api-Key": "sk-secret",
        "Cookie": "session=sk-secret",
        "OpenAI-Organization": "sk-secret",
        "X-Some-Vendor-Token": "sk-secret",
    }
    client = sink(http, reached, headers=headers)
    routing.install()
    try:
        with client, open_attempt(attempt_at(gateway)):
            set_caller(Caller(agent="Löser/1", node="n 1", trace_id="cd" * 16, span_id="12" * 8))
            response = client.post("/chat/completions", json=CHAT)
    finally:
        routing.uninstall()
    assert not reached
    assert response.json() == {"path": "/v1/chat/completions"}
    assert str(response.url) == str(response.request.url) == f"{PROVIDER}/chat/completions"
    assert response.request.headers["authorization"] == "Bearer sk-secret"
    [call] = gateway.seen
    assert json.loads(call["body"]) == CHAT
    assert "sk-secret" not in str(call)
    ours = {name: value for name, value in call["headers"].items() if name.startswith(semconv.HEADER_PREFIX)}
    assert ours == {
        semconv.HEADER_ATTEMPT: "token%2F0",
        semconv.HEADER_AGENT: "L%C3%B6ser%2F1",
        semconv.HEADER_NODE: "n%201",
        semconv.HEADER_TRACE: "cd" * 16,
        semconv.HEADER_SPAN: "12" * 8,
    }
    assert call["headers"]["host"] == gateway.url.removeprefix("http://")


@pytest.mark.parametrize("http", LIBRARIES)
async def test_async_calls_go_to_the_gateway_over_kept_connections(http: Any, gateway: Endpoint, routed: None) -> None:
    async with http.AsyncClient(base_url=PROVIDER, http2=False, limits=http.Limits(max_connections=1)) as client:
        for number in range(3):
            with open_attempt(attempt_at(gateway, number)):
                response = await client.post("/chat/completions", params={"api-version": "2026-01-01"}, json=CHAT)
                assert (await response.aread(), response.status_code) == (b'{"path": "/v1/chat/completions"}', 200)
                assert str(response.url) == f"{PROVIDER}/chat/completions?api-version=2026-01-01"
    assert [call["headers"][semconv.HEADER_ATTEMPT] for call in gateway.seen] == [f"token%2F{n}" for n in range(3)]
    assert len(gateway.connections) == 1
    await gateway_pool.aclose()


@pytest.mark.parametrize("http", LIBRARIES)
async def test_the_clients_own_limits_do_not_hold_routed_calls_back(http: Any, gateway: Endpoint, routed: None) -> None:
    """With the agent's limit of one connection the two calls would wait for each other for ever."""
    async with http.AsyncClient(limits=http.Limits(max_connections=1), timeout=5) as client:
        with open_attempt(attempt_at(gateway)):
            url = f"{PROVIDER}/chat/completions"
            calls = [asyncio.create_task(client.post(url, json={"slow": 1})) for _ in range(12)]
            while len(gateway.seen) < 12:
                await asyncio.sleep(0.005)
            gateway.go.set()
            assert {response.status_code for response in await asyncio.gather(*calls)} == {200}
    await gateway_pool.aclose()


@pytest.mark.parametrize("http", LIBRARIES)
def test_streams_pass_both_ways_as_they_come(http: Any, gateway: Endpoint, routed: None) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"stream"'
        yield b": true}"

    with (
        http.Client() as client,
        open_attempt(attempt_at(gateway)),
        client.stream("POST", f"{PROVIDER}/chat/completions", content=body()) as response,
    ):
        chunks = response.iter_raw()
        assert next(chunks) == b"data: 1\n\n"
        assert not gateway.go.is_set()  # the second half does not exist yet
        gateway.go.set()
        assert b"".join(chunks) == b"data: 2\n\n"
    assert gateway.seen[0]["body"] == b'{"stream": true}'


async def test_an_async_stream_may_be_left_half_way(gateway: Endpoint, routed: None) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"stream": true}'

    async with httpx.AsyncClient() as client:
        with open_attempt(attempt_at(gateway)):
            async with client.stream("POST", f"{PROVIDER}/chat/completions", content=body()) as response:
                assert await anext(response.aiter_raw()) == b"data: 1\n\n"
            gateway.go.set()
            again = await client.post(f"{PROVIDER}/chat/completions", json=CHAT)
            assert again.status_code == 200
    await gateway_pool.aclose()


@pytest.mark.parametrize("http", LIBRARIES)
def test_time_outs_hooks_auth_and_proxies_are_still_the_clients(http: Any, gateway: Endpoint, routed: None) -> None:
    heard: list[str] = []

    def on_request(request: Any) -> None:
        heard.append(str(request.url))

    def on_response(response: Any) -> None:
        heard.append(response.request.headers["authorization"])

    hooks: Any = {"request": [on_request], "response": [on_response]}
    with (
        http.Client(proxy="http://127.0.0.1:9", auth=("user", "pass"), event_hooks=hooks, timeout=1.0) as client,
        open_attempt(attempt_at(gateway)),
    ):
        assert client.post(f"{PROVIDER}/chat/completions", json=CHAT).status_code == 200
        with pytest.raises(http.ReadTimeout) as failure:
            client.post(f"{PROVIDER}/chat/completions", json={"slow": 1})
        assert str(failure.value.request.url) == f"{PROVIDER}/chat/completions"
    assert heard[0] == f"{PROVIDER}/chat/completions"
    assert heard[1].startswith("Basic ")
    assert "authorization" not in gateway.seen[0]["headers"]


@pytest.mark.parametrize("path", ["/embeddings", "/files", "/chat/completions/abc", "/audio/transcriptions"])
def test_what_is_no_model_call_passes_untouched(path: str, gateway: Endpoint, routed: None) -> None:
    reached: list[Any] = []
    with sink(httpx, reached) as client, open_attempt(attempt_at(gateway)):
        client.post(path, json=CHAT, headers={"authorization": "Bearer sk"})
        client.get("/chat/completions")
    assert [request.method for request in reached] == ["POST", "GET"]
    assert reached[0].headers["authorization"] == "Bearer sk"
    assert not gateway.seen


def test_another_services_messages_are_not_taken_for_a_model_call(gateway: Endpoint, routed: None) -> None:
    reached: list[Any] = []
    with sink(httpx, reached) as client, open_attempt(attempt_at(gateway)):
        client.post("https://mail.invalid/channels/7/messages", json={"content": "hello"})
    assert len(reached) == 1


@pytest.mark.parametrize(
    "url",
    [
        f"{PROVIDER}/agents/completions",
        f"{PROVIDER}/threads/t/messages",
        "https://google.invalid/v1beta/models/g:generateContent",
    ],
)
def test_a_dialect_the_gateway_does_not_speak_fails_and_reaches_nobody(
    url: str, gateway: Endpoint, routed: None, caplog: pytest.LogCaptureFixture
) -> None:
    reached: list[Any] = []
    with caplog.at_level(logging.WARNING), sink(httpx, reached) as client, open_attempt(attempt_at(gateway)):
        for _ in range(3):
            with pytest.raises(httpx.ConnectError, match="the gateway does not support"):
                client.post(url, json=CHAT)
    assert not reached
    assert not gateway.seen
    assert len(caplog.records) == 1


@pytest.mark.parametrize("http", LIBRARIES)
async def test_without_an_attempt_a_runner_calls_nobody(http: Any) -> None:
    reached: list[Any] = []
    routing.install(fail_closed=True)
    try:
        with sink(http, reached) as client:
            with pytest.raises(http.ConnectError, match="no attempt is open"):
                client.post("/chat/completions", json=CHAT)
            with outside_attempt():  # a judge inside a reward function
                assert client.post("/chat/completions", json=CHAT).json() == {"from": "provider"}
            routing.install(fail_closed=False)
            assert client.post("/chat/completions", json=CHAT).json() == {"from": "provider"}
    finally:
        routing.uninstall()
    assert len(reached) == 2


@pytest.mark.parametrize("fail_closed", [True, False])
def test_what_a_closed_attempt_left_running_calls_nobody(fail_closed: bool, gateway: Endpoint) -> None:
    reached: list[Any] = []
    attempt, errors, leave = attempt_at(gateway), list[Exception](), threading.Event()
    routing.install(fail_closed=fail_closed)
    try:
        with sink(httpx, reached) as client:

            def orphan() -> None:
                with open_attempt(attempt):
                    attempt.closed.set()
                    leave.wait(5)
                    try:
                        client.post("/chat/completions", json=CHAT)
                    except httpx.ConnectError as error:
                        errors.append(error)

            thread = threading.Thread(target=orphan)
            thread.start()
            leave.set()
            thread.join()
    finally:
        routing.uninstall()
    assert "closed" in str(errors[0])
    assert not reached


async def test_a_gateway_that_is_down_is_a_connection_error(gateway: Endpoint, routed: None) -> None:
    down = factories.attempt()
    with open_attempt(down):
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError):
                await client.post(f"{PROVIDER}/chat/completions", json=CHAT)
        with httpx.Client() as client, pytest.raises(httpx.ConnectError):
            client.post(f"{PROVIDER}/chat/completions", json=CHAT)
    await gateway_pool.aclose()


def test_a_call_to_the_gateway_keeps_its_path_and_is_told_who_speaks(gateway: Endpoint, routed: None) -> None:
    with httpx.Client() as client, open_attempt(attempt_at(gateway)):
        set_caller(Caller(agent="solver"))
        client.post(f"{gateway.url}/a/some-token/v1/chat/completions", json=CHAT)
        client.post(f"{gateway.url}/v1/chat/completions", json=CHAT)
        routed_before = {semconv.HEADER_ATTEMPT: "other"}
        client.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=routed_before)
    assert [call["path"] for call in gateway.seen] == [
        "/a/some-token/v1/chat/completions",
        "/v1/chat/completions",
        "/v1/chat/completions",
    ]
    assert [call["headers"].get(semconv.HEADER_AGENT) for call in gateway.seen] == ["solver", "solver", None]
    assert gateway.seen[2]["headers"][semconv.HEADER_ATTEMPT] == "other"


def test_uninstall_undoes_install_exactly() -> None:
    clients = (httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient)
    before = [client.__dict__["_transport_for_url"] for client in clients]
    routing.install()
    routing.install()
    assert all(client.__dict__["_transport_for_url"] not in before for client in clients)
    routing.uninstall()
    assert [client.__dict__["_transport_for_url"] for client in clients] == before
    routing.uninstall()


def test_a_wrapper_put_over_ours_survives_uninstall(gateway: Endpoint) -> None:
    original = httpx.Client._transport_for_url  # pyright: ignore[reportPrivateUsage]  # what routing replaces
    reached: list[Any] = []
    routing.install(fail_closed=True)
    ours: Any = httpx.Client._transport_for_url  # pyright: ignore[reportPrivateUsage]

    def foreign(self: Any, url: Any) -> Any:
        return ours(self, url)

    try:
        httpx.Client._transport_for_url = foreign  # pyright: ignore[reportPrivateUsage]
        routing.uninstall()
        assert httpx.Client._transport_for_url is foreign  # pyright: ignore[reportPrivateUsage]
        with sink(httpx, reached) as client, open_attempt(attempt_at(gateway)):
            client.post("/chat/completions", json=CHAT)
        routing.install(fail_closed=True)
        with sink(httpx, reached) as client, open_attempt(attempt_at(gateway)):
            client.post("/chat/completions", json=CHAT)
        assert (len(reached), len(gateway.seen)) == (1, 1)
    finally:
        httpx.Client._transport_for_url = ours  # pyright: ignore[reportPrivateUsage]
        routing.uninstall()
    assert httpx.Client._transport_for_url is original  # pyright: ignore[reportPrivateUsage]


def test_threads_share_one_pool_and_a_loop_closes_its_own(gateway: Endpoint, routed: None) -> None:
    """`asyncio.run` for every attempt must leave no socket behind: unclosed ones are errors here."""

    async def call() -> int:
        async with httpx.AsyncClient() as client:
            response = await client.post(f"{PROVIDER}/chat/completions", json=CHAT)
        return response.status_code

    with open_attempt(attempt_at(gateway)):
        assert [asyncio.run(call()) for _ in range(3)] == [200] * 3
    assert not gateway_pool._async  # pyright: ignore[reportPrivateUsage]


def test_neither_library_is_imported_by_routing_and_both_are_routed_when_they_are() -> None:
    script = """
import sys
from leyden.core.tracing.wire import routing
routing.install(fail_closed=True)
assert not {"httpx", "httpx2", "httpcore"} & set(sys.modules)
import httpx, httpx2
for http in (httpx, httpx2):
    try:
        http.post("https://api.provider.invalid/v1/chat/completions", json={})
    except http.ConnectError as error:
        assert "no attempt is open" in str(error), error
    else:
        raise AssertionError
routing.uninstall()
assert "routing" not in httpx.Client._transport_for_url.__module__
"""
    subprocess.run([sys.executable, "-c", script], check=True)
