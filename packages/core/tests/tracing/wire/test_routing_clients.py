"""Clients however they are made: HTTP/2, behind a proxy, pinned, on a loop of their own, shared by many loops."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, set_caller
from leyden.core.tracing.wire import gateway_pool, routing

PROVIDER = "https://api.provider.invalid/v1"
URL = f"{PROVIDER}/chat/completions"
CHAT: dict[str, Any] = {"model": "big", "messages": []}
LIBRARIES = [pytest.param(httpx, id="httpx"), pytest.param(httpx2, id="httpx2")]


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    context_propagation.install()
    routing.install(fail_closed=True)
    yield
    routing.uninstall()
    context_propagation.uninstall()


def attempt_at(gateway: Endpoint, number: int = 0) -> OpenAttempt:
    return factories.attempt(gateway.url, attempt_id=f"at-{number}", token=f"t{number}")


def tokens(gateway: Endpoint) -> list[str]:
    return sorted(call["headers"][semconv.HEADER_ATTEMPT] for call in gateway.seen)


@pytest.mark.parametrize("http", LIBRARIES)
@pytest.mark.parametrize(
    "options",
    [
        {"http2": True},
        {"http1": False, "http2": True},
        {"proxy": "http://user:secret@127.0.0.1:9"},
        {"http2": True, "proxy": "http://127.0.0.1:9"},
        {"base_url": PROVIDER},
    ],
    ids=str,
)
async def test_httpx_clients_of_every_make(http: Any, options: dict[str, Any], gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        with http.Client(**options) as client:
            assert str(client.post(URL, json=CHAT).url) == URL
        async with http.AsyncClient(**options) as client:
            assert str((await client.post(URL, json=CHAT)).url) == URL
    assert tokens(gateway) == ["t0", "t0"]
    assert "secret" not in str(gateway.seen)
    await gateway_pool.aclose()


@pytest.mark.parametrize("http", LIBRARIES)
def test_proxies_of_the_environment_take_no_part(http: Any, gateway: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with open_attempt(attempt_at(gateway)), http.Client() as client:
        assert client.post(URL, json=CHAT).status_code == 200


def test_clients_of_a_module_work_for_many_loops_and_attempts_in_threads(gateway: Endpoint) -> None:
    """One async client for all: its own connections would be bound to the loop that it was first used on."""
    async_client, client, session = httpx.AsyncClient(), httpx.Client(), requests.Session()

    async def call() -> None:
        await async_client.post(URL, json=CHAT)
        async with aiohttp.ClientSession() as own, own.post(URL, json=CHAT) as response:
            await response.read()

    def work(number: int) -> None:
        with open_attempt(attempt_at(gateway, number)):
            set_caller(Caller(agent=f"agent {number}"))
            asyncio.run(call())
            client.post(URL, json=CHAT)
            session.post(URL, json=CHAT)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    session.close()
    asyncio.run(async_client.aclose())
    assert tokens(gateway) == [f"t{number}" for number in range(8) for _ in range(4)]
    for call_seen in gateway.seen:
        number = call_seen["headers"][semconv.HEADER_ATTEMPT][1:]
        assert call_seen["headers"][semconv.HEADER_AGENT] == f"agent%20{number}"
    assert not gateway_pool._async  # pyright: ignore[reportPrivateUsage]


def test_a_loop_in_a_thread_of_its_own_works_for_whoever_sends_it_work(gateway: Endpoint) -> None:
    """As libraries do that offer sync methods over an async client."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def call() -> int:
        async with httpx.AsyncClient() as client:
            return (await client.post(URL, json=CHAT)).status_code

    try:
        for number in range(3):
            with open_attempt(attempt_at(gateway, number)):
                assert asyncio.run_coroutine_threadsafe(call(), loop).result(10) == 200
        asyncio.run_coroutine_threadsafe(gateway_pool.aclose(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert tokens(gateway) == ["t0", "t1", "t2"]
    assert len(gateway.connections) == 1
