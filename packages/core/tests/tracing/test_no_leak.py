"""No model call leaves a runner for a provider: a sink in the provider's place sees nothing, whatever goes wrong."""

import _thread
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from leyden.core.testing import factories
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing import context_propagation
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.wire import routing

CHAT: dict[str, Any] = {"model": "big", "messages": []}
KEY = {"authorization": "Bearer sk-secret"}
NOBODY = "http://127.0.0.1:9"
Send = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def runner() -> Iterator[None]:
    context_propagation.install()
    routing.install(fail_closed=True)
    yield
    routing.uninstall()
    context_propagation.uninstall()


def attempt_at(gateway: str) -> OpenAttempt:
    return factories.attempt(gateway)


def outcome(send: Send, provider: Endpoint) -> int | Exception:
    try:
        return send("POST", f"{provider.url}/v1/chat/completions", CHAT, KEY)[0]
    except Exception as error:
        return error


def test_nor_when_the_gateway_is_down(send: Send, provider: Endpoint, refusals: Any) -> None:
    with open_attempt(attempt_at(NOBODY)):
        assert isinstance(outcome(send, provider), refusals)
    assert not provider.seen


def test_nor_when_the_attempt_is_closed(send: Send, gateway: Endpoint, provider: Endpoint, refusals: Any) -> None:
    attempt = attempt_at(gateway.url)
    with open_attempt(attempt):
        assert outcome(send, provider) == 200
        attempt.closed.set()
        assert isinstance(outcome(send, provider), refusals)
    assert (len(provider.seen), len(gateway.seen)) == (0, 1)


def test_nor_when_no_attempt_was_ever_open(send: Send, provider: Endpoint, refusals: Any) -> None:
    assert isinstance(outcome(send, provider), refusals)
    assert not provider.seen


def test_nor_from_a_thread_that_lost_its_context(
    send: Send, gateway: Endpoint, provider: Endpoint, refusals: Any
) -> None:
    outcomes, work = queue.Queue[Any](), queue.Queue[Any]()

    def serve() -> None:
        outcomes.put(work.get()())

    made_before = threading.Thread(target=serve)
    made_before.start()
    with open_attempt(attempt_at(gateway.url)):
        work.put(lambda: outcome(send, provider))
        assert isinstance(outcomes.get(timeout=10), refusals)
        _thread.start_new_thread(lambda: outcomes.put(outcome(send, provider)), ())
        assert isinstance(outcomes.get(timeout=10), refusals)
    made_before.join()
    assert not provider.seen
    assert not gateway.seen


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nor_when_the_gateway_answers_with_a_redirect(
    status: int, send: Send, answering: Callable[..., str], provider: Endpoint, refusals: Any
) -> None:
    for path in ("/v1/chat/completions", "/v1/files"):
        with open_attempt(attempt_at(answering(status, f"{provider.url}{path}"))):
            stopped = outcome(send, provider)
        assert isinstance(stopped, refusals)
        assert "answered with a redirect" in str(stopped)
    assert not provider.seen


@pytest.mark.parametrize(
    "path",
    [
        "/v1/threads/t/messages",
        "/v1/agents/completions",
        "/v1/fim/completions",
        "/v2/chat",
        "/api/generate",
        "/v1beta/models/gemini:generateContent",
        "/v1/projects/p/publishers/anthropic/models/claude:streamRawPredict",
        "/model/anthropic.claude/invoke-with-response-stream",
        "/model/anthropic.claude/converse",
    ],
)
def test_nor_in_a_dialect_that_the_gateway_does_not_speak(
    path: str, send: Send, gateway: Endpoint, provider: Endpoint, refusals: Any
) -> None:
    with open_attempt(attempt_at(gateway.url)), pytest.raises(refusals, match="does not support"):
        send("POST", f"{provider.url}{path}", CHAT, KEY)
    assert not provider.seen
    assert not gateway.seen


def test_nor_from_a_client_that_is_older_than_routing(gateway: Endpoint, provider: Endpoint) -> None:
    routing.uninstall()
    with httpx.Client(base_url=f"{provider.url}/v1", headers=KEY) as client:
        client.get("/models")
        routing.install(fail_closed=True)
        with pytest.raises(httpx.ConnectError):
            client.post("/chat/completions", json=CHAT)
        with open_attempt(attempt_at(gateway.url)):
            client.post("/chat/completions", json=CHAT)
    assert [call["path"] for call in provider.seen] == ["/v1/models"]
    assert len(gateway.seen) == 1


FORKED = """
import multiprocessing, os, sys
import httpx, requests
from leyden.core.tracing import context_propagation
from leyden.core.tracing.wire import routing
from leyden.core.tracing.context import OpenAttempt, open_attempt
provider, gateway = sys.argv[1:]
URL = f"{provider}/v1/chat/completions"

def call(expected):
    for post, refusal in ((httpx.post, httpx.ConnectError), (requests.post, requests.ConnectionError)):
        try:
            got = post(URL, json={"model": "big"}).status_code
        except refusal:
            got = 0
        if got != expected:
            os._exit(1)

def in_child(expected):
    pid = os.fork()
    if pid == 0:
        call(expected)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    process = multiprocessing.get_context("fork").Process(target=call, args=(expected,))
    process.start()
    process.join()
    assert process.exitcode == 0

context_propagation.install()
routing.install(fail_closed=True)
in_child(0)
with open_attempt(OpenAttempt(rollout_id="r", attempt_id="a", token="t", gateway_url=gateway, trace_id="ab" * 16)):
    call(200)
    in_child(200)
    call(200)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_nor_from_a_forked_child_which_works_for_its_parents_attempt(gateway: Endpoint, provider: Endpoint) -> None:
    subprocess.run([sys.executable, "-c", FORKED, provider.url, gateway.url], check=True, timeout=60)
    assert not provider.seen
    assert len(gateway.seen) == 8
