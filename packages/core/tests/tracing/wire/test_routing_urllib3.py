"""Routing of urllib3 where it is used by itself."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError, NewConnectionError, ReadTimeoutError

from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.wire import gateway_pool, routing

PATH = "/v1/chat/completions"
URL = f"https://api.provider.invalid{PATH}"
CHAT = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
SECRET = {"authorization": "Bearer sk-secret"}


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


@pytest.fixture
def pools() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager() as pools:
        yield pools


def attempt_at(gateway: str, **more: Any) -> OpenAttempt:
    return factories.attempt(gateway, **more)


def test_a_call_goes_to_the_gateway_without_the_key(pools: urllib3.PoolManager, gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway.url)):
        for _ in range(2):
            response = pools.request("POST", URL, json=CHAT, headers=SECRET)
            assert response.json() == {"path": PATH}
            assert response.geturl() == PATH  # as urllib3 says of any host
    assert [json.loads(call["body"]) for call in gateway.seen] == [CHAT] * 2
    assert "sk-secret" not in str(gateway.seen)
    assert len(gateway.connections) == 1


def test_a_proxy_takes_no_part(gateway: Endpoint) -> None:
    with urllib3.ProxyManager("http://127.0.0.1:9") as pools, open_attempt(attempt_at(gateway.url)):
        for url in (URL, URL.replace("https", "http")):
            assert pools.request("POST", url, json=CHAT).status == 200
    assert len(gateway.seen) == 2


def test_an_answer_is_read_as_it_comes_and_time_outs_are_the_agents(
    pools: urllib3.PoolManager, gateway: Endpoint
) -> None:
    with open_attempt(attempt_at(gateway.url)):
        response = pools.request("POST", URL, body=b'{"stream": true}', preload_content=False)
        assert response.readline() == b"data: 1\n"
        assert not gateway.go.is_set()  # the second half does not exist yet
        gateway.go.set()
        assert response.read() == b"\ndata: 2\n\n"
        response.release_conn()
        gateway.go.clear()
        with pytest.raises(ReadTimeoutError):
            pools.request("POST", URL, json={"slow": 1}, timeout=0.1, retries=False)


@pytest.mark.parametrize("retries", [False, None, 0])
def test_what_has_no_attempt_fails_as_where_no_connection_can_be_made(
    retries: Any, pools: urllib3.PoolManager, provider: Endpoint
) -> None:
    expected = NewConnectionError if retries is False else MaxRetryError
    with pytest.raises(expected, match="no attempt is open"):
        pools.request("POST", f"{provider.url}{PATH}", json=CHAT, retries=retries)
    assert not provider.seen


def test_bedrock_is_stopped(pools: urllib3.PoolManager, gateway: Endpoint, provider: Endpoint) -> None:
    """Where botocore sends, which uses urllib3's pools."""
    with open_attempt(attempt_at(gateway.url)), pytest.raises(MaxRetryError, match="does not support Bedrock"):
        pools.request("POST", f"{provider.url}/model/some.model/converse", json=CHAT)
    assert not provider.seen
    assert not gateway.seen


def test_a_gateway_that_is_down_is_an_error_of_the_agents_own_pool(pools: urllib3.PoolManager) -> None:
    with open_attempt(attempt_at("http://127.0.0.1:9")), pytest.raises(MaxRetryError) as failure:
        pools.request("POST", URL, json=CHAT, retries=0)
    assert failure.value.pool.host == "api.provider.invalid"
    assert failure.value.url == PATH


def test_production_capture_asks_the_provider_instead(
    answering: Callable[..., str], pools: urllib3.PoolManager, provider: Endpoint
) -> None:
    routing.install(fail_closed=False)
    for gateway in ("http://127.0.0.1:9", answering(503)):
        with open_attempt(attempt_at(gateway, fail_open=True)):
            response = pools.request("POST", f"{provider.url}{PATH}", json=CHAT, headers=SECRET, preload_content=False)
            assert json.loads(response.read()) == {"path": PATH}
            response.release_conn()
    assert [call["headers"]["authorization"] for call in provider.seen] == ["Bearer sk-secret"] * 2


def test_uninstall_undoes_install_exactly() -> None:
    gateway_pool.close()
    routing.uninstall()
    before = HTTPConnectionPool.__dict__["urlopen"]
    routing.install()
    assert HTTPConnectionPool.__dict__["urlopen"] is not before
    routing.uninstall()
    assert HTTPConnectionPool.__dict__["urlopen"] is before
