import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.util import Retry

from leyden.core.data import semconv
from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.testing.servers.http_handler import served
from leyden.core.tracing.context import Caller, OpenAttempt, open_attempt, outside_attempt, set_caller
from leyden.core.tracing.wire import routing

PROVIDER = "https://api.provider.invalid/v1"
URL = f"{PROVIDER}/chat/completions"
CHAT = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


def attempt_at(gateway: Endpoint) -> OpenAttempt:
    return factories.attempt(gateway.url, token="t/0")


class Sink(BaseAdapter):
    """A provider that is a list; no `HTTPAdapter`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[requests.PreparedRequest] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        self.seen.append(request)
        response = requests.Response()
        response.status_code, response.url = 200, str(request.url)
        return response

    def close(self) -> None:
        """Nothing is open."""


def test_a_call_goes_to_the_gateway_and_the_agent_sees_its_provider(gateway: Endpoint) -> None:
    headers = {"Authorization": "Bearer sk-secret", "api-key": "sk-secret", "X-Stainless-Retry-Count": "1"}
    with requests.Session() as session, open_attempt(attempt_at(gateway)):
        session.auth = ("user", "sk-secret")
        session.cookies.set("session", "sk-secret")
        session.params = {"key": "sk-secret"}
        set_caller(Caller(agent="Löser", trace_id="cd" * 16))
        response = session.post(URL, json=CHAT, headers=headers, proxies={"https": "http://u:sk-secret@127.0.0.1:9"})
    assert response.json() == {"path": "/v1/chat/completions"}
    assert response.url == response.request.url == f"{URL}?key=sk-secret"
    assert response.request.headers["api-key"] == "sk-secret"
    assert response.history == []
    [call] = gateway.seen
    assert json.loads(call["body"]) == CHAT
    assert "sk-secret" not in str(call)
    assert call["headers"]["x-stainless-retry-count"] == "1"
    assert call["headers"]["host"] == gateway.url.removeprefix("http://")
    ours = {name: value for name, value in call["headers"].items() if name.startswith(semconv.HEADER_PREFIX)}
    assert ours == {
        semconv.HEADER_ATTEMPT: "t%2F0",
        semconv.HEADER_AGENT: "L%C3%B6ser",
        semconv.HEADER_TRACE: "cd" * 16,
    }


def test_a_proxy_and_passwords_of_the_environment_take_no_part(
    gateway: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "netrc").write_text("machine api.provider.invalid login me password sk-secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with open_attempt(attempt_at(gateway)):
        response = requests.post(URL, json=CHAT, timeout=5)
    assert response.ok
    assert str(response.request.headers["authorization"]).startswith("Basic ")
    assert "authorization" not in gateway.seen[0]["headers"]


def test_streams_pass_both_ways_as_they_come(gateway: Endpoint) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"stream"'
        yield b": true}"

    with open_attempt(attempt_at(gateway)), requests.post(URL, data=body(), stream=True) as response:
        lines = response.iter_lines(chunk_size=1)
        assert next(lines) == b"data: 1"
        assert not gateway.go.is_set()  # the second half does not exist yet
        gateway.go.set()
        assert [line for line in lines if line] == [b"data: 2"]
    assert gateway.seen[0]["body"] == b'{"stream": true}'


def test_connections_are_kept_and_time_outs_are_the_agents(gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        for _ in range(3):
            assert requests.post(URL, json=CHAT).ok
        with pytest.raises(requests.exceptions.ReadTimeout) as failure:
            requests.post(URL, json={"slow": 1}, timeout=(5, 0.1))
    assert len(gateway.connections) == 1
    assert failure.value.request is not None
    assert failure.value.request.url == URL


def test_hooks_and_an_adapter_of_the_agents_own_are_left_as_they_are(gateway: Endpoint) -> None:
    heard: list[str] = []

    def hear(response: requests.Response, **_: Any) -> None:
        heard.append(response.url)

    sink = Sink()
    with requests.Session() as session, open_attempt(attempt_at(gateway)):
        session.mount(PROVIDER, sink)
        adapter: Any = session.get_adapter(URL)
        assert isinstance(adapter, Sink)
        assert adapter.seen is sink.seen
        session.hooks["response"].append(hear)
        response = session.post(URL, json=CHAT)
        assert not sink.seen
        session.post(f"{PROVIDER}/embeddings", json=CHAT, headers={"authorization": "Bearer sk"})
    assert response.json() == {"path": "/v1/chat/completions"}
    assert heard == [URL, f"{PROVIDER}/embeddings"]
    assert [request.headers["authorization"] for request in sink.seen] == ["Bearer sk"]
    assert response.connection is sink  # what digest authentication sends again through


class Retrying(HTTPAdapter):
    """As users write them: something more around `send`."""

    def send(self, request: Any, *args: Any, **kwargs: Any) -> requests.Response:
        request.headers["x-tries"] = "1"
        return super().send(request, *args, **kwargs)


def test_an_adapter_used_without_a_session_is_routed(gateway: Endpoint) -> None:
    request = requests.Request("POST", URL, json=CHAT).prepare()
    with open_attempt(attempt_at(gateway)):
        for adapter in (HTTPAdapter(), Retrying()):
            assert adapter.send(request, False, 5).json() == {"path": "/v1/chat/completions"}
            adapter.close()
    assert len(gateway.seen) == 2


@pytest.mark.parametrize("through", ["session", "adapter"])
def test_a_mounted_adapter_tries_again_as_its_user_says(through: str) -> None:
    """Until the gateway takes the call; and with no more tries than that, the agent gets its library's error."""
    answered: list[int] = []

    class Busy(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answered.append(503 if len(answered) % 3 < 2 else 200)
            self.send_response(answered[-1])
            self.send_header("content-length", "0")
            self.end_headers()

    def post(retries: int) -> requests.Response:
        waits = Retry(retries, backoff_factor=0, status_forcelist=[503], allowed_methods=None)
        adapter = HTTPAdapter(max_retries=waits)
        if through == "adapter":
            return adapter.send(requests.Request("POST", URL, json=CHAT).prepare(), timeout=5)
        with requests.Session() as session:
            session.mount("https://", adapter)
            return session.post(URL, json=CHAT, timeout=5)

    with served(Busy) as url, open_attempt(factories.attempt(url, token="t/0")):
        assert post(2).status_code == 200
        assert answered == [503, 503, 200]
        with pytest.raises(requests.exceptions.RetryError) as failure:
            post(1)
        assert answered[3:] == [503, 503]
    assert failure.value.request is not None
    assert failure.value.request.url == URL


def test_what_has_no_attempt_fails_as_a_connection_error(gateway: Endpoint) -> None:
    sink, errors = Sink(), list[BaseException]()
    attempt = attempt_at(gateway)

    def left_over() -> None:
        with open_attempt(attempt):
            attempt.closed.set()
            try:
                session.post(URL, json=CHAT)
            except requests.ConnectionError as error:
                errors.append(error)

    with requests.Session() as session:
        session.mount(PROVIDER, sink)
        with pytest.raises(requests.exceptions.ConnectionError, match="no attempt is open") as failure:
            session.post(URL, json=CHAT)
        assert failure.value.request is not None
        assert failure.value.request.url == URL
        thread = threading.Thread(target=left_over)
        thread.start()
        thread.join()
        assert "closed" in str(errors[0])
        assert not sink.seen
        with outside_attempt():
            assert session.post(URL, json=CHAT).ok
    assert len(sink.seen) == 1


def test_a_gateway_that_is_down_is_a_connection_error_about_the_agents_own_request() -> None:
    down = factories.attempt()
    with open_attempt(down), pytest.raises(requests.exceptions.ConnectionError) as failure:
        requests.post(URL, json=CHAT)
    assert failure.value.request is not None
    assert failure.value.request.url == URL


def test_a_call_to_the_gateway_keeps_its_path_and_is_told_who_speaks(gateway: Endpoint) -> None:
    with open_attempt(attempt_at(gateway)):
        set_caller(Caller(agent="solver"))
        requests.post(f"{gateway.url}/a/some-token/v1/chat/completions", json=CHAT)
        requests.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers={semconv.HEADER_ATTEMPT: "other"})
    assert [call["path"] for call in gateway.seen] == ["/a/some-token/v1/chat/completions", "/v1/chat/completions"]
    assert [call["headers"].get(semconv.HEADER_AGENT) for call in gateway.seen] == ["solver", None]


def test_uninstall_undoes_install_exactly() -> None:
    routing.uninstall()
    before = requests.Session.__dict__["get_adapter"], HTTPAdapter.__dict__["send"]
    routing.install()
    assert requests.Session.__dict__["get_adapter"] is not before[0]
    routing.uninstall()
    assert (requests.Session.__dict__["get_adapter"], HTTPAdapter.__dict__["send"]) == before


def test_requests_is_not_imported_by_routing_and_is_routed_when_it_is() -> None:
    script = """
import sys
from leyden.core.tracing.wire import routing
routing.install(fail_closed=True)
assert not {"requests", "aiohttp", "httpx"} & set(sys.modules)
import requests
try:
    requests.post("https://api.provider.invalid/v1/chat/completions", json={})
except requests.exceptions.ConnectionError as error:
    assert "no attempt is open" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)
