"""Language models that an algorithm calls: endpoints that are busy or wrong, providers, functions and policies."""

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from planted import random_of
from provider_formats import PROVIDERS, Script
from provider_servers import provider_server

from leyden.core.algorithm.language_model import Completion, Message, ModelCallError, ModelOptions
from leyden.core.engine.base import ModelInfo
from leyden.core.errors import EngineError, UsageError
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.testing.byte_codec import END, ByteCodec
from leyden.core.testing.scripted_engine import Script as EngineScript
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from leyden.core.testing.servers.chat_endpoint import chat_endpoint
from leyden.core.testing.servers.http_handler import served
from leyden.core.trainer.serving import given_keys, language_models
from leyden.core.trainer.serving.endpoint import KEY, ModelEndpoint
from leyden.core.trainer.serving.given_keys import find_key, give_keys
from leyden.core.trainer.serving.language_models import TRIES, open_language_model

pytestmark = pytest.mark.integration

HELLO: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
ANSWER = {"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 30, "completion_tokens": 2}}


@pytest.fixture(autouse=True)
def quick_and_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_models, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(given_keys, "_GIVEN", {})
    for name in ("OPENAI_API_KEY", KEY, "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


class Answers:
    """A server that answers with a status and a body after the other, and repeats the last."""

    def __init__(self, *answers: tuple[int, Any], headers: dict[str, str] | None = None) -> None:
        self.answers, self.headers = list(answers), headers or {}
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        self.at_once = self.most_at_once = 0
        self.url = ""


@contextmanager
def answering(answers: Answers) -> Generator[Answers]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            """Send the next answer."""
            answers.at_once += 1
            answers.most_at_once = max(answers.most_at_once, answers.at_once)
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answers.seen.append(body)
            answers.keys.append(self.headers["authorization"])
            answers.paths.append(self.path)
            status, content = answers.answers[min(len(answers.seen), len(answers.answers)) - 1]
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            answers.at_once -= 1
            self.send_response(status)
            for name, value in answers.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with served(Handler) as root:
        answers.url = f"{root}/v1"
        yield answers


async def complete(options: ModelOptions, **given: Any) -> Completion:
    model = open_language_model(options, given.get("policies", {}), given.get("endpoint"), given.get("key"))
    try:
        return await model.complete(HELLO)
    finally:
        await model.close()


# --- Endpoints


async def test_an_endpoint_answers_with_its_tokens_and_their_cost() -> None:
    with answering(Answers((200, ANSWER))) as server:
        options = ModelOptions(endpoint=server.url, model="m", temperature=0.5, max_tokens=7, price=(1.0, 10.0))
        found = await complete(options)
    assert (found.text, found.input_tokens, found.output_tokens) == ("Hi", 30, 2)
    assert found.cost == pytest.approx(50e-6)
    assert server.seen == [{"model": "m", "messages": HELLO, "temperature": 0.5, "max_tokens": 7}]
    assert (server.paths, server.keys) == (["/v1/chat/completions"], [None])


async def test_what_is_not_set_is_not_sent_and_costs_are_unknown_without_a_price() -> None:
    with answering(Answers((200, ANSWER))) as server:
        model = open_language_model(ModelOptions(endpoint=f"{server.url}/", model="m"), {}, None, None)
        found = await model.complete(HELLO)
        await model.close()
    assert (found.cost, model.is_priced) == (None, False)
    assert set(server.seen[0]) == {"model", "messages"}
    assert server.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408, 409])
async def test_a_busy_endpoint_is_called_again(status: int) -> None:
    with answering(Answers((status, "busy"), (status, "busy"), (200, ANSWER))) as server:
        found = await complete(ModelOptions(endpoint=server.url, model="m"))
    assert found.text == "Hi"
    assert len(server.seen) == 3
    assert server.seen[0] == server.seen[2]


async def test_an_endpoint_that_stays_busy_is_an_error_with_its_last_words() -> None:
    says = r"^m answered with status 500: internal error \(4 tries\)$"
    with answering(Answers((500, "internal\n error"))) as server, pytest.raises(ModelCallError, match=says):
        await complete(ModelOptions(endpoint=server.url, model="m"))
    assert len(server.seen) == TRIES == 4


@pytest.mark.parametrize("status", [400, 401, 404, 302])
async def test_a_refusal_is_not_repeated_and_a_redirect_not_followed(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = random_of("a key that the endpoint repeats")
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    answers = Answers((status, f"key {secret} is wrong"), headers={"location": "http://127.0.0.1:9/"})
    with answering(answers) as server, pytest.raises(ModelCallError, match=f"answered with status {status}") as error:
        await complete(ModelOptions(endpoint=server.url, model="m"))
    assert len(server.seen) == 1
    assert secret not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("<html>", "m sent no chat completion"),
        ({"choices": "none"}, "m sent no chat completion"),
        ({"object": "error"}, "m sent no chat completion"),
        ({"choices": []}, "m sent an answer without text"),
        ({"choices": [{"message": {"content": None}}]}, "m sent an answer without text"),
        ({"choices": [{"message": {"content": ""}}]}, "m sent an answer without text"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(content: Any, says: str) -> None:
    with answering(Answers((200, content))) as server, pytest.raises(ModelCallError, match=says):
        await complete(ModelOptions(endpoint=server.url, model="m"))
    assert len(server.seen) == 1


async def test_an_answer_without_usage_has_unknown_costs() -> None:
    with answering(Answers((200, {"choices": ANSWER["choices"]}))) as server:
        found = await complete(ModelOptions(endpoint=server.url, model="m", price=(1.0, 1.0)))
    assert (found.input_tokens, found.output_tokens, found.cost) == (0, 0, None)


async def test_an_endpoint_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelCallError, match=r"^m could not be reached \(ClientConnectorError\) \(4 tries\)$"):
        await complete(ModelOptions(endpoint="http://127.0.0.1:9/v1", model="m"))


async def test_an_endpoint_that_asks_for_patience_gets_it_within_the_time_limit() -> None:
    answers = Answers((429, "wait"), (200, ANSWER), headers={"retry-after": "60"})
    says = r"^m did not answer within 0\.2 s; before, m answered with status 429: wait$"
    with answering(answers) as server, pytest.raises(ModelCallError, match=says):
        await complete(ModelOptions(endpoint=server.url, model="m", timeout_seconds=0.2))
    assert len(server.seen) == 1


async def test_a_slow_endpoint_is_given_up() -> None:
    released = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        with pytest.raises(ModelCallError, match=r"^m did not answer within 0\.1 s$"):
            await complete(ModelOptions(endpoint=url, model="m", timeout_seconds=0.1))
    finally:
        released.set()
        server.close()


async def test_calls_are_limited_to_the_concurrency() -> None:
    answers = Answers((200, ANSWER))
    with answering(answers) as server:
        model = open_language_model(ModelOptions(endpoint=server.url, model="m", concurrency=1), {}, None, None)
        await asyncio.gather(*(model.complete(HELLO) for _ in range(6)))
        await model.close()
    assert (len(answers.seen), answers.most_at_once) == (6, 1)


@pytest.mark.parametrize("url", ["models.example:80", "ftp://models.example/v1", "https://models.example/v1?key=x"])
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_language_model(ModelOptions(endpoint=url, model="m"), {}, None, None)


# --- Keys


async def test_the_key_is_that_of_the_named_variable_or_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-usual-key")
    monkeypatch.setenv("MY_KEY", "sk-my-key")
    with answering(Answers((200, ANSWER))) as server:
        await complete(ModelOptions(endpoint=server.url, model="m"))
        await complete(ModelOptions(endpoint=server.url, model="m", key_env="MY_KEY"))
        give_keys({"MY_KEY": "sk-given-in-python"})
        await complete(ModelOptions(endpoint=server.url, model="m", key_env="MY_KEY"))
        own = ModelEndpoint(url=server.url, model="m")
        await complete(ModelOptions(), endpoint=own, key="sk-of-the-endpoint")
        await complete(ModelOptions(), endpoint=own)
        await complete(ModelOptions(endpoint=server.url, model="m"), endpoint=own, key="sk-of-the-endpoint")
    assert server.keys == [
        f"Bearer {key}"
        for key in (
            *("sk-usual-key", "sk-my-key", "sk-given-in-python"),
            *("sk-of-the-endpoint", "sk-usual-key", "sk-usual-key"),
        )
    ], "another endpoint never gets the key of the run's endpoint"


def test_a_key_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="key_env MY_KEY: this environment variable is not set"):
        open_language_model(ModelOptions(endpoint="http://m.example/v1", model="m", key_env="MY_KEY"), {}, None, None)


def test_a_given_key_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "of-the-environment")
    assert (find_key("ONE"), find_key("TWO")) == ("of-the-environment", None)
    give_keys({"ONE": "sk-given-key-1", "TWO": "sk-given-key-2"})
    assert (find_key("ONE"), find_key("TWO")) == ("sk-given-key-1", "sk-given-key-2")


# --- The run's own endpoint


async def test_own_is_the_runs_endpoint_with_its_model_or_another() -> None:
    with chat_endpoint("Hi") as server:
        own = ModelEndpoint(url=server.url, model="agent-model")
        found = await complete(ModelOptions(), endpoint=own)
        await complete(ModelOptions(model="other"), endpoint=own)
    assert (found.text, found.input_tokens, found.output_tokens) == ("Hi", 9, 1)
    assert [call["body"]["model"] for call in server.seen] == ["agent-model", "other"]


# --- Providers


@pytest.mark.parametrize("provider", ["anthropic", "azure", "gemini", "ollama"])
async def test_a_providers_model_is_called_through_litellm(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = random_of(f"the key of {provider}")
    formats = PROVIDERS[provider]
    with provider_server(provider) as server:
        for name, value in formats.variables(server.url, key).items():
            monkeypatch.setenv(name, value)
        found = await complete(ModelOptions(endpoint=formats.model, max_tokens=50))
    assert (found.text, found.input_tokens, found.output_tokens) == ("Hello", 11, 7)
    (request,) = server.requests
    assert "Be brief." in json.dumps(request.body) and "Hello?" in json.dumps(request.body)
    if provider != "ollama":
        assert key in formats.key_of(request)


async def test_the_price_of_a_providers_model_is_that_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with provider_server("anthropic") as server:
        for name, value in PROVIDERS["anthropic"].variables(server.url, random_of("a key")).items():
            monkeypatch.setenv(name, value)
        options = ModelOptions(endpoint="anthropic/claude-sonnet-4-5")
        model = open_language_model(options, {}, None, None)
        found = await model.complete(HELLO)
        await model.close()
        own = await complete(ModelOptions(endpoint="anthropic/claude-sonnet-4-5", price=(100.0, 200.0)))
        unknown = open_language_model(ModelOptions(endpoint="anthropic/claude-unknown-0"), {}, None, None)
    litellm: Any = import_module("litellm")
    listed: dict[str, float] = litellm.model_cost["claude-sonnet-4-5"]
    expected = 11 * listed["input_cost_per_token"] + 7 * listed["output_cost_per_token"]
    assert model.is_priced and found.cost == pytest.approx(expected)
    assert own.cost == pytest.approx((11 * 100 + 7 * 200) / 1e6)
    assert not unknown.is_priced


@pytest.mark.parametrize(("status", "calls"), [(429, TRIES), (500, TRIES), (401, 1), (400, 1)])
async def test_a_provider_is_called_again_only_while_it_is_busy(
    status: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = random_of("a key that no error shows")
    with provider_server("anthropic") as server:
        server.script = Script(status=status, message="not now")
        for name, value in PROVIDERS["anthropic"].variables(server.url, key).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ModelCallError, match="anthropic/claude-sonnet-4-5 answered with status") as error:
            await complete(ModelOptions(endpoint="anthropic/claude-sonnet-4-5"))
    assert len(server.requests) == calls
    assert "not now" in str(error.value) and key not in str(error.value) and "\n" not in str(error.value)


def test_a_provider_without_its_key_is_refused_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    options = ModelOptions(endpoint="anthropic/claude-sonnet-4-5")
    with pytest.raises(UsageError, match="the reflection model anthropic/claude-sonnet-4-5 needs the environment var"):
        open_language_model(options, {}, None, None)
    with pytest.raises(UsageError, match="LiteLLM has no provider 'nobody'"):
        open_language_model(ModelOptions(endpoint="nobody/model"), {}, None, None)


# --- Functions


FUNCTIONS = """
import asyncio

def plain(messages):
    return f"{messages[-1]['content']} {type(messages[0]).__name__}"

async def later(messages):
    await asyncio.sleep(0)
    return "later"

class Callable:
    async def __call__(self, messages):
        return "object"

an_object = Callable()

def number(messages):
    return 7

def fails(messages):
    raise ValueError("no idea")

text = "no function"
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reflections.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(("name", "text"), [("plain", "Hello? dict"), ("later", "later"), ("an_object", "object")])
async def test_a_function_replaces_the_model(name: str, text: str) -> None:
    found = await complete(ModelOptions(function=f"reflections.py:{name}"))
    assert found == Completion(text=text, cost=0.0)


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize(
    ("name", "says"),
    [("number", "number returned int, not a text"), ("fails", "fails raised ValueError: no idea")],
)
async def test_a_function_that_fails_is_named(name: str, says: str) -> None:
    with pytest.raises(ModelCallError, match=says):
        await complete(ModelOptions(function=f"reflections.py:{name}"))


@pytest.mark.usefixtures("functions")
@pytest.mark.parametrize("name", ["text", "missing"])
def test_a_function_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        open_language_model(ModelOptions(function=f"reflections.py:{name}"), {}, None, None)


# --- Policies


def policy(answers: EngineScript, name: str = "policy", context_length: int = 200) -> ServedPolicy:
    model = ModelInfo(name="scripted", context_length=context_length, vocab_size=300)
    return ServedPolicy(name=name, engine=ScriptedEngine(answers, model=model), codec=ByteCodec())


def engine_of(served: ServedPolicy) -> ScriptedEngine:
    assert isinstance(served.engine, ScriptedEngine)
    return served.engine


async def test_a_policy_of_the_run_answers() -> None:
    own = policy([[*b"Hi there", END]])
    found = await complete(ModelOptions(max_tokens=20, temperature=0.5), policies={"policy": own})
    (request,) = engine_of(own).requests
    assert found == Completion(
        text="Hi there", input_tokens=len(request.prompt_ids), output_tokens=len(b"Hi there") + 1, cost=0.0
    )
    assert list(request.prompt_ids) == ByteCodec().encode([dict(one) for one in HELLO])
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.5, 20)


async def test_an_answer_of_a_policy_fits_its_context() -> None:
    own = policy([list(b"x" * 500)], context_length=120)
    found = await complete(ModelOptions(), policies={"policy": own})
    assert found.input_tokens + found.output_tokens == 120
    small = policy([[END]], context_length=10)
    with pytest.raises(ModelCallError, match="tokens for the policy policy do not fit its context"):
        await complete(ModelOptions(), policies={"policy": small})


async def test_one_of_several_policies_is_named() -> None:
    served = {name: policy([[*name.encode(), END]], name) for name in ("planner", "writer")}
    assert (await complete(ModelOptions(model="writer"), policies=served)).text == "writer"
    with pytest.raises(UsageError, match="no policy 'judge' to call; its policies are: planner, writer"):
        open_language_model(ModelOptions(model="judge"), served, None, None)
    with pytest.raises(UsageError, match="its policies are: none"):
        open_language_model(ModelOptions(), {}, None, None)


async def test_a_policy_that_fails_or_is_slow_is_an_error() -> None:
    with pytest.raises(ModelCallError, match="the policy policy did not answer: out of memory"):
        await complete(ModelOptions(), policies={"policy": policy([EngineError("out of memory")])})
    slow = policy([ScriptedAnswer(ids=[END], held=True)])
    with pytest.raises(ModelCallError, match=r"the policy policy did not answer within 0\.05 s"):
        await complete(ModelOptions(timeout_seconds=0.05), policies={"policy": slow})
    assert engine_of(slow).in_flight == 0


# --- Options


@pytest.mark.parametrize(
    "options",
    [
        {"function": "a:b", "model": "m"},
        {"function": "a:b", "endpoint": "http://m.example/v1"},
        {"temperature": -1.0},
        {"max_tokens": 0},
        {"timeout_seconds": 0.0},
        {"concurrency": 0},
        {"price": (1.0, -1.0)},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ModelOptions(**options)
