"""`leyden dev`, `exec` and `gateway` with a provider's model in the policy's place, and what imitation makes of it."""

import asyncio
import json
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from planted import found_in, random_of, texts_below
from provider_formats import PROVIDERS, Script, ToolCall
from provider_servers import ProviderServer, provider_server
from serving import ends, inherited, starting

import leyden.core
from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.resources import LLM
from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec
from leyden.core.store.open import open_store
from leyden.core.testing.capturing import forgetting_captures, wait_for_ends
from leyden.core.tracing.context import outside_attempt
from leyden.core.trainer.rollouts.retokenise import retokenise
from leyden.core.trainer.services.dev import DevPlan, dry_run

pytestmark = [
    pytest.mark.integration,
    pytest.mark.keeps("thread", "LiteLLM signs requests to Bedrock on threads that it keeps"),
]

ROOT = Path(__file__).parents[5]
POLICY = ROOT / "examples/calculator_langgraph/policy"
KEY = random_of("a provider's key")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
BODY: dict[str, Any] = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "hello"}], "tools": [TOOL]}
COMMAND = f"""
import json, os, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, data=json.dumps({BODY}).encode())
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""
AGENT = f"""
from openai import AsyncOpenAI

client = AsyncOpenAI(base_url="https://api.openai.com/v1", api_key="sk-not-a-real-key", max_retries=0)


async def agent(task):
    answer = await client.chat.completions.create(**{BODY})
    return answer.choices[0].message.content
"""


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    with provider_server("anthropic") as server:
        for name, value in PROVIDERS["anthropic"].variables(server.url, KEY).items():
            monkeypatch.setenv(name, value)
        yield server


def retokenised(span: Span) -> str:
    """Return an answer as the policy of the example would have written it."""
    codec = HuggingFaceCodec(str(POLICY))
    return codec.decode(retokenise(span, codec).response_ids)


def chats(spans: list[Span]) -> list[Span]:
    return [span for span in spans if semconv.CALL_ID in span.attributes]


def test_exec_sends_a_commands_calls_to_the_provider(
    anthropic: ProviderServer, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", COMMAND]
    assert run(["exec", "--endpoint", "anthropic/claude-sonnet-4-5", "--json", "--", *command]) == 0
    out, err = capfd.readouterr()
    assert out == "Hello\n"
    [request] = anthropic.requests
    assert (request.body["model"], request.headers["x-api-key"]) == ("claude-sonnet-4-5", KEY)
    [(_, spans)] = json.loads(err.splitlines()[-1])["attempts"]
    [span] = chats(msgspec.convert(spans, list[Span]))
    assert span.attributes[semconv.RESPONSE_MODEL] == "claude-sonnet-4-5"
    assert "Hello" in retokenised(span)
    assert KEY not in out + err


def test_dev_sends_an_agents_calls_to_the_provider_under_the_given_model(
    anthropic: ProviderServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("TEACHERS_KEY", KEY)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"question": "hello"}\n')
    options = ["--endpoint", "anthropic", "--model", "claude-haiku-4-5", "--api-key-env", "TEACHERS_KEY"]
    assert run(["dev", f"{tmp_path}/agent.py:agent", "--tasks", f"{tmp_path}/tasks.jsonl", *options]) == 0
    out, err = capfd.readouterr()
    assert "upstream" in out
    [request] = anthropic.requests
    assert (request.body["model"], request.headers["x-api-key"]) == ("claude-haiku-4-5", KEY)
    assert KEY not in out + err


def test_a_dry_run_in_python_takes_a_providers_model_too(anthropic: ProviderServer) -> None:
    async def agent(task: Any) -> str:
        async with httpx.AsyncClient() as http:
            answer = await http.post("https://api.openai.com/v1/chat/completions", json=BODY)
            return answer.json()["choices"][0]["finish_reason"]

    anthropic.script = Script(pieces=("I add.",), call=ToolCall("add", {"a": 1}))
    llm = LLM(endpoint="anthropic/claude-sonnet-4-5", model="")
    plan = DevPlan(resources={"main_llm": llm}, isolation="shared")
    [recorded] = dry_run(plan, agent, [{"question": "hello"}], show=False)
    [(_, spans)] = recorded.attempts
    [span] = chats(spans)
    assert span.attributes[semconv.FINISH_REASONS] == ["tool_calls"]
    assert '"add"' in retokenised(span)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.delenv("LEYDEN_CAPTURE_TOKEN", raising=False)
    with forgetting_captures(monkeypatch):
        yield


@pytest.mark.usefixtures("captured")
def test_a_gateway_records_a_teacher_for_imitation_and_its_key_nowhere(
    anthropic: ProviderServer, tmp_path: Path
) -> None:
    with starting("gateway", tmp_path, {**inherited(), "OMP_NUM_THREADS": "1"}) as start:
        process, started = start(
            *("--endpoint", "anthropic/claude-sonnet-4-5", "--store", "sqlite:///teacher.db"),
            LEYDEN_CAPTURE_TOKEN="chosen",
            LITELLM_LOG="DEBUG",
            ANTHROPIC_API_BASE=anthropic.url,
            ANTHROPIC_API_KEY=KEY,
        )
        with leyden.core.capture({"q": "hello"}, gateway=started["url"], token="chosen") as attempt:
            assert attempt is not None
            with httpx.Client(timeout=30) as client:
                first = client.post("https://api.openai.com/v1/chat/completions", json=BODY)
                anthropic.script = Script(status=401, message=f"the key {KEY} is wrong")
                with outside_attempt():  # otherwise the agent's own provider would answer instead
                    url = f"{started['url']}/a/{attempt.token}/v1/chat/completions"
                    second = client.post(url, json={**BODY, "n": 1})
        wait_for_ends()
        assert ends(process, signal.SIGTERM, warned="The agent requests the model 'gpt-4.1'") == 0
    assert (first.status_code, first.json()["choices"][0]["message"]["content"]) == (200, "Hello")
    assert (second.status_code, second.json()["error"]["message"]) == (401, "the key *** is wrong")
    spans = chats(asyncio.run(_spans(tmp_path / "teacher.db")))
    assert [span.attributes.get(semconv.ERROR_TYPE) for span in spans] == [None, "401"]
    assert "Hello" in retokenised(spans[0])
    assert found_in(texts_below([tmp_path]), {"the provider's key": KEY}) == []


async def _spans(path: Path) -> list[Span]:
    store = await open_store(f"sqlite:///{path}")
    try:
        [rollout] = (await store.query_rollouts()).items
        return (await store.query_spans(rollout.rollout_id)).items
    finally:
        await store.close()


# --- What cannot work


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--endpoint", "acme/x"], "--endpoint acme/x: LiteLLM has no provider 'acme'"),
        (["--endpoint", "notaurl"], "--endpoint notaurl/*: LiteLLM has no provider 'notaurl'. Give PROVIDER/MODEL"),
        (["--endpoint", "anthropic/x"], "--endpoint anthropic/x needs the environment variable ANTHROPIC_API_KEY"),
        (["--endpoint", "anthropic/x", "--model", "y"], "the endpoint names the model 'x', and --model 'y'"),
        (
            ["--endpoint", "anthropic/x", "--api-key-env", "NOT_SET_ANYWHERE"],
            "--api-key-env NOT_SET_ANYWHERE: this environment variable is not set",
        ),
        (["--endpoint", "localhost:8000/v1"], "--endpoint must be http(s)://HOST[:PORT][/PATH]"),
    ],
)
@pytest.mark.parametrize("command", ["exec", "gateway"])
def test_what_cannot_work_is_one_line_before_anything_starts(
    command: str,
    arguments: list[str],
    says: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert run([command, *arguments, *(["--", "true"] if command == "exec" else [])]) == 2
    out, err = capfd.readouterr()
    assert err.startswith(f"leyden: {says}")
    assert (out, err.count("\n")) == ("", 1)


def test_a_plan_in_python_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match=r"^the endpoint of 'judge' anthropic/x needs the environment variable"):
        DevPlan(resources={"judge": LLM(endpoint="anthropic/x", model="")})
