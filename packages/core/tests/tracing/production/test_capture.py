"""Capture in production, against the real gateway on a thread of its own; an echoing endpoint is the provider."""

import asyncio
import json
import logging
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import httpx
import pytest

import leyden.core
from leyden.core.data import semconv
from leyden.core.data.identity import mint, new_key
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.engine.base import GenerateRequest, ModelInfo
from leyden.core.gateway.app import Gateway
from leyden.core.gateway.calls.served_policy import ServedPolicy
from leyden.core.gateway.http.server import GatewayServer
from leyden.core.gateway.production.captures import PATH, CaptureLimits, capture_app
from leyden.core.store.memory import MemoryStore
from leyden.core.testing import factories
from leyden.core.testing.any_values.hostile import SPOILED, OfHostileClass, ReprRaises
from leyden.core.testing.byte_codec import VOCABULARY, ByteCodec
from leyden.core.testing.capturing import forgetting_captures, wait_for_ends
from leyden.core.testing.scripted_engine import ScriptedAnswer, ScriptedEngine
from leyden.core.testing.servers.echo_endpoint import Endpoint
from leyden.core.tracing.context import OpenAttempt, current_attempt, open_attempt, outside_attempt
from leyden.core.tracing.production import capture
from leyden.core.tracing.production.capture import root_agent
from leyden.core.tracing.wire import gateway_pool, routing

T = TypeVar("T")
CHAT: dict[str, Any] = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
NOBODY = "http://127.0.0.1:9"


class Production:
    """A gateway with its store, that ends when it is told to."""

    def __init__(self) -> None:
        self.store, self.key, self.token = MemoryStore(), new_key(), secrets.token_urlsafe()
        self._codec = ByteCodec()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._engine = ScriptedEngine(
            self._hello, model=ModelInfo(name="scripted", context_length=4096, vocab_size=VOCABULARY)
        )
        policy = ServedPolicy(name="policy", engine=self._engine, codec=self._codec)
        limits = CaptureLimits(unresponsive_seconds=60, timeout_seconds=600)
        app = capture_app(self.store, self.key, authorize=lambda given: given == self.token, limits=limits)
        self._server = GatewayServer(Gateway(self.store, policy, self.key, mounts={PATH: app}).app, grace=0)
        self._up = True
        self.url = self.run(self._server.start())

    def _hello(self, _: GenerateRequest) -> ScriptedAnswer:
        return ScriptedAnswer(ids=self._codec.answer("hello"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def stop(self) -> None:
        if self._up:
            self._up = False
            self.run(self._server.stop())

    def close(self) -> None:
        self.stop()
        self.run(self._engine.close())
        self.run(self.store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ended(self, attempt: OpenAttempt | None) -> AttemptedRollout:
        """The rollout of an attempt, once it has ended."""
        assert attempt is not None
        [rollout] = self.run(self.store.wait_for_rollouts(rollout_ids=[attempt.rollout_id], timeout=10))
        assert isinstance(rollout, AttemptedRollout)
        return rollout

    def answers(self, attempt: OpenAttempt | None) -> int:
        """How many model calls of an attempt are recorded."""
        assert attempt is not None
        spans = self.run(self.store.query_spans(attempt.rollout_id, attempt.attempt_id))
        return sum(semconv.CALL_ID in span.attributes for span in spans)


@pytest.fixture
def server() -> Generator[Production]:
    server = Production()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    with forgetting_captures(monkeypatch):
        yield


def ask(provider: Endpoint) -> Any:
    """One model call of an agent that knows its provider only."""
    headers = {"authorization": "Bearer sk-the-agents"}
    with httpx.Client(headers=headers, timeout=10) as client:
        response = client.post(f"{provider.url}/v1/chat/completions", json=CHAT)
    assert response.status_code == 200
    return response.json()


def is_policys(answer: Any) -> bool:
    return "choices" in answer and answer["choices"][0]["message"]["content"] == "hello"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "leyden.production"]


def test_a_run_is_one_rollout_with_its_calls_and_notes(server: Production, provider: Endpoint) -> None:
    task = {"question": "1 + 1"}
    with leyden.core.capture(task, gateway=server.url, token=server.token, metadata={"user": "u1"}) as attempt:
        assert is_policys(ask(provider))
        assert is_policys(ask(provider))
        leyden.core.emit_reward(0.5)
    rollout = server.ended(attempt)
    assert (rollout.status, rollout.attempt.status, rollout.mode) == ("succeeded", "succeeded", None)
    assert (rollout.input, rollout.metadata) == (task, {"user": "u1", "capture": "production"})
    assert rollout.attempt.metadata == {"capture": "complete"}
    assert rollout.config.unresponsive_seconds == 60
    assert server.answers(attempt) == 2
    spans = server.run(server.store.query_spans(rollout.rollout_id))
    rewards = [span.attributes.get(semconv.REWARD_VALUE) for span in spans]
    assert [reward for reward in rewards if reward is not None] == [0.5]
    assert provider.seen == []
    assert not is_policys(ask(provider))  # outside the block everything is as it was
    assert current_attempt() is None


def test_odd_text_costs_no_rollout(server: Production) -> None:
    task = {"question": "a\ud800b"}
    with leyden.core.capture(task, gateway=server.url, token=server.token, metadata={"user": "\udc00"}) as attempt:
        leyden.core.emit_message("said \ud800")
    rollout = server.ended(attempt)
    assert (rollout.input, rollout.metadata["user"]) == ({"question": "a\ufffdb"}, "\ufffd")
    [note] = server.run(server.store.query_spans(rollout.rollout_id)).items
    assert "said \ufffd" in note.attributes.values()


async def test_async_runs_beside_each_other_are_rollouts_of_their_own(server: Production, provider: Endpoint) -> None:
    async def run(client: httpx.AsyncClient, number: int) -> OpenAttempt | None:
        async with leyden.core.capture(number, gateway=server.url, token=server.token) as attempt:
            response = await client.post(f"{provider.url}/v1/chat/completions", json=CHAT)
            assert is_policys(response.json())
        return attempt

    async with httpx.AsyncClient() as client:
        attempts = await asyncio.gather(*(run(client, number) for number in range(4)))
    rollouts = [server.ended(attempt) for attempt in attempts]
    assert sorted(rollout.input for rollout in rollouts) == [0, 1, 2, 3]
    assert [server.answers(attempt) for attempt in attempts] == [1] * 4
    assert provider.seen == []
    await gateway_pool.aclose()


def test_threads_of_a_run_work_for_it(server: Production, provider: Endpoint) -> None:
    with (
        leyden.core.capture(gateway=server.url, token=server.token) as attempt,
        ThreadPoolExecutor(3) as pool,
    ):
        assert all(map(is_policys, pool.map(ask, [provider] * 3)))
    server.ended(attempt)
    assert server.answers(attempt) == 3


def test_an_agents_error_stays_its_own_and_fails_the_rollout(server: Production) -> None:
    opened: list[OpenAttempt | None] = []
    with pytest.raises(ZeroDivisionError), leyden.core.capture(gateway=server.url, token=server.token) as attempt:
        opened.append(attempt)
        raise ZeroDivisionError
    assert server.ended(opened[0]).status == "failed"


def test_a_block_may_be_left_elsewhere_than_it_was_entered(server: Production, provider: Endpoint) -> None:
    block, here = leyden.core.capture(gateway=server.url, token=server.token), copy_context()
    attempt = here.run(block.__enter__)
    assert is_policys(here.run(ask, provider))
    copy_context().run(block.__exit__, None, None, None)
    assert server.ended(attempt).status == "succeeded"
    assert here.run(current_attempt) is None  # what was left open works for nobody
    assert not is_policys(here.run(ask, provider))


def test_only_the_root_opens_a_rollout(server: Production, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_CAPTURE", "production")
    monkeypatch.setenv("LEYDEN_GATEWAY_URL", f"{server.url}/")
    monkeypatch.setenv("LEYDEN_CAPTURE_TOKEN", server.token)
    with root_agent("planner") as attempt:
        with root_agent("solver") as inner, leyden.core.capture() as innermost:
            assert (inner, innermost) == (None, None)
        assert current_attempt() is attempt
    assert server.ended(attempt).metadata["agent"] == "planner"
    with outside_attempt(), leyden.core.capture() as judged:
        assert judged is None
    routing.install(fail_closed=True)
    with leyden.core.capture() as in_a_runner:
        assert in_a_runner is None
    runners = factories.attempt(NOBODY)
    with open_attempt(runners), root_agent("planner"):
        assert current_attempt() is runners
    assert server.run(server.store.statistics())["total_rollouts"] == 1


def test_without_the_environment_nothing_happens(
    provider: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LEYDEN_GATEWAY_URL", NOBODY)
    monkeypatch.setenv("LEYDEN_CAPTURE_TOKEN", "t")
    with root_agent("planner") as attempt:
        assert attempt is None
        assert not is_policys(ask(provider))
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"LEYDEN_CAPTURE": "yes"}, "LEYDEN_CAPTURE is 'yes'; it must be 'production'"),
        ({"LEYDEN_GATEWAY_URL": "gateway:80"}, "LEYDEN_GATEWAY_URL must be the root URL of a gateway"),
        ({"LEYDEN_GATEWAY_URL": "http://[::1"}, "Invalid IPv6 URL"),
        ({"LEYDEN_CAPTURE_TOKEN": ""}, "the capture token is missing; set LEYDEN_CAPTURE_TOKEN"),
        ({}, "refused"),
    ],
)
def test_what_cannot_work_is_said_once_and_the_agent_runs(
    environment: dict[str, str],
    line: str,
    provider: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = {"LEYDEN_CAPTURE": "production", "LEYDEN_GATEWAY_URL": NOBODY, "LEYDEN_CAPTURE_TOKEN": "t"}
    for name, value in {**good, **environment}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with leyden.core.capture() as attempt:
                assert attempt is None
                assert not is_policys(ask(provider))
    [told] = said(caplog)
    assert line in told
    assert [call["headers"]["authorization"] for call in provider.seen] == ["Bearer sk-the-agents"] * 3


def test_a_wrong_token_leaves_the_agent_alone(
    server: Production, provider: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with leyden.core.capture(gateway=server.url, token="wrong") as attempt:
        assert attempt is None
        assert not is_policys(ask(provider))
    assert "it answered 401" in said(caplog)[0]
    assert len(said(caplog)) == 1
    with leyden.core.capture(gateway=server.url, token=server.token) as attempt:
        assert is_policys(ask(provider))  # it does not count against the gateway
    server.ended(attempt)


def test_a_task_of_any_kind_is_kept_with_what_is_not_whole_in_its_metadata(server: Production) -> None:
    notes: Any = {1: "one", "text": SPOILED[str]("mine"), "blocks": OfHostileClass()}
    task = {"a": ReprRaises(), "b": SPOILED[float](0.5)}
    with leyden.core.capture(task, gateway=server.url, token=server.token, metadata=notes) as attempt:
        leyden.core.emit_message("said")
    rollout = server.ended(attempt)
    assert rollout.input == {"a": f"<{ReprRaises.__module__}.ReprRaises>", "b": 0.5}
    reasons = rollout.metadata[semconv.REDUCED]
    assert [reason.partition(":")[0] for reason in reasons] == ["input.a", "metadata.blocks"]
    assert (rollout.metadata["1"], rollout.metadata["text"]) == ("one", "mine")


def test_another_async_library_is_left_alone(server: Production, caplog: pytest.LogCaptureFixture) -> None:
    entering = leyden.core.capture(gateway=server.url, token=server.token).__aenter__()
    with pytest.raises(StopIteration) as stopped:
        entering.send(None)  # as any other event loop would
    assert stopped.value.value is None
    assert said(caplog) == ["Not captured: no running event loop"]
    assert server.run(server.store.statistics())["total_rollouts"] == 0


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_gateway_that_does_not_answer_is_waited_for_once(
    how: str, provider: Endpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capture, "BEGIN_SECONDS", 0.05)
    asked: list[None] = []
    begin = vars(capture)["_Gateway"].begin

    def counted(*args: Any) -> Any:
        asked.append(None)
        return begin(*args)

    monkeypatch.setattr(vars(capture)["_Gateway"], "begin", counted)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        def run() -> None:
            with leyden.core.capture(gateway=url, token="t") as attempt:
                assert attempt is None
                assert not is_policys(ask(provider))

        async def run_async() -> None:
            async with leyden.core.capture(gateway=url, token="t") as attempt:
                assert attempt is None

        for _ in range(3):
            if how == "sync":
                run()
            else:
                asyncio.run(run_async())
    assert said(caplog) == [f"Not captured at {url}: no answer within 0.05 s"]
    assert len(asked) == 1


async def test_a_rollout_that_nobody_waits_for_any_more_is_ended(
    server: Production, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = vars(capture)["_Gateway"]
    begin, there, go, begun = gateway.begin, threading.Event(), threading.Event(), list[Any]()

    def slow(*args: Any) -> Any:
        begun.append(begin(*args))
        there.set()
        go.wait(10)
        return begun[0]

    async def agent() -> None:
        async with leyden.core.capture(gateway=server.url, token=server.token):
            raise AssertionError("it was cancelled before it began")

    monkeypatch.setattr(gateway, "begin", slow)
    running = asyncio.create_task(agent())
    assert await asyncio.to_thread(there.wait, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go.set()
    assert server.ended(begun[0]).status == "failed"


def test_when_the_gateway_dies_in_the_middle_calls_go_to_the_provider(
    server: Production, provider: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with leyden.core.capture(gateway=server.url, token=server.token) as attempt:
        assert is_policys(ask(provider))
        server.stop()
        assert not is_policys(ask(provider))
        with ThreadPoolExecutor(2) as pool:
            assert not any(map(is_policys, pool.map(ask, [provider] * 2)))
    assert len(provider.seen) == 3
    assert {call["headers"]["authorization"] for call in provider.seen} == {"Bearer sk-the-agents"}
    assert not any(name.startswith(semconv.HEADER_PREFIX) for call in provider.seen for name in call["headers"])
    wait_for_ends()
    assert any("the end of a rollout was not recorded" in line for line in said(caplog))
    assert server.answers(attempt) == 1


def test_a_call_that_the_gateway_does_not_take_makes_the_record_incomplete(
    server: Production, provider: Endpoint
) -> None:
    with leyden.core.capture(gateway=server.url, token=server.token) as attempt, httpx.Client() as client:
        assert client.post(f"{provider.url}/v1/messages", json=CHAT).json() == {"path": "/v1/messages"}
    assert server.ended(attempt).attempt.metadata == {"capture": "incomplete"}


def test_the_end_is_told_before_the_process_ends(server: Production) -> None:
    script = f"""
import leyden.core
from leyden.core.tracing.production import capture
capture.BEGIN_SECONDS = 10.0
with leyden.core.capture(gateway={server.url!r}, token={server.token!r}) as attempt:
    print(attempt.rollout_id)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    rollout = server.run(server.store.get_rollout_by_id(done.stdout.strip()))
    assert rollout is not None
    assert rollout.status == "succeeded"


def test_the_end_takes_the_token_of_an_attempt_that_was_begun_here(server: Production) -> None:
    training = server.run(server.store.start_rollout("a task", mode="train"))
    token = mint(server.key, training.rollout_id, training.attempt.attempt_id)
    body = b"\x80"  # an empty map
    with httpx.Client(base_url=f"{server.url}/capture") as http:
        assert http.post("/end", content=body).status_code == 401
        for wrong, status in ((token, 403), (server.token, 401), (mint(new_key(), "ro", "at"), 401)):
            response = http.post("/end", content=body, headers={"authorization": f"Bearer {wrong}"})
            assert response.status_code == status
        assert http.get("/begin").status_code == 405
        assert http.post("/elsewhere").status_code == 404
        own = {"authorization": f"Bearer {server.token}"}
        assert http.post("/begin", content=json.dumps([]).encode(), headers=own).status_code == 400
    assert server.run(server.store.statistics())["total_rollouts"] == 1
