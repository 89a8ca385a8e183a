"""LiteLLM as a library: imported only for a provider, without network and traces, and checked before the first call."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leyden.core.data.encoding.provider_model import ProviderModel, named_model, read_provider_model
from leyden.core.data.resources import LLM
from leyden.core.errors import UsageError
from leyden.core.gateway.upstream import litellm_library
from leyden.core.gateway.upstream.endpoints import check_endpoint
from leyden.core.gateway.upstream.litellm_library import check_provider, litellm_name

pytestmark = pytest.mark.integration

PLAIN = """
import sys
import leyden.core
import leyden.core.cli.main
from leyden.core.data.resources import LLM
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.upstream.endpoints import check_endpoint, open_upstream
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.services.captures import CapturePlan
from leyden.core.trainer.services.dev import DevPlan

endpoint = LLM(endpoint="http://127.0.0.1:9/v1", model="m")
check_endpoint(endpoint, "--endpoint")
DevPlan(resources={"main_llm": endpoint})
Gateway(MemoryStore(), open_upstream(endpoint), b"k" * 32)
print([name for name in sys.modules if name.partition(".")[0] in ("litellm", "boto3", "botocore")])
"""

OFFLINE = """
import json, os, socket, sys

asked = []

def refuse(*args, **kwargs):
    asked.append(str(args[:2]))
    raise OSError("no network here")

socket.getaddrinfo = socket.create_connection = refuse
socket.socket.connect = socket.socket.connect_ex = refuse
before = dict(os.environ)
from leyden.core.gateway.upstream.litellm_library import library
litellm = library()
from litellm.anthropic_beta_headers_manager import get_unsupported_headers
get_unsupported_headers("anthropic")
callbacks = litellm.callbacks + litellm.success_callback + litellm.failure_callback + litellm.input_callback
print(json.dumps([asked, dict(os.environ) == before, callbacks, litellm.cache, len(litellm.model_cost) > 1000]))
"""


def python(code: str, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_plain_gateway_does_not_import_litellm(tmp_path: Path) -> None:
    assert python(PLAIN, tmp_path) == "[]"


def test_the_import_needs_no_network_and_changes_no_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("FROM_A_FILE=1\n")
    assert json.loads(python(OFFLINE, tmp_path)) == [[], True, [], None, True]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("anthropic/claude-sonnet-4-5", ProviderModel("anthropic", "claude-sonnet-4-5")),
        ("anthropic/*", ProviderModel("anthropic")),
        ("anthropic/", ProviderModel("anthropic")),
        ("anthropic", ProviderModel("anthropic")),
        ("openrouter/meta/llama", ProviderModel("openrouter", "meta/llama")),
        (
            "bedrock/anthropic.claude-3-5-sonnet-20240620-v1:0",
            ProviderModel("bedrock", "anthropic.claude-3-5-sonnet-20240620-v1:0"),
        ),
        ("http://host/v1", None),
        ("localhost:8000/v1", None),
        ("host.example/v1", None),
        ("", None),
    ],
)
def test_which_texts_name_a_providers_model(text: str, read: ProviderModel | None) -> None:
    assert read_provider_model(text) == read


def test_a_model_is_named_once() -> None:
    assert named_model(ProviderModel("anthropic"), "m") == ProviderModel("anthropic", "m")
    assert named_model(ProviderModel("anthropic", "m"), "") == ProviderModel("anthropic", "m")
    with pytest.raises(UsageError, match="the endpoint names the model 'm', and --model 'n'"):
        named_model(ProviderModel("anthropic", "m"), "n")


@pytest.mark.parametrize(
    ("given", "requested", "called"),
    [
        (ProviderModel("anthropic", "m"), "gpt-4.1", ("anthropic", "m")),
        (ProviderModel("anthropic"), "claude-haiku-4-5", ("anthropic", "claude-haiku-4-5")),
        (ProviderModel("anthropic"), "anthropic/claude-haiku-4-5", ("anthropic", "claude-haiku-4-5")),
        (ProviderModel("ollama", "llama3.2"), "gpt-4.1", ("ollama_chat", "llama3.2")),
        (ProviderModel("openrouter"), "openrouter/meta/llama", ("openrouter", "meta/llama")),
    ],
)
def test_the_name_under_which_a_model_is_called(given: ProviderModel, requested: str, called: tuple[str, str]) -> None:
    assert litellm_name(given, requested) == called


def _find_nothing(name: str) -> None:
    """Find no module, as where the extra is not installed."""


def test_without_litellm_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    monkeypatch.setattr(litellm_library, "find_spec", _find_nothing)
    with pytest.raises(UsageError) as raised:
        check_endpoint(LLM(endpoint="anthropic/claude-sonnet-4-5", model=""), "--endpoint")
    assert str(raised.value) == (
        "models of providers are called through LiteLLM, which is not installed: pip install 'leyden-core[providers]'"
    )


def test_a_provider_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match=r"^--endpoint acme/x: LiteLLM has no provider 'acme'\. Give PROVIDER/MODEL"):
        check_endpoint(LLM(endpoint="acme/x", model=""), "--endpoint")


@pytest.mark.parametrize(
    ("provider", "missing"),
    [
        ("anthropic", "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"),
        ("azure", "AZURE_API_BASE"),
        ("bedrock", "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
        ("gemini", "GEMINI_API_KEY or GOOGLE_API_KEY"),
        ("groq", "GROQ_API_KEY"),
        ("openai", "OPENAI_API_KEY"),
    ],
)
def test_a_missing_key_is_named_before_the_first_call(
    provider: str, missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "AWS_", "AZURE_", "GEMINI_", "GOOGLE_", "GROQ_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UsageError) as raised:
        check_provider(ProviderModel(provider, "m"), f"--endpoint {provider}/m")
    assert str(raised.value) == f"--endpoint {provider}/m needs the environment variable {missing}, which is not set"
    if provider != "azure":
        check_provider(ProviderModel(provider, "m"), f"--endpoint {provider}/m", "a-key-that-was-given")


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_API_BASE", raising=False)
    check_provider(ProviderModel("ollama", "llama3.2"), "--endpoint")
