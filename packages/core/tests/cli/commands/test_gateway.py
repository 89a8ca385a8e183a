"""`leyden gateway` as a process of its own, with agents that are captured by it."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import SECONDS, Start, ends, inherited, starting

import leyden.core
from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.store.open import open_store
from leyden.core.testing.capturing import forgetting_captures, wait_for_ends
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint

POLICY = Path(__file__).parents[5] / "examples/calculator_langgraph/policy"
NOBODY = "http://127.0.0.1:9"
CHAT: dict[str, Any] = {"model": "big", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with echo_endpoint() as found:
        yield found


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("LEYDEN_CAPTURE_TOKEN", raising=False)
    with forgetting_captures(monkeypatch):
        yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `leyden gateway --json` on a free port; returns its process and what it printed."""
    with starting("gateway", tmp_path, {**inherited(), "OMP_NUM_THREADS": "1"}) as begin:
        yield begin


def ask() -> int:
    with httpx.Client(timeout=SECONDS) as client:
        return client.post(f"{NOBODY}/v1/chat/completions", json=CHAT).status_code


def recorded(path: Path) -> tuple[AttemptedRollout, list[Span]]:
    async def read() -> tuple[AttemptedRollout, list[Span]]:
        store = await open_store(f"sqlite:///{path}")
        try:
            [rollout] = (await store.query_rollouts()).items
            assert isinstance(rollout, AttemptedRollout)
            return rollout, (await store.query_spans(rollout.rollout_id)).items
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_policy_answers_an_agent_and_its_run_is_a_rollout_with_tokens(start: Start, tmp_path: Path) -> None:
    process, started = start("--policy", str(POLICY), "--store", "sqlite:///kept.db")
    assert started["store"] == "sqlite:///kept.db"
    environment = started["environment"]
    assert environment["LEYDEN_CAPTURE"] == "production"
    assert environment["LEYDEN_GATEWAY_URL"] == started["url"]
    with leyden.core.capture(
        {"q": "hello"}, gateway=started["url"], token=environment["LEYDEN_CAPTURE_TOKEN"]
    ) as attempt:
        assert attempt is not None
        assert ask() == 200
        leyden.core.emit_reward(0.5)
    wait_for_ends()
    assert ends(process, signal.SIGTERM) == 0
    rollout, spans = recorded(tmp_path / "kept.db")
    assert (rollout.status, rollout.input) == ("succeeded", {"q": "hello"})
    [call] = [span for span in spans if semconv.CALL_ID in span.attributes]
    assert call.attributes[semconv.PROMPT_IDS] and call.attributes[semconv.RESPONSE_IDS]
    assert [span.attributes[semconv.REWARD_VALUE] for span in spans if span.name == semconv.REWARD] == [0.5]


def test_a_sampled_rollout_is_counted_and_its_spans_are_not_kept(
    start: Start, tmp_path: Path, endpoint: Endpoint
) -> None:
    options = ["--endpoint", f"{endpoint.url}/v1", "--base-rate", "0", "--reward-threshold", "1"]
    process, started = start(*options, LEYDEN_CAPTURE_TOKEN="chosen")
    with leyden.core.capture(gateway=started["url"], token="chosen"):
        assert ask() == 200
        leyden.core.emit_reward(0.5)
    wait_for_ends()
    counts = httpx.get(f"{started['url']}/capture/metrics", timeout=SECONDS).text
    assert ends(process, signal.SIGTERM) == 0
    assert "leyden_capture_dropped_spans_total 2.0" in counts
    rollout, spans = recorded(tmp_path / "captures.db")
    assert (rollout.status, spans) == ("succeeded", [])
    assert (rollout.attempt.metadata["sampling"], rollout.attempt.metadata["reward"]) == ("dropped", 0.5)


def test_an_endpoint_answers_with_its_own_key(start: Start, tmp_path: Path, endpoint: Endpoint) -> None:
    options = ["--endpoint", f"{endpoint.url}/v1", "--model", "local", "--api-key-env", "UPSTREAM_KEY"]
    process, started = start(*options, UPSTREAM_KEY="sk-upstream", LEYDEN_CAPTURE_TOKEN="chosen")
    assert "LEYDEN_CAPTURE_TOKEN" not in started["environment"]  # what was given is not printed
    with leyden.core.capture(gateway=started["url"], token="wrong") as attempt:
        assert attempt is None
    with leyden.core.capture(gateway=started["url"], token="chosen") as attempt:
        assert attempt is not None
        assert ask() == 200
    wait_for_ends()
    assert ends(process, signal.SIGINT, warned="The agent requests the model 'big'; 'local' answers") == 130
    [call] = endpoint.seen
    assert call["headers"]["authorization"] == "Bearer sk-upstream"
    assert json.loads(call["body"])["model"] == "local"
    rollout, spans = recorded(tmp_path / "captures.db")
    assert rollout.status == "succeeded"
    assert len([span for span in spans if semconv.CALL_ID in span.attributes]) == 1


@pytest.mark.parametrize("workers", ["1", "2"])
def test_prompts_are_replaced_for_every_run(start: Start, tmp_path: Path, endpoint: Endpoint, workers: str) -> None:
    file = tmp_path / "prompts.yaml"
    file.write_text("components:\n- {name: greeting, role: user, text: hello, new_text: good morning}\n")
    options = ["--endpoint", f"{endpoint.url}/v1", "--prompts", str(file), "--workers", workers]
    process, started = start(*options, LEYDEN_CAPTURE_TOKEN="chosen")
    with leyden.core.capture(gateway=started["url"], token="chosen"):
        assert ask() == 200
    wait_for_ends()
    assert ends(process, signal.SIGTERM) == 0
    [call] = endpoint.seen
    assert json.loads(call["body"])["messages"] == [{"role": "user", "content": "good morning"}]
    _, spans = recorded(tmp_path / "captures.db")
    [edits] = [span.attributes[semconv.PROMPT_EDITS] for span in spans if semconv.CALL_ID in span.attributes]
    assert json.loads(str(edits)) == [{"component": "greeting", "role": "user", "own": "hello"}]


@pytest.mark.parametrize(
    ("arguments", "token", "says"),
    [
        ([], "t", "give either --policy"),
        (["--policy", "p", "--model", "m"], "t", "--model is the name of a model at an --endpoint"),
        (["--endpoint", "http://x/v1", "--model", "m", "--store", "kept.db"], "t", "'kept.db' is not a store's URI"),
        (["--endpoint", "http://x/v1", "--model", "m"], "schlüssel", "LEYDEN_CAPTURE_TOKEN must be printable ASCII"),
        (["--endpoint", "http://x/v1", "--model", "m", "--port", "70000"], "t", "--port"),
        (
            ["--endpoint", "http://x/v1", "--model", "m", "--base-rate", "2"],
            "t",
            "--base-rate must be at most 1, not 2.0",
        ),
        (["--policy", "p", "--workers", "2"], "t", "--workers 2 needs --engine-url or --endpoint"),
        (["--endpoint", "http://x/v1", "--workers", "0"], "t", "--workers must be at least 1, not 0"),
        (
            ["--endpoint", "http://x/v1", "--workers", "2", "--store", "memory://"],
            "t",
            "a store that processes can share",
        ),
        (["--engine-url", "http://x"], "t", "--engine-url serves a --policy"),
        (["--engine-url", "http://x", "--endpoint", "http://x/v1"], "t", "--engine-url serves a --policy"),
        (["--policy", "p", "--engine-url", "x"], "t", "--engine-url must be http(s)://HOST"),
        (
            ["--policy", "p", "--engine-url", "http://x", "--engine-url", "http://x/v1"],
            "t",
            "names the same server twice",
        ),
        (["--policy", "p", "--engine-url", "http://x", "--device", "cuda"], "t", "--device has no effect"),
        (
            ["--policy", "p", "--engine-url", "http://x", "--api-key-env", "NOT_SET"],
            "t",
            "this environment variable is not",
        ),
        (["--endpoint", "http://x/v1", "--endpoint", "http://x/v1/"], "t", "names the same base URL twice"),
        (["--endpoint", "http://x/v1", "--endpoint", "ftp://y"], "t", "--endpoint must be http(s)://HOST"),
        (["--endpoint", "http://x/v1", "--endpoint", "openai/gpt-5"], "t", "only base URLs can be replicas"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_served(
    arguments: list[str],
    token: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYDEN_CAPTURE_TOKEN", token)
    assert run(["gateway", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_port_that_is_taken_is_one_line(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    port = endpoint.url.rpartition(":")[2]
    assert run(["gateway", "--endpoint", f"{endpoint.url}/v1", "--model", "m", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
