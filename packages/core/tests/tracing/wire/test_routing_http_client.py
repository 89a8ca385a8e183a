"""Routing of `http.client`, by itself and below `urllib`."""

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, outside_attempt, set_caller
from leyden.core.tracing.wire import routing

HOST = "api.provider.invalid"
PATH = "/v1/chat/completions"
URL = f"https://{HOST}{PATH}"
CHAT = json.dumps({"model": "big", "messages": [{"role": "user", "content": "hi"}]})


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


@pytest.fixture
def connection() -> Iterator[http.client.HTTPSConnection]:
    with closing(http.client.HTTPSConnection(HOST, timeout=5)) as connection:
        yield connection


def attempt_at(gateway: Endpoint, **more: Any) -> OpenAttempt:
    return factories.attempt(gateway.url, token="t/0", **more)


def asked(url: str = URL) -> urllib.request.Request:
    headers = {"content-type": "application/json", "authorization": "Bearer sk-secret", "x-stainless-retry-count": "1"}
    return urllib.request.Request(url, CHAT.encode(), headers, method="POST")


def test_a_call_of_urllib_goes_to_the_gateway_without_the_key(gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        set_caller(Caller(agent="Löser"))
        with urllib.request.urlopen(asked(f"{URL}?key=sk-secret"), timeout=5) as response:
            assert json.load(response) == {"path": PATH}
    assert response.url == f"{URL}?key=sk-secret"
    [call] = gateway.seen
    assert call["body"].decode() == CHAT
    assert "sk-secret" not in str(call)
    assert call["headers"]["x-stainless-retry-count"] == "1"
    assert call["headers"]["host"] == gateway.url.removeprefix("http://")
    ours = {name: value for name, value in call["headers"].items() if name.startswith(semconv.HEADER_PREFIX)}
    assert (ours[semconv.HEADER_ATTEMPT], ours[semconv.HEADER_AGENT]) == ("t%2F0", "L%C3%B6ser")


def test_a_proxy_of_the_environment_takes_no_part(gateway: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # urllib reads the environment once in a process, for its first request: that is this one, for this test only.
    monkeypatch.setattr(urllib.request, "_opener", None)
    with open_attempt(attempt_at(gateway)):
        for url in (URL, f"http://{HOST}{PATH}"):
            with urllib.request.urlopen(asked(url), timeout=5) as response:
                assert response.status == 200
    assert len(gateway.seen) == 2


def test_connections_are_kept_for_the_calls_of_one_connection(
    connection: http.client.HTTPSConnection, gateway: Endpoint
) -> None:
    with open_attempt(attempt_at(gateway)):
        for _ in range(3):
            connection.request("POST", PATH, CHAT, {"authorization": "Bearer sk-secret"})
            assert connection.getresponse().read() == json.dumps({"path": PATH}).encode()
    assert connection.sock is None  # its own host was never looked up
    assert len(gateway.connections) == 1


def test_a_request_made_in_pieces_is_routed(connection: http.client.HTTPSConnection, gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        connection.putrequest("POST", PATH)
        connection.putheader("authorization", "Bearer sk-secret")
        connection.putheader("content-length", str(len(CHAT)))
        connection.endheaders()
        connection.send(CHAT.encode())
        assert connection.getresponse().status == 200
    assert gateway.seen[0]["body"].decode() == CHAT
    assert "sk-secret" not in str(gateway.seen)


def test_streams_pass_both_ways_as_they_come(connection: http.client.HTTPSConnection, gateway: Endpoint) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"stream"'
        yield b": true}"

    with open_attempt(attempt_at(gateway)):
        connection.request("POST", PATH, body(), {"transfer-encoding": "chunked"}, encode_chunked=True)
        response = connection.getresponse()
        assert response.readline() == b"data: 1\n"
        assert not gateway.go.is_set()  # the second half does not exist yet
        gateway.go.set()
        assert response.read() == b"\ndata: 2\n\n"
    assert gateway.seen[0]["body"] == b'{"stream": true}'


def test_one_connection_serves_routed_calls_and_others(gateway: Endpoint, provider: Endpoint) -> None:
    where = provider.url.removeprefix("http://")
    with closing(http.client.HTTPConnection(where)) as connection, open_attempt(attempt_at(gateway)):
        for path in (PATH, "/v1/embeddings", PATH):
            connection.request("POST", path, CHAT, {"authorization": "Bearer sk"})
            assert json.loads(connection.getresponse().read()) == {"path": path}
    assert [call["path"] for call in gateway.seen] == [PATH, PATH]
    [embeddings] = provider.seen
    assert embeddings["headers"]["authorization"] == "Bearer sk"


def test_what_has_no_attempt_fails_as_a_connection_error(gateway: Endpoint, provider: Endpoint) -> None:
    errors: list[BaseException] = []
    attempt = attempt_at(gateway)

    def left_over() -> None:
        with open_attempt(attempt):
            attempt.closed.set()
            try:
                urllib.request.urlopen(asked(f"{provider.url}{PATH}"))
            except urllib.error.URLError as error:
                errors.append(error)

    with pytest.raises(urllib.error.URLError, match="no attempt is open"):
        urllib.request.urlopen(asked(f"{provider.url}{PATH}"))
    thread = threading.Thread(target=left_over)
    thread.start()
    thread.join()
    assert "closed" in str(errors[0])
    own = http.client.HTTPConnection(provider.url.removeprefix("http://"))
    with closing(own), pytest.raises(ConnectionRefusedError, match="no attempt is open"):
        own.request("POST", PATH, CHAT)
    assert not provider.seen
    with outside_attempt(), urllib.request.urlopen(asked(f"{provider.url}{PATH}")) as response:
        assert response.status == 200
    assert len(provider.seen) == 1


def test_a_dialect_that_the_gateway_does_not_speak_is_stopped(gateway: Endpoint, provider: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)), pytest.raises(urllib.error.URLError, match="does not support"):
        urllib.request.urlopen(asked(f"{provider.url}/model/some-model/invoke"))
    assert not provider.seen
    assert not gateway.seen


def test_production_capture_sends_the_whole_request_on(
    answering: Callable[..., str], connection: http.client.HTTPSConnection, provider: Endpoint
) -> None:
    routing.install(fail_closed=False)
    where = provider.url.removeprefix("http://")
    refusing = factories.attempt(answering(503), fail_open=True)
    with closing(http.client.HTTPConnection(where)) as own, open_attempt(refusing):
        for _ in range(2):
            own.request("POST", PATH, CHAT, {"authorization": "Bearer sk"})
            assert json.loads(own.getresponse().read()) == {"path": PATH}
    assert [(call["headers"]["authorization"], call["body"].decode()) for call in provider.seen] == [
        ("Bearer sk", CHAT)
    ] * 2


def test_uninstall_undoes_install_exactly() -> None:
    routing.uninstall()
    kind = http.client.HTTPConnection
    before = dict(vars(kind))
    routing.install()
    assert vars(kind)["request"] is not before["request"]
    routing.uninstall()
    assert dict(vars(kind)) == before
