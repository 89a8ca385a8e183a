"""Commands that look for a way to a model provider: by what they are given, and, where they are Python, by any URL.

A server on this machine is the proxy of the command's environment, so whatever the command sends to a provider's host
arrives there, by name. A program of its own that has a provider's host and key in its code is not held back:
docs/security.md says so.
"""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import provider_endpoints
import pytest
from provider_endpoints import PROVIDERS

from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing.byte_codec import ByteCodec
from leyden.core.testing.running import error_of, finished, running
from leyden.core.testing.scripted_gateway import ScriptedGateway, scripted_gateway
from leyden.core.testing.servers.chat_endpoint import chat_endpoint
from leyden.core.testing.servers.http_handler import served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
PLANTED = {
    name: f"planted-{name.lower()}"
    for name in (
        *("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "AZURE_OPENAI_API_KEY"),
        *("AZURE_OPENAI_AD_TOKEN", "AZURE_CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("AWS_BEARER_TOKEN_BEDROCK", "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        *("OLLAMA_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"),
    )
}
"""What opens a provider, or leads to one."""


class Proxy(BaseHTTPRequestHandler):
    """Notes for which host a request was, and lets none through."""

    hosts: list[str]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_CONNECT(self) -> None:
        self.hosts.append(urlsplit(f"//{self.path}" if "//" not in self.path else self.path).hostname or self.path)
        self.send_response(502)
        self.send_header("content-length", "0")
        self.end_headers()
        self.close_connection = True

    do_GET = do_POST = do_DELETE = do_HEAD = do_CONNECT


@contextmanager
def proxy() -> Generator[tuple[str, list[str]]]:
    """Serve a proxy; yields its URL and the hosts that were asked for."""
    hosts: list[str] = []
    with served(type("Bound", (Proxy,), {"hosts": hosts})) as url:
        yield url, hosts


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """The hosts that commands reach, whatever library they use; keys of all providers are in the environment."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    with proxy() as (url, hosts):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield hosts


async def ran(gateway: ScriptedGateway, folder: Path, script: str, *options: str) -> Any:
    """Run a script as the agent; returns what it wrote, as JSON, to the file that is its first argument."""
    program, out = folder / "program.py", folder / "out.json"
    program.write_text(script)
    command = CommandAgent([sys.executable, *options, str(program), str(out)])
    rollout = await gateway.store.enqueue_rollout("task", mode="train")
    async with running(gateway.store, command, gateway_url=gateway.url, key=gateway.key):
        [ended] = await gateway.store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        [attempted] = await finished(gateway.store, [ended.rollout_id])
    assert ended.status == "succeeded", error_of(attempted)
    calls = [span for span in (await gateway.store.query_spans(ended.rollout_id)) if semconv.CALL_ID in span.attributes]
    return json.loads(out.read_text()), calls


BY_DEFAULTS = """
import json, os, sys, urllib.request
import httpx, openai

with openai.OpenAI(max_retries=0) as client:
    said = [client.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": "hi"}]).model,
            client.responses.create(model="gpt-4.1", input="hi").model]
call = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
    url = os.environ[name] + "/chat/completions"
    said.append(httpx.post(url, content=call, headers=headers).status_code)
    with urllib.request.urlopen(urllib.request.Request(url, call, headers)) as answer:
        said.append(answer.status)
with open(sys.argv[1], "w") as file:
    json.dump([said, dict(os.environ)], file)
"""


async def test_what_a_command_is_given_leads_to_the_gateway_and_holds_no_key(
    tmp_path: Path, outside: list[str]
) -> None:
    """A program in an environment of its own uses its SDK as it comes, and reads all of its environment."""
    codec = ByteCodec()
    async with scripted_gateway(lambda _: codec.answer("hi")) as gateway:
        (said, environment), calls = await ran(gateway, tmp_path, BY_DEFAULTS, "-I")
    assert said == ["gpt-4.1", "gpt-4.1", 200, 200, 200, 200]
    assert len(calls) == 6
    assert outside == []
    assert not set(PLANTED.values()) & set(environment.values())


def test_so_does_what_leyden_exec_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same program under `leyden exec`, whose answers come from an endpoint of the user's own."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    program, out = tmp_path / "program.py", tmp_path / "out.json"
    program.write_text(BY_DEFAULTS.replace('client.responses.create(model="gpt-4.1", input="hi").model', "'-'"))
    with chat_endpoint("hi") as endpoint:
        given = ["exec", "--base-url", endpoint.url, "--model", "local", "--"]
        assert run([*given, sys.executable, "-I", str(program), str(out)]) == 0, capfd.readouterr().err
    said, environment = json.loads(out.read_text())
    assert len(said) == 6
    assert len(endpoint.seen) == 5
    assert not set(PLANTED.values()) & set(environment.values())


BY_ENDPOINTS = """
import asyncio, json, sys, urllib.request
sys.path.insert(0, FOLDER)
import aiohttp, httpx, requests
from provider_endpoints import PROVIDERS

BODY = json.dumps({"model": "big", "messages": [{"role": "user", "content": "hi"}]}).encode()
KEY = {"authorization": "Bearer sk-of-its-own", "content-type": "application/json"}

def by_urllib(method, url, body):
    with urllib.request.urlopen(urllib.request.Request(url, body, KEY, method=method)) as answer:
        answer.read()

def by_httpx(method, url, body):
    httpx.request(method, url, content=body, headers=KEY)

def by_requests(method, url, body):
    requests.request(method, url, data=body, headers=KEY)

def by_aiohttp(method, url, body):
    async def send():
        async with aiohttp.ClientSession(trust_env=True) as session:
            async with session.request(method, url, data=body, headers=KEY) as answer:
                await answer.read()
    asyncio.run(send())

sent = 0
for base, model_calls, other in PROVIDERS.values():
    for line in WHICH:
        method, path = line.split()
        for send in (by_urllib, by_httpx, by_requests, by_aiohttp):
            sent += 1
            try:
                send(method, base + path, None if method in ("GET", "HEAD", "DELETE") else BODY)
            except Exception:
                pass  # stopped, or not let through by the proxy
with open(sys.argv[1], "w") as file:
    json.dump(sent, file)
"""


def by_endpoints(which: str) -> str:
    folder = str(Path(provider_endpoints.__file__).parent)
    return BY_ENDPOINTS.replace("FOLDER", repr(folder)).replace("WHICH", which)


@pytest.mark.parametrize("which", ["model_calls", "other"])
async def test_a_command_in_python_reaches_no_model_of_a_provider(
    tmp_path: Path, outside: list[str], which: str
) -> None:
    """A Python program with hosts and keys in its code sends to all endpoints of six providers, by four libraries."""
    codec = ByteCodec()
    async with scripted_gateway(lambda _: codec.answer("hi")) as gateway:
        sent, calls = await ran(gateway, tmp_path, by_endpoints(which))
    chosen = {name: one.model_calls if which == "model_calls" else one.other for name, one in PROVIDERS.items()}
    assert sent == 4 * sum(map(len, chosen.values()))
    if which == "model_calls":
        assert outside == []
        assert calls
    else:
        assert set(outside) == {urlsplit(one.base).hostname for one in PROVIDERS.values()}, "what is no call is sent"
        assert calls == []
