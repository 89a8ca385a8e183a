"""What every library's routing does alike: routes, stored answers, redirects, production capture, layers."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest

from leyden.core.data import semconv
from leyden.core.data.route import Route
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, set_caller
from leyden.core.tracing.wire import gateway_pool, routing

CHAT: dict[str, Any] = {"model": "big", "messages": []}
Send = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


def attempt_at(gateway: str, **more: Any) -> OpenAttempt:
    return factories.attempt(gateway, **more)


def test_routes_choose_a_policy_or_the_provider(send: Send, gateway: Endpoint, provider: Endpoint) -> None:
    routes = (
        Route(agent="judge", to="provider"),
        Route(path="*/messages", to="provider"),
        Route(model="big*", to="large"),
        Route(host="127.0.0.?", agent="planner", to="planning"),
    )
    chat, key = f"{provider.url}/v1/chat/completions", {"authorization": "Bearer sk"}
    with open_attempt(attempt_at(gateway.url, routes=routes)):
        assert send("POST", f"{provider.url}/v1/messages", CHAT, key)[0] == 200
        send("POST", chat, {"model": "big-2"}, key)
        send("POST", f"{provider.url}/openai/deployments/big-3/chat/completions?api-version=1", {}, key)
        set_caller(Caller(agent="judge"))
        send("POST", chat, {"model": "small"}, key)
        set_caller(Caller(agent="planner"))
        send("POST", chat, {"model": "small"}, key)
        set_caller(Caller(agent="solver"))
        send("POST", chat, {"model": "small"}, key)
    assert [call["path"] for call in provider.seen] == ["/v1/messages", "/v1/chat/completions"]
    assert [call["headers"]["authorization"] for call in provider.seen] == ["Bearer sk"] * 2
    assert not any(name.startswith(semconv.HEADER_PREFIX) for call in provider.seen for name in call["headers"])
    policies = [call["headers"].get(semconv.HEADER_POLICY) for call in gateway.seen]
    assert policies == ["large", "large", "planning", None]


def test_routes_choose_a_policy_also_for_a_client_that_has_the_gateways_own_url(send: Send, gateway: Endpoint) -> None:
    """Such a client has no provider, so routes to it are passed over."""
    routes = (Route(agent="planner", to="provider"), Route(model="big*", to="large"), Route(agent="planner", to="plan"))
    with open_attempt(attempt_at(gateway.url, routes=routes)):
        url = f"{gateway.url}/a/token/v1/chat/completions"
        for agent, model in (("planner", "big-2"), ("planner", "small"), ("solver", "small")):
            set_caller(Caller(agent=agent))
            assert send("POST", url, {"model": model}, {})[0] == 200
    assert [call["path"] for call in gateway.seen] == ["/a/token/v1/chat/completions"] * 3
    assert [call["headers"].get(semconv.HEADER_POLICY) for call in gateway.seen] == ["large", "plan", None]


def test_stored_answers_are_the_gateways_and_its_query_is_kept(send: Send, gateway: Endpoint) -> None:
    base = "https://api.provider.invalid/openai/v1/responses"
    with open_attempt(attempt_at(gateway.url)):
        send("POST", base, {"model": "big", "input": "hi"})
        where = send("GET", f"{base}/resp_1/input_items?limit=2&order=asc&key=sk-secret")[1]
    assert where == f"{base}/resp_1/input_items?limit=2&order=asc&key=sk-secret"
    assert [call["path"] for call in gateway.seen] == [
        "/v1/responses",
        "/v1/responses/resp_1/input_items?limit=2&order=asc",
    ]
    assert gateway.seen[1]["headers"][semconv.HEADER_ATTEMPT] == "t"


@pytest.mark.parametrize("status", [302, 401, 404, 429, 503])
def test_production_capture_asks_the_provider_what_the_gateway_refuses(
    status: int, send: Send, answering: Callable[..., str], provider: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = answering(status, "http://127.0.0.1:9/" if status == 302 else "")
    with open_attempt(attempt_at(gateway, fail_open=True)), caplog.at_level(logging.WARNING):
        answer = send("POST", f"{provider.url}/v1/chat/completions", CHAT, {"authorization": "Bearer sk"})
    assert answer == (200, f"{provider.url}/v1/chat/completions")
    [call] = provider.seen
    assert call["headers"]["authorization"] == "Bearer sk"
    assert json.loads(call["body"]) == CHAT
    assert [record.getMessage() for record in caplog.records if record.name == "leyden.routing"] == [
        f"A model call to 127.0.0.1 (/chat/completions) went to its provider: the gateway answered {status}"
    ]


def test_the_log_says_why_the_gateway_did_not_take_a_call_once_for_each_kind(
    send: Send, answering: Callable[..., str], provider: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    def refusal(value: str) -> bytes:
        message = f"Unsupported parameter: 'top_k' is not\navailable with the value {value}."
        return json.dumps({"error": {"message": message, "code": "unsupported_parameter", "param": "top_k"}}).encode()

    with caplog.at_level(logging.WARNING, "leyden.routing"):
        for content in (refusal("1"), refusal("2"), b"not JSON", b""):
            with open_attempt(attempt_at(answering(400, content=content), fail_open=True)):
                assert send("POST", f"{provider.url}/v1/chat/completions", CHAT)[0] == 200
    went = "A model call to 127.0.0.1 (/chat/completions) went to its provider: the gateway answered 400"
    assert [record.getMessage() for record in caplog.records] == [
        f"{went}: Unsupported parameter: 'top_k' is not available with the value 1.",
        went,
    ]


def test_production_capture_never_stands_in_the_way(send: Send, gateway: Endpoint, provider: Endpoint) -> None:
    routing.install(fail_closed=False)
    down = attempt_at("http://127.0.0.1:9", fail_open=True)
    with open_attempt(down):
        assert send("POST", f"{provider.url}/v1/chat/completions", CHAT)[0] == 200  # the gateway is down
        assert send("POST", f"{provider.url}/v1/completions", CHAT)[0] == 200  # it does not speak this
        down.closed.set()
        assert send("POST", f"{provider.url}/v1/chat/completions", CHAT)[0] == 200  # the rollout is over
    assert len(provider.seen) == 3
    with open_attempt(attempt_at(gateway.url, fail_open=True)):
        assert send("POST", f"{provider.url}/v1/chat/completions", CHAT)[0] == 200
    assert (len(provider.seen), len(gateway.seen)) == (3, 1)


async def test_production_capture_sends_a_body_of_one_reading_on_if_nothing_was_sent_yet(provider: Endpoint) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(CHAT).encode()

    url = f"{provider.url}/v1/chat/completions"
    with open_attempt(attempt_at("http://127.0.0.1:9", fail_open=True)):
        async with httpx.AsyncClient() as client:
            assert (await client.post(url, content=body())).status_code == 200
        async with aiohttp.ClientSession() as session, session.post(url, data=body()) as response:
            assert response.status == 200
    assert [json.loads(call["body"]) for call in provider.seen] == [CHAT] * 2
    await gateway_pool.aclose()


async def test_production_capture_hands_out_a_refusal_it_cannot_repeat(
    answering: Callable[..., str], provider: Endpoint
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(CHAT).encode()

    with open_attempt(attempt_at(answering(503), fail_open=True)):
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{provider.url}/v1/chat/completions", content=body())
    assert answer.status_code == 503
    assert not provider.seen
    await gateway_pool.aclose()


class OverAiohttp(httpx.AsyncBaseTransport):
    """An httpx transport that sends with aiohttp, as LiteLLM has one."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with aiohttp.ClientSession() as session:
            headers = {name: value for name, value in request.headers.items() if name != "content-length"}
            async with session.request(request.method, str(request.url), headers=headers, data=request.content) as sent:
                return httpx.Response(sent.status, content=await sent.read())


async def test_layered_libraries_are_routed_once(
    gateway: Endpoint, provider: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{provider.url}/v1/chat/completions"
    async with httpx.AsyncClient(transport=OverAiohttp()) as client:
        with open_attempt(attempt_at(gateway.url)):
            assert (await client.post(url, json=CHAT)).status_code == 200
        assert len(gateway.seen) == 1
        with open_attempt(attempt_at(gateway.url, routes=(Route(to="provider"),))):
            assert (await client.post(url, json=CHAT)).status_code == 200
        assert (len(gateway.seen), len(provider.seen)) == (1, 1)
        with open_attempt(attempt_at("http://127.0.0.1:9", fail_open=True)), caplog.at_level(logging.DEBUG):
            assert (await client.post(url, json=CHAT)).status_code == 200
    assert (len(gateway.seen), len(provider.seen)) == (1, 2)
    assert (
        len([record for record in caplog.records if record.name == "leyden.routing"]) == 1
    )  # the second layer is told
    await gateway_pool.aclose()


async def test_what_is_sent_below_a_call_on_its_way_to_a_provider_is_routed_on_its_own(
    gateway: Endpoint, provider: Endpoint
) -> None:
    """A transport may ask a model itself, a guard for example: that is another call."""

    class Guarded(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            url = "https://guard.invalid/v1/chat/completions"
            async with aiohttp.ClientSession() as session, session.post(url, json=CHAT) as guard:
                await guard.read()
            return httpx.Response(200)

    routes = (Route(host="127.0.0.1", to="provider"),)
    async with httpx.AsyncClient(transport=Guarded()) as client:
        with open_attempt(attempt_at(gateway.url, routes=routes)):
            await client.post(f"{provider.url}/v1/chat/completions", json=CHAT)
    assert len(gateway.seen) == 1
    await gateway_pool.aclose()
