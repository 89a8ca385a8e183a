"""What a capture records on its way to the gateway: batches, failures, processes of the agent's own."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

import leyden.core
from leyden.core.data.production import CaptureSpans
from leyden.core.data.span import MOST_BYTES, Span
from leyden.core.gateway.calls import served_policy
from leyden.core.testing import factories
from leyden.core.testing.any_values.hostile import SPOILED, ReprRaises
from leyden.core.testing.capturing import TOKEN, capturing_bench, wait_for_ends
from leyden.core.testing.gateway_bench import GatewayBench
from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint
from leyden.core.tracing.context import OpenAttempt
from leyden.core.tracing.production import span_sender
from leyden.core.tracing.production.span_sender import BATCH, SpanSender, SpansRefused
from leyden.core.tracing.spans.run_tree import Run, RunTree


class Gateway:
    """Takes messages while it is up."""

    def __init__(self) -> None:
        self.up = True
        self.refuses: set[str] = set()
        self.messages: list[list[str]] = []
        self.came = threading.Event()

    def send(self, body: bytes) -> None:
        spans = msgspec.msgpack.decode(body, type=CaptureSpans).spans
        self.came.set()
        if not self.up:
            raise ConnectionRefusedError
        if refused := self.refuses & {span.name for span in spans}:
            raise SpansRefused(f"no {refused}")
        self.messages.append([span.name for span in spans])

    @property
    def names(self) -> list[str]:
        return [name for message in self.messages for name in message]


def spans(count: int, start: int = 0) -> list[Span]:
    return [factories.span(name=str(number)) for number in range(start, start + count)]


def test_a_long_run_sends_what_it_recorded_before_its_end() -> None:
    gateway = Gateway()
    waiting: list[Span] = []
    sender = SpanSender(waiting, gateway.send)
    for span in spans(BATCH):
        sender.keep(span)
    assert gateway.came.wait(10)
    assert sender.finish() == 0
    assert gateway.names == [str(number) for number in range(BATCH)]
    assert not waiting


def test_what_could_not_be_sent_is_sent_later_in_its_order() -> None:
    gateway = Gateway()
    sender = SpanSender([], gateway.send)
    gateway.up = False
    for span in spans(BATCH + 3):
        sender.keep(span)
    assert gateway.came.wait(10)
    assert sender.finish() == BATCH + 3
    gateway.up = True
    assert sender.finish() == 0
    assert gateway.names == [str(number) for number in range(BATCH + 3)]


def test_what_waits_has_a_limit_and_what_is_lost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_sender, "LIMIT", 5)
    gateway = Gateway()
    waiting = spans(12)
    sender = SpanSender(waiting, gateway.send)
    gateway.up = False
    assert sender.finish() == 12
    gateway.up = True
    assert sender.finish() == 7
    assert gateway.names == ["7", "8", "9", "10", "11"]


def test_spans_that_are_refused_do_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(span_sender, "BYTES", 1)
    gateway = Gateway()
    gateway.refuses = {"1"}
    with caplog.at_level(logging.WARNING, "leyden.production"):
        assert SpanSender(spans(3), gateway.send).finish() == 1
    assert gateway.messages == [["0"], ["2"]]
    assert "1 spans are not recorded: no {'1'}" in caplog.text


def test_spans_of_any_values_are_sent_and_one_that_is_none_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    odd: Any = {"a": ReprRaises(), "b": SPOILED[str]("mine"), "c": "half \ud800", "d": 1 << 70}
    no_id: Any = ReprRaises()
    large = factories.span(name="large", attributes={"text": "x" * (MOST_BYTES + 1)})
    waiting = [
        factories.span(name="odd", attributes=odd),
        factories.span(span_id=no_id),
        large,
        factories.span(name="last"),
    ]
    sender = SpanSender(waiting, gateway.send)
    with caplog.at_level(logging.WARNING, "leyden.production"):
        assert sender.finish() == 1
    assert gateway.messages == [["odd"], ["large"], ["last"]]
    assert "a span is not recorded: the span_id of a span is" in caplog.text
    assert not waiting


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_sends_nothing_of_its_parents() -> None:
    gateway = Gateway()
    sender = SpanSender(spans(2), gateway.send)
    child = os.fork()
    if child == 0:  # the child
        sender.keep(factories.span(name="mine"))
        sender.finish()
        os._exit(0 if gateway.names == ["mine"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- In a capture


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayBench]:
    with capturing_bench(lambda _: "hello", monkeypatch) as bench:
        yield bench


@pytest.fixture(params=["no SDK", "an SDK"])
def sdk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where OpenTelemetry's spans go, if anywhere."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None if request.param == "no SDK" else TracerProvider())


def begun(run: Run | None) -> Run:
    assert run is not None
    return run


async def stored(bench: GatewayBench, attempt: OpenAttempt | None) -> dict[str, Span]:
    assert attempt is not None
    wait_for_ends()
    return {span.name: span for span in await bench.spans(attempt)}


async def test_frameworks_emitters_and_spans_of_the_users_own_are_one_tree(bench: GatewayBench, sdk: None) -> None:
    """What is below a span that only the user's backend knows hangs from the nearest one that is stored."""
    tree, other = RunTree("some"), RunTree("other")
    tracer = trace.get_tracer("the user's")
    with tracer.start_as_current_span("request"), leyden.core.capture(gateway=bench.url, token=TOKEN) as attempt:
        tree.open_agent(begun(tree.start("agent", None, "solver")), "solver")
        tree.open_tool(begun(tree.start("tool", "agent", "look")), "look", arguments='{"secret": 1}')
        with tracer.start_as_current_span("the user's own"):
            other.open_agent(begun(other.start("inner", None, "helper")), "helper")
            leyden.core.emit_message("found")
            other.end("inner")
        tree.end("tool", ValueError("the secret is 1"))
        tree.end("agent")
    found = await stored(bench, attempt)
    assert {name: span.parent_id for name, span in found.items()} == {
        "invoke_agent solver": None,
        "execute_tool look": found["invoke_agent solver"].span_id,
        "invoke_agent helper": found["execute_tool look"].span_id,
        "leyden.message": found["invoke_agent helper"].span_id,
    }
    assert found["execute_tool look"].status.description == "the secret is 1"
    assert len({span.trace_id for span in found.values()}) == 1


async def test_a_workflow_that_turns_out_to_be_one_is_one_in_the_store_too(bench: GatewayBench, sdk: None) -> None:
    tree = RunTree("some")
    with leyden.core.capture(gateway=bench.url, token=TOKEN) as attempt:
        root = begun(tree.start("root", None, "graph"))
        root.by_shape = True
        tree.open_agent(root, "graph")
        tree.hold_agents(root)
        tree.end("root")
    assert list(await stored(bench, attempt)) == ["invoke_workflow graph"]


async def test_what_could_not_be_sent_is_counted_at_the_attempt(
    bench: GatewayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_sender, "BYTES", 1)
    with leyden.core.capture(gateway=bench.url, token=TOKEN) as attempt:
        assert attempt is not None
        leyden.core.emit_message("fits")
        leyden.core.emit_message("x" * (17 << 20))  # more than the gateway takes
    found = await stored(bench, attempt)
    assert [str(span.attributes.values()) for span in found.values()] == ["dict_values(['fits'])"]
    assert (await bench.rollout(attempt)).attempt.metadata == {"capture": "complete", "lost_spans": 1}


@pytest.fixture
def provider() -> Generator[Endpoint]:
    with echo_endpoint() as endpoint:
        yield endpoint


async def test_a_child_process_sends_what_it_records_itself(bench: GatewayBench, provider: Endpoint) -> None:
    code = f"""
import urllib.request
import leyden.core as agl

agl.emit_reward(0.5)
body = b'{{"model": "big", "messages": [{{"role": "user", "content": "hi"}}]}}'
urllib.request.urlopen(urllib.request.Request("{provider.url}/v1/chat/completions", body)).read()
"""
    with leyden.core.capture(gateway=bench.url, token=TOKEN) as attempt:
        subprocess.run([sys.executable, "-c", code], check=True)
    found = await stored(bench, attempt)
    assert set(found) == {"leyden.reward", "chat big"}
    assert not provider.seen


def test_that_a_greedy_agents_calls_cannot_be_trained_on_is_said_once(
    bench: GatewayBench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_policy, "_warned", set[str]())
    body: dict[str, Any] = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}
    with caplog.at_level(logging.WARNING, "leyden.gateway"):
        for sampling in ({}, {"temperature": 0}, {"temperature": 0}):
            with (
                leyden.core.capture(gateway=bench.url, token=TOKEN, metadata={"agent": "solver"}),
                httpx.Client() as http,
            ):
                answer = http.post("https://api.provider.invalid/v1/chat/completions", json={**body, **sampling})
                assert answer.status_code == 200
    [line] = [record.getMessage() for record in caplog.records if record.name == "leyden.gateway"]
    assert line.startswith(
        "Calls of the agent solver are recorded, but cannot be trained on: it requests temperature 0"
    )


async def test_spans_are_taken_only_of_an_open_attempt_that_was_begun_there(bench: GatewayBench) -> None:
    body = msgspec.msgpack.encode(CaptureSpans(spans=spans(1)))
    with leyden.core.capture(gateway=bench.url, token=TOKEN) as attempt:
        assert attempt is not None
        with httpx.Client(base_url=f"{bench.url}/capture") as http:
            own: dict[str, Any] = {"headers": {"authorization": f"Bearer {attempt.token}"}}
            assert http.post("/spans", content=body, **own).status_code == 200
            assert http.post("/spans", content=body).status_code == 401
            assert http.post("/spans", content=b"nonsense", **own).status_code == 400
    [span] = (await stored(bench, attempt)).values()
    assert (span.rollout_id, span.attempt_id) == (attempt.rollout_id, attempt.attempt_id)
    training = await bench.attempt("a task")
    with httpx.Client(base_url=f"{bench.url}/capture") as http:
        assert http.post("/spans", content=body, **own).status_code == 409
        wrong = {"authorization": f"Bearer {training.token}"}
        assert http.post("/spans", content=body, headers=wrong).status_code == 403
