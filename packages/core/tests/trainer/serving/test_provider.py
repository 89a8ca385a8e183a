"""The provider of a run: named by options, kept in the run's configuration, and reached by a program."""

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.errors import UsageError
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing.servers.http_handler import served
from leyden.core.trainer.config import RunConfig, check_in_clear, load_config, save_config
from leyden.core.trainer.services.dev import DevPlan, dry_run
from leyden.core.trainer.serving.provider import ProviderEndpoint, read_provider
from leyden.core.trainer.trainer import Trainer

POLICY = Path(__file__).parents[5] / "examples/calculator_langgraph/policy"
PROGRAM = """
import json, os, urllib.request

def post(path, **body):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, data=json.dumps(body).encode())
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.add_header("content-type", "application/json")
    return json.load(urllib.request.urlopen(request))

embedded = post("/embeddings", model="embedder", input="hi")
continued = post("/completions", model="m", prompt=["1 + 1 =", "2"], max_tokens=4, echo=True, logprobs=0)
choices = continued["choices"]
scored = [len(choice["logprobs"]["tokens"]) > 1 for choice in choices]
print(embedded["dimensions"], scored, choices[0]["text"].startswith("1 + 1 ="))
"""


@pytest.fixture
def provider() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """URL of an endpoint for embeddings, and the path and key of every request to it."""
    seen: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            """Answer with a constant."""
            self.rfile.read(int(self.headers["content-length"]))
            seen.append((self.path, self.headers["authorization"]))
            data = b'{"dimensions": 3}'
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with served(Handler) as url:
        yield f"{url}/v1", seen


@pytest.mark.integration
def test_a_program_gets_embeddings_from_the_provider_and_answers_from_the_policy(
    provider: tuple[str, list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = provider
    monkeypatch.setenv("EMBEDDINGS_KEY", "sk-embeddings")
    plan = DevPlan(policy=str(POLICY), provider=ProviderEndpoint(url=url, key_env="EMBEDDINGS_KEY"), timeout_seconds=60)
    program = PROGRAM.replace("{", "{{").replace("}", "}}")
    (found,) = dry_run(plan, CommandAgent([sys.executable, "-c", program]), [{"question": "?"}], show=False)
    [(attempt, spans)] = found.attempts
    assert attempt.status == "succeeded"
    [result] = [span.attributes[semconv.RESULT] for span in spans if semconv.RESULT in span.attributes]
    assert result == "3 [True, True] True"
    calls = [span for span in spans if semconv.CALL_ID in span.attributes]
    assert [span.attributes[semconv.PROMPT_INDEX] for span in calls] == [0, 1]
    assert seen == [("/v1/embeddings", "Bearer sk-embeddings")]


def test_options_are_read_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_provider(None, None) is None
    assert read_provider("http://x/v1", None) == ProviderEndpoint(url="http://x/v1")
    with pytest.raises(UsageError, match="give that too"):
        read_provider(None, "KEY")
    with pytest.raises(UsageError, match="--provider must be"):
        read_provider("x/v1", None)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    named = ProviderEndpoint(url="http://x/v1", key_env="NO_SUCH_KEY")
    with pytest.raises(UsageError, match="NO_SUCH_KEY: this variable is not set"):
        named.open()
    monkeypatch.setenv("NO_SUCH_KEY", "secret-of-mine")
    assert "secret-of-mine" not in repr(named.open()) + repr(named)


def test_a_run_keeps_its_provider_and_never_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-of-mine")
    trainer = Trainer(policy="p", provider="https://api.openai.com/v1", provider_key_env="MY_KEY")
    assert trainer.provider == ProviderEndpoint(url="https://api.openai.com/v1", key_env="MY_KEY")
    config = RunConfig(name="a", policy="p", provider=trainer.provider)
    save_config(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    assert "secret-of-mine" not in (tmp_path / "config.yaml").read_text()
    with pytest.raises(UsageError, match="seems to contain a secret"):
        check_in_clear(RunConfig(name="a", policy="p", provider=ProviderEndpoint(url="https://me:pass-word-1@x/v1")))
