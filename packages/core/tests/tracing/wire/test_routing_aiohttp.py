import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, outside_attempt, set_caller
from leyden.core.tracing.wire import gateway_pool, routing

PROVIDER = "https://api.provider.invalid/v1"
URL = f"{PROVIDER}/chat/completions"
CHAT = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
async def routed() -> AsyncIterator[None]:
    routing.install(fail_closed=True)
    yield
    await gateway_pool.aclose()
    routing.uninstall()


def attempt_at(gateway: Endpoint) -> OpenAttempt:
    return factories.attempt(gateway.url, token="t/0")


async def test_a_call_goes_to_the_gateway_and_the_agent_sees_its_provider(gateway: Endpoint) -> None:
    headers = {"api-key": "sk-secret", "X-Stainless-Retry-Count": "1", "User-Agent": "agent/1"}
    auth = {"Authorization": "Bearer sk-secret"}
    async with aiohttp.ClientSession(
        base_url=f"{PROVIDER}/", headers=auth, cookies={"session": "sk-secret"}, raise_for_status=True
    ) as session:
        with open_attempt(attempt_at(gateway)):
            set_caller(Caller(agent="Löser", trace_id="cd" * 16))
            response = await session.post("chat/completions", json=CHAT, headers=headers, params={"key": "sk-secret"})
            assert await response.json() == {"path": "/v1/chat/completions"}
    assert str(response.url) == str(response.real_url) == f"{URL}?key=sk-secret"
    assert str(response.request_info.url) == f"{URL}?key=sk-secret"
    assert response.request_info.headers["authorization"] == "Bearer sk-secret"
    assert response.history == ()
    [call] = gateway.seen
    assert json.loads(call["body"]) == CHAT
    assert "sk-secret" not in str(call)
    assert call["headers"]["x-stainless-retry-count"] == "1"
    assert call["headers"]["user-agent"] == "agent/1"
    assert call["headers"]["content-type"] == "application/json"
    assert call["headers"]["host"] == gateway.url.removeprefix("http://")
    ours = {name: value for name, value in call["headers"].items() if name.startswith(semconv.HEADER_PREFIX)}
    assert ours == {
        semconv.HEADER_ATTEMPT: "t%2F0",
        semconv.HEADER_AGENT: "L%C3%B6ser",
        semconv.HEADER_TRACE: "cd" * 16,
    }


async def test_a_proxy_and_passwords_of_the_environment_take_no_part(
    gateway: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "netrc").write_text("machine api.provider.invalid login me password sk-secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with aiohttp.ClientSession(trust_env=True) as session:
        with open_attempt(attempt_at(gateway)):
            async with session.post(URL, json=CHAT) as response:
                assert response.request_info.headers["authorization"].startswith("Basic ")
                await response.read()
    async with aiohttp.ClientSession(proxy="http://127.0.0.1:9") as session:
        with open_attempt(attempt_at(gateway)):
            async with session.post(URL, json=CHAT) as response:
                assert response.status == 200
                await response.read()
    assert ["authorization" in call["headers"] for call in gateway.seen] == [False, False]


async def test_streams_pass_both_ways_as_they_come(gateway: Endpoint) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"stream"'
        yield b": true}"

    async with aiohttp.ClientSession() as session:
        with open_attempt(attempt_at(gateway)):
            async with session.post(URL, data=body()) as response:
                chunks = response.content.iter_any()
                assert await anext(chunks) == b"data: 1\n\n"
                assert not gateway.go.is_set()  # the second half does not exist yet
                gateway.go.set()
                assert [chunk async for chunk in chunks] == [b"data: 2\n\n"]
            half = await session.post(URL, data=b'{"stream": 1}')
            half.close()
            async with session.post(URL, json=CHAT) as again:
                assert again.status == 200
    assert gateway.seen[0]["body"] == b'{"stream": true}'


async def test_a_compressed_body_arrives_as_it_was_sent(gateway: Endpoint) -> None:
    async with aiohttp.ClientSession() as session:
        with open_attempt(attempt_at(gateway)):
            async with session.post(URL, json=CHAT, compress="deflate") as response:
                assert response.status == 200
                await response.read()
    assert gateway.seen[0]["headers"]["content-encoding"] == "deflate"
    assert gateway.seen[0]["body"] != json.dumps(CHAT).encode()


async def test_connections_are_kept_and_the_agents_limits_hold_nothing_back(gateway: Endpoint) -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        with open_attempt(attempt_at(gateway)):
            for _ in range(3):
                async with session.post(URL, json=CHAT) as response:
                    await response.read()
            assert len(gateway.connections) == 1
            calls = [asyncio.create_task(session.post(URL, json={"slow": 1})) for _ in range(4)]
            while len(gateway.seen) < 7:
                await asyncio.sleep(0.005)
            gateway.go.set()
            for response in await asyncio.gather(*calls):
                assert response.status == 200
                await response.read()
                await response.read()


async def test_time_outs_are_the_agents(gateway: Endpoint) -> None:
    for timeout in (aiohttp.ClientTimeout(total=0.1), aiohttp.ClientTimeout(sock_read=0.1)):
        async with aiohttp.ClientSession() as session:
            with open_attempt(attempt_at(gateway)), pytest.raises(asyncio.TimeoutError):
                await session.post(URL, json={"slow": 1}, timeout=timeout)


async def test_middlewares_and_traces_see_the_agents_request(gateway: Endpoint) -> None:
    heard: list[str] = []

    async def middleware(request: aiohttp.ClientRequest, handler: Any) -> aiohttp.ClientResponse:
        heard.append(str(request.url))
        response = await handler(request)
        heard.append(str(response.url))
        return response

    trace = aiohttp.TraceConfig()

    async def ended(_: Any, __: Any, params: aiohttp.TraceRequestEndParams) -> None:
        heard.append(str(params.response.url))

    trace.on_request_end.append(ended)
    async with aiohttp.ClientSession(middlewares=(middleware,), trace_configs=[trace]) as session:
        with open_attempt(attempt_at(gateway)):
            async with session.post(URL, json=CHAT) as response:
                assert response.status == 200
                await response.read()
    assert heard == [URL] * 3
    assert len(gateway.seen) == 1


async def test_a_raise_for_status_of_the_agents_is_about_its_own_url(gateway: Endpoint) -> None:
    async def refuse(response: aiohttp.ClientResponse) -> None:
        raise LookupError(str(response.url))

    async with aiohttp.ClientSession(raise_for_status=refuse) as session:
        with open_attempt(attempt_at(gateway)), pytest.raises(LookupError, match=URL):
            await session.post(URL, json=CHAT)


async def test_what_has_no_attempt_fails_as_a_connection_error(gateway: Endpoint) -> None:
    reached: list[str] = []

    async def provider(request: web.Request) -> web.Response:
        reached.append(request.headers["authorization"])
        return web.Response()

    runner = web.AppRunner(app := web.Application())
    app.router.add_post("/{path:.*}", provider)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    attempt = attempt_at(gateway)
    async with aiohttp.ClientSession(headers={"authorization": "Bearer sk"}) as session:
        with pytest.raises(aiohttp.ClientConnectionError, match="no attempt is open"):
            await session.post(f"{url}/chat/completions", json=CHAT)
        with open_attempt(attempt):
            attempt.closed.set()
            with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
                await session.post(f"{url}/chat/completions", json=CHAT)
            assert not reached
            async with session.post(f"{url}/embeddings", json=CHAT) as response:
                assert response.status == 200
                await response.read()
        with outside_attempt():
            async with session.post(f"{url}/chat/completions", json=CHAT) as response:
                assert response.status == 200
                await response.read()
        with open_attempt(attempt), pytest.raises(aiohttp.ClientConnectionError, match="over a WebSocket"):
            await session.ws_connect(f"{url}/responses")
    await runner.cleanup()
    assert reached == ["Bearer sk"] * 2
    assert not gateway.seen


async def test_a_gateway_that_is_down_is_a_connection_error_about_the_provider() -> None:
    down = factories.attempt()
    async with aiohttp.ClientSession() as session:
        with open_attempt(down), pytest.raises(aiohttp.ClientConnectorError) as failure:
            await session.post(URL, json=CHAT)
    assert failure.value.host == "api.provider.invalid"


async def test_a_call_to_the_gateway_keeps_its_path_and_is_told_who_speaks(gateway: Endpoint) -> None:
    async with aiohttp.ClientSession() as session:
        with open_attempt(attempt_at(gateway)):
            set_caller(Caller(agent="solver"))
            async with session.post(f"{gateway.url}/a/some-token/v1/chat/completions", json=CHAT) as response:
                await response.read()
            before = {semconv.HEADER_ATTEMPT: "other"}
            async with session.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=before) as response:
                await response.read()
    assert [call["path"] for call in gateway.seen] == ["/a/some-token/v1/chat/completions", "/v1/chat/completions"]
    assert [call["headers"].get(semconv.HEADER_AGENT) for call in gateway.seen] == ["solver", None]


def test_a_loop_closes_its_own_connections(gateway: Endpoint) -> None:
    """`asyncio.run` for every attempt must leave no socket behind: unclosed ones are errors here."""
    routing.install(fail_closed=True)

    async def call() -> int:
        async with aiohttp.ClientSession() as session, session.post(URL, json=CHAT) as response:
            await response.read()
            return response.status

    with open_attempt(attempt_at(gateway)):
        assert [asyncio.run(call()) for _ in range(3)] == [200] * 3
    assert not gateway_pool._async  # pyright: ignore[reportPrivateUsage]


def test_uninstall_undoes_install_exactly() -> None:
    routing.uninstall()
    before = aiohttp.ClientSession.__dict__["_request"]
    routing.install()
    assert aiohttp.ClientSession.__dict__["_request"] is not before
    routing.uninstall()
    assert aiohttp.ClientSession.__dict__["_request"] is before


@pytest.fixture
def overwrapped() -> Iterator[Any]:
    ours: Any = aiohttp.ClientSession.__dict__["_request"]

    async def foreign(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await ours(self, *args, **kwargs)

    aiohttp.ClientSession._request = foreign  # pyright: ignore[reportPrivateUsage]
    yield foreign
    aiohttp.ClientSession._request = ours  # pyright: ignore[reportPrivateUsage]


async def test_a_wrapper_put_over_ours_survives_uninstall(gateway: Endpoint, overwrapped: Any) -> None:
    async with aiohttp.ClientSession() as session:
        with open_attempt(attempt_at(gateway)):
            async with session.post(URL, json=CHAT) as response:
                await response.read()
            await gateway_pool.aclose()
            routing.uninstall()
            assert aiohttp.ClientSession.__dict__["_request"] is overwrapped
            with pytest.raises(aiohttp.ClientConnectorError):  # its provider cannot be found
                await session.post(URL, json=CHAT)
    assert len(gateway.seen) == 1
