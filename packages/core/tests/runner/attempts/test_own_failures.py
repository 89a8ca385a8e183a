"""Whatever fails in Leyden itself ends the attempt at once, with its reason; never as a success, never by a timeout."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.resources import Resource, ResourcesUpdate
from leyden.core.data.rollout import AttemptedRollout, RolloutConfig, Task
from leyden.core.data.span import Span
from leyden.core.errors import StoreError, TaskError
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.builtin import FunctionAdapter
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.attempts.agent_run import AgentRun
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.runner.attempts.own_failures import OwnFailure, own_failure, own_work, raised_by_adapter
from leyden.core.runner.commands import process
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.runner.runner import Runner
from leyden.core.store import outage
from leyden.core.store.base import LightningStore
from leyden.core.store.memory import MemoryStore
from leyden.core.testing.running import error_of, finished, run_one, runner_config, running
from leyden.core.tracing.emit import emit_message, emit_reward
from leyden.core.tracing.spans.export import DroppedSpans, Recorder

LONG = RolloutConfig(timeout_seconds=3600.0, unresponsive_seconds=3600.0)
"""Nothing in these tests may end an attempt by its limits."""


def one(task: Any, result: Any) -> float:
    return 1.0


async def echo(task: Any) -> Any:
    return task


async def ended_in(store: LightningStore, agent: Any, **changes: Any) -> tuple[AttemptedRollout, list[Span]]:
    """The one rollout that is run in `store`, and its spans."""
    queued = await store.enqueue_rollout("task", config=LONG)
    async with running(store, agent, **changes):
        (ended,) = await finished(store, [queued.rollout_id])
    return ended, (await store.query_spans(queued.rollout_id)).items


# --- The store


class Picky(MemoryStore):
    """Cannot encode spans of one name, as if what they hold had no form that it can keep."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        if any(span.name == self.name for span in spans):
            raise TypeError("Encoding objects of type Odd is unsupported")
        return await super().add_many_spans(spans)

    async def add_span(self, span: Span) -> Span | None:
        await self.add_many_spans([span])
        return await super().add_span(span)


async def emits(task: Any) -> str:
    emit_message("hello")
    emit_reward(0.25)
    return "done"


@pytest.mark.parametrize(
    ("name", "called"),
    [(semconv.RESULT, "result"), (semconv.REWARD, "reward"), (semconv.MESSAGE, f"span {semconv.MESSAGE!r}")],
)
async def test_a_span_that_cannot_be_stored_fails_the_attempt_and_takes_no_other_with_it(
    name: str, called: str
) -> None:
    ended, spans = await ended_in(Picky(name), emits, reward=one)
    reason = f"{called} cannot be recorded: TypeError: Encoding objects of type Odd is unsupported"
    assert (ended.status, ended.attempt.status) == ("failed", "failed")
    assert error_of(ended) == {"kind": "leyden", "type": "TypeError", "message": reason}
    count = 2 if name == semconv.REWARD else 1
    assert ended.attempt.metadata["not_stored"] == {"spans": count, "reason": reason}
    written = [semconv.MESSAGE, semconv.REWARD, semconv.RESULT, semconv.REWARD]
    assert [span.name for span in spans] == [other for other in written if other != name]


async def test_what_the_agent_raised_stays_the_reason_where_its_record_cannot_be_stored() -> None:
    async def agent(task: Any) -> Any:
        raise LookupError("no luck")

    ended, _ = await ended_in(Picky(semconv.EXCEPTION), agent)
    assert (error_of(ended)["kind"], error_of(ended)["message"]) == ("agent", "no luck")
    assert ended.attempt.metadata["not_stored"]["reason"].startswith("exception cannot be recorded: TypeError")


class Faulty(MemoryStore):
    """Raises once for each of the errors given, from the method of that name."""

    def __init__(self, method: str, *errors: Exception) -> None:
        super().__init__()
        self.method, self.errors = method, list(errors)

    def raise_next(self, method: str) -> None:
        if method == self.method and self.errors:
            raise self.errors.pop(0)

    async def update_attempt(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("status") not in (None, "running"):
            self.raise_next("update_attempt")
        if kwargs.get("status") == "running":
            self.raise_next("begin")
        return await super().update_attempt(*args, **kwargs)

    async def query_spans(self, *args: Any, **kwargs: Any) -> Any:
        self.raise_next("query_spans")
        return await super().query_spans(*args, **kwargs)

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        self.raise_next("get_latest_resources")
        return await super().get_latest_resources()

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        self.raise_next("add_many_spans")
        return await super().add_many_spans(spans)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        ("begin", RuntimeError("odd answer"), "the runner failed: RuntimeError: odd answer"),
        ("begin", StoreError("disk full"), "the runner failed: disk full"),
        ("get_latest_resources", StoreError("disk full"), "the rollout's resources cannot be read: disk full"),
        ("add_many_spans", StoreError("disk full"), "the attempt's spans cannot be stored: disk full"),
        ("update_attempt", TypeError("no form"), "the status of the attempt cannot be stored: TypeError: no form"),
    ],
)
async def test_a_failure_of_the_store_is_the_reason_of_the_attempt(
    monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, message: str
) -> None:
    monkeypatch.setattr(outage, "LONGEST_SECONDS", 0.0)
    ended, _ = await ended_in(Faulty(method, error), echo)
    assert (ended.attempt.status, error_of(ended)["kind"]) == ("failed", "leyden")
    assert error_of(ended)["message"] == message


@pytest.mark.parametrize(("error", "has_trace"), [(StoreError("disk full"), False), (RuntimeError("odd answer"), True)])
async def test_an_error_that_the_store_explains_is_logged_without_a_trace(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception, has_trace: bool
) -> None:
    monkeypatch.setattr(outage, "LONGEST_SECONDS", 0.0)
    ended, _ = await ended_in(Faulty("begin", error), echo)
    assert f"Leyden failed in rollout {ended.rollout_id}" in caplog.text
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == has_trace


@pytest.mark.parametrize("method", ["begin", "get_latest_resources", "add_many_spans", "update_attempt"])
async def test_no_attempt_ends_by_an_outage_of_the_store(method: str) -> None:
    store = Faulty(method, StoreError("it is unknown whether the data was stored"), StoreError("starting up"))
    ended, spans = await ended_in(store, echo, reward=one)
    assert (ended.attempt.status, ended.attempt.sequence_id, error_of(ended)) == ("succeeded", 1, {})
    assert [span.name for span in spans] == [semconv.RESULT, semconv.REWARD]
    assert store.errors == []


async def test_only_an_attempt_that_no_store_marks_is_left_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "LONGEST_SECONDS", 0.0)
    store = Faulty("update_attempt", StoreError("gone"), StoreError("gone"))
    queued = await store.enqueue_rollout("lost", config=LONG)
    async with running(store, echo, concurrency=1):
        after = await store.enqueue_rollout("next", config=LONG)
        (ended,) = await finished(store, [after.rollout_id])
    left = await store.get_latest_attempt(queued.rollout_id)
    assert left is not None
    assert (left.status, ended.attempt.status) == ("running", "succeeded")
    assert "cannot be stored: " in caplog.text
    assert "Traceback" not in caplog.text


class Quiet(Hook):
    """Does nothing; that it is there makes the runner read the attempt's spans."""


async def test_what_fails_after_the_mark_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = Faulty("query_spans", StoreError("gone"), StoreError("gone"))
    with caplog.at_level(logging.WARNING):
        queued = await store.enqueue_rollout("task", config=LONG)
        async with running(store, echo, hooks=(Quiet(),)):
            (ended,) = await finished(store, [queued.rollout_id])
    assert (ended.attempt.status, error_of(ended)) == ("succeeded", {})
    assert "on_rollout_end is not called: gone" in caplog.text


async def test_a_recorder_that_fails_is_the_reason_of_the_attempt() -> None:
    class Failing(Recorder):
        async def flush(self) -> None:
            raise RuntimeError("no exporter")

    store = MemoryStore()
    queued = await store.enqueue_rollout("task", config=LONG)
    recorder = Failing(store.add_many_spans)
    runner = Runner(store, AgentSource.of(echo), config=runner_config(), recorder=recorder)
    async with running(store, echo, runner=runner):
        (ended,) = await finished(store, [queued.rollout_id])
    assert error_of(ended)["message"] == "the attempt's spans cannot be stored: RuntimeError: no exporter"


async def test_a_frameworks_span_that_is_not_stored_is_noted_and_fails_nothing() -> None:
    store = MemoryStore()
    queued = await store.enqueue_rollout("task", config=LONG)
    refused = {f"{queued.rollout_id}-a1": DroppedSpans(3, "span 'node' cannot be recorded: too large")}

    class Refusing(Recorder):
        def refused(self, attempt_id: str) -> DroppedSpans | None:
            return refused[attempt_id]

    recorder = Refusing(store.add_many_spans)
    runner = Runner(store, AgentSource.of(echo), config=runner_config(), recorder=recorder)
    async with running(store, echo, runner=runner):
        (ended,) = await finished(store, [queued.rollout_id])
    assert ended.attempt.status == "succeeded"
    assert ended.attempt.metadata["not_stored"] == {"spans": 3, "reason": "span 'node' cannot be recorded: too large"}


# --- The adapter


class Broken(FunctionAdapter):
    """Fails in one of its methods."""

    name = "broken"

    def __init__(self, method: str, error: Exception) -> None:
        self.method, self.error = method, error

    def raise_in(self, method: str) -> None:
        if method == self.method:
            raise self.error

    def fresh(self, agent: Any) -> Any:
        self.raise_in("fresh")
        return agent

    def check(self, agent: Any, task: Task) -> None:
        self.raise_in("check")

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        self.raise_in("run")
        return await super().run(agent, task, resources)

    def returned_reward(self, result: Any) -> Any:
        self.raise_in("returned_reward")
        return None


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("fresh", "adapter 'broken' cannot make a fresh agent: KeyError: 'x'"),
        ("check", "adapter 'broken' cannot check the task: KeyError: 'x'"),
        ("run", "adapter 'broken' failed: KeyError: 'x'"),
        ("returned_reward", "adapter 'broken' cannot read the reward from what the agent returned: KeyError: 'x'"),
    ],
)
async def test_a_failing_adapter_is_not_taken_for_a_failing_agent(method: str, message: str) -> None:
    source = AgentSource(echo, Broken(method, KeyError("x")))
    ended, spans = await ended_in(MemoryStore(), source)
    assert error_of(ended) == {"kind": "leyden", "type": "KeyError", "message": message}
    raised = next(span for span in spans if span.name == semconv.EXCEPTION)
    assert "test_own_failures.py" in str(raised.attributes["exception.stacktrace"])


async def test_what_the_user_can_mend_is_no_failure_of_the_adapter() -> None:
    ended, _ = await ended_in(MemoryStore(), AgentSource(echo, Broken("check", TaskError("no key"))))
    assert (error_of(ended)["kind"], error_of(ended)["message"]) == ("input", "no key")


async def test_a_factory_that_fails_is_the_agents_own_failure() -> None:
    made: list[Any] = []

    def factory() -> Any:
        if made:
            raise LookupError("only once")
        made.append(echo)
        return echo

    ended, _ = await ended_in(MemoryStore(), AgentSource.of(factory))
    assert (error_of(ended)["kind"], error_of(ended)["message"]) == ("agent", "only once")


def raised_in(module: str, error: Exception) -> Exception:
    """`error`, raised by code of a module of that name."""
    code = ModuleType(module)
    code.__dict__["error"] = error
    try:
        exec("raise error", code.__dict__)
    except Exception as caught:
        return caught
    raise AssertionError


def adapter_in(module: str) -> Adapter:
    kind = type("Fitting", (Broken,), {"__module__": module})
    return kind("nowhere", KeyError())


@pytest.mark.parametrize(
    ("adapter", "raised", "is_own"),
    [
        ("leyden.langchain._adapter", "leyden.langchain._adapter", True),
        ("leyden.langchain._adapter", "leyden.langchain._input", True),
        ("leyden.langchain._adapter", "langchain_core.runnables", False),
        ("leyden.langchain._adapter", "leyden.core.tracing.emit", False),
        ("leyden.core.runner.adapters.builtin", "leyden.core.runner.adapters.builtin", True),
        ("leyden.core.runner.adapters.builtin", "leyden.core.runner.attempts.threads", False),
        ("mine.adapter", "mine.adapter", True),
        ("mine.adapter", "mine.agent", False),
    ],
)
def test_an_error_is_the_adapters_where_its_code_raised_it(adapter: str, raised: str, is_own: bool) -> None:
    assert raised_by_adapter(raised_in(raised, KeyError()), adapter_in(adapter)) is is_own
    assert not raised_by_adapter(raised_in(raised, TypeError()), adapter_in(adapter)), "wrong arguments of the agent"


async def test_a_command_whose_supervisor_dies_is_no_failure_of_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dies = tmp_path / "dies.py"
    dies.write_text("raise SystemExit(1)")
    monkeypatch.setattr(process, "SUPERVISE", str(dies))
    ended, _ = await run_one(CommandAgent(["true"]), config=LONG)
    assert error_of(ended) == {
        "kind": "leyden",
        "type": "LeydenError",
        "message": "the command cannot be run: the process that supervises true was lost",
    }
    monkeypatch.undo()
    ended, _ = await run_one(CommandAgent(["false"]), config=LONG)
    assert (error_of(ended)["kind"], error_of(ended)["type"]) == ("agent", "CommandFailed")


# --- The runner


async def test_an_attempt_whose_own_task_failed_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("not even this")

    monkeypatch.setattr(AgentRun, "_failure_from", broken)

    async def agent(task: Any) -> Any:
        raise LookupError("no luck")

    ended, _ = await ended_in(MemoryStore(), agent)
    assert (ended.attempt.status, error_of(ended)["kind"]) == ("failed", "leyden")
    assert error_of(ended)["message"] == "the end of the agent cannot be recorded: RuntimeError: not even this"


def test_an_own_failure_names_what_could_not_be_done_once() -> None:
    def fails() -> None:
        with own_work("outer"), own_work("the record cannot be read"):
            raise KeyError("x")

    with pytest.raises(OwnFailure) as caught:
        fails()
    assert str(caught.value) == "the record cannot be read: KeyError: 'x'"
    failure = own_failure("never said", caught.value)
    assert (failure.kind, failure.type, failure.text) == ("leyden", "KeyError", str(caught.value))
