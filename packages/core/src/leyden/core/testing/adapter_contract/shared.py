"""Common parts of the adapter contract: the abstract methods of an implementation, the model, and small helpers."""

import asyncio
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.errors import EngineError
from leyden.core.runner.adapters.base import Adapter
from leyden.core.testing.gateway_bench import GatewayBench, Late, Turn, only_this_machine
from leyden.core.tracing.context import OpenAttempt, current_caller, open_attempt
from leyden.core.tracing.spans.export import Recorder

PROVIDER = "https://api.openai.com/v1"
"""URL that the agents call; no request may arrive there."""
API_KEY = "sk-secret-of-the-agent"
UNLUCKY = 13
"""The tool raises ValueError for this number."""
SLOW_SECONDS = 60.0
LONGEST_SECONDS = 20.0
"""Longest wait of a test."""
CROWD = 32
"""Number of concurrent attempts of each of two agents."""
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])

_QUESTION = re.compile(r"(?:(left|right) )?(double|broken|flaky|slow) (\d+)")


class Question:
    """Question of a conversation: `double 7` for the solver, `left double 7` for a member of the team."""

    def __init__(self, conversation: list[Turn]) -> None:
        texts = [turn.text for turn in conversation if turn.role == "user"]
        found = next((match for text in texts if (match := _QUESTION.search(text))), None)
        assert found is not None, f"no question in {conversation}"
        self.speaker, self.kind, self.number = found[1] or "solver", found[2], int(found[3])

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class ContractModel:
    """The contract's model: for the solver it doubles the question's number with the tool; team members get a text."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def __call__(self, conversation: list[Turn]) -> str | Exception | Late:
        """Return the model's next output."""
        question = Question(conversation)
        results = [turn.text for turn in conversation if turn.role == "tool"]
        if question.kind == "slow":
            return Late("I am late.", SLOW_SECONDS)
        if question.kind == "broken":
            return EngineError("the engine is broken")
        if question.kind == "flaky" and str(question) not in self._failed:
            self._failed.add(str(question))
            return EngineError("the engine is broken for once")
        instructions = "\n".join(turn.text for turn in conversation if turn.role == "system")
        if handed := re.search(r'"(transfer_to_\w+)"', instructions):
            return _tool_call(handed[1], {})
        if results:
            return f"It is {results[-1]}."
        if '"double"' in instructions:
            return _tool_call("double", {"number": question.number})
        return f"I heard: {question}"


def _tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class BenchTests:
    """The fixtures of all tests."""

    @pytest.fixture
    def bench(self) -> Iterator[GatewayBench]:
        """The gateway with a scripted engine."""
        bench = GatewayBench(ContractModel())
        bench.start()
        yield bench
        bench.stop()

    @pytest.fixture
    async def recorder(self, bench: GatewayBench) -> AsyncIterator[Recorder]:
        """Routing, context propagation and span export, as in a runner's process, without access to any provider."""
        async with bench.recording() as recorder:
            with only_this_machine() as hosts:
                yield recorder
        assert not hosts


class AgentTests(BenchTests, ABC):
    """The abstract methods of an agent.

    The agents call `base_url` with the key `API_KEY` and temperature 0. They stream if `stream` is set, and their
    client retries `retries` times.
    """

    @abstractmethod
    def make_adapter(self) -> Adapter:
        """Return the adapter."""

    @abstractmethod
    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        """Return an agent named `solver` with one tool `double(number: int)`: twice the number, ValueError for 13."""

    @abstractmethod
    def call(self, agent: Any, text: str) -> Any:
        """Run `agent` synchronously on a question, as its author would, without a running event loop."""

    @abstractmethod
    async def stream_a_little(self, agent: Any, text: str) -> None:
        """Begin to stream the answer of `agent` as its author would, and stop after the first piece."""

    @abstractmethod
    def answer(self, result: Any) -> str:
        """Return the solver's final answer in `result`, from `call` or from the adapter's `run`."""

    @pytest.fixture
    def adapter(self, recorder: Recorder) -> Iterator[Adapter]:
        """The instrumented adapter."""
        adapter = self.make_adapter()
        adapter.instrument()
        yield adapter
        adapter.uninstrument()

    async def run(self, bench: GatewayBench, adapter: Adapter, agent: Any, text: str) -> tuple[Any, OpenAttempt]:
        """Run a fresh `agent` in an attempt of its own; return its result and the attempt."""
        attempt = await bench.attempt({"question": text})
        with open_attempt(attempt):
            result = await adapter.run(adapter.fresh(agent), {"question": text}, {})
        return result, attempt

    async def leave_half_way(self, bench: GatewayBench) -> OpenAttempt:
        """Stream a part of the solver's answer, and return once a call is recorded."""
        attempt = await bench.attempt("x")
        with open_attempt(attempt):
            await self.stream_a_little(self.make_solver(PROVIDER, stream=True), "double 7")
        async with asyncio.timeout(LONGEST_SECONDS):
            while not any(is_served(span) for span in await bench.spans(attempt)):
                await asyncio.sleep(0.02)
        return attempt

    async def cancel_half_way(
        self, bench: GatewayBench, adapter: Adapter, agent: Any
    ) -> tuple[asyncio.Task[None], OpenAttempt]:
        """Cancel a run of `agent` during a model call; return the ended task and the attempt."""
        attempt = await bench.attempt("x")

        async def work() -> None:
            with open_attempt(attempt):
                await adapter.run(adapter.fresh(agent), {"question": "slow 7"}, {})

        task = asyncio.create_task(work())
        async with asyncio.timeout(LONGEST_SECONDS):
            while not bench.gateway.engine.requests:
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait({task})
        assert current_caller() is None
        return task, attempt


class AdapterTests(AgentTests):
    """Further abstract members for an adapter that records structure."""

    package: ClassVar[str]
    """The adapter's own package, such as `leyden.langchain`."""
    framework: ClassVar[tuple[str, ...]]
    """The framework's top-level modules; an import of the package may load none of them."""

    @abstractmethod
    def make_team(self, base_url: str, *, stream: bool) -> Any:
        """Return two agents or nodes, `left` and `right`, in parallel where the framework supports that.

        Each makes one model call. The first user message with a question contains its own question: `left double 7`.
        """

    @abstractmethod
    def without_own_tracing(self) -> AbstractContextManager[None]:
        """Disable the framework's own tracing inside the block, in the way that its documentation describes."""


async def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)`, `work(1)`, ... in a thread each, all at once; raises nothing, so `work` must keep its errors."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])


def is_served(span: Span) -> bool:
    """Whether `span` is the gateway's own."""
    return semconv.CALL_ID in span.attributes


def operation(span: Span) -> str:
    """Return the operation of a framework's span."""
    return str(span.attributes.get(semconv.OPERATION))


def speakers(span: Span) -> list[str]:
    """Return the agent and the node of `span`."""
    return [str(span.attributes.get(name)) for name in (semconv.AGENT_NAME, semconv.NODE)]


def above(span: Span, by_id: Mapping[str, Span]) -> list[Span]:
    """Return the ancestors of `span`, nearest first."""
    found: list[Span] = []
    while span.parent_id is not None:
        span = by_id[span.parent_id]
        found.append(span)
    return found


def check_tree(spans: Sequence[Span], number: int) -> None:
    """Assert that `spans` are one complete run of the solver at `double NUMBER`: two calls, one tool, and no more."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    [root] = [span for span in spans if span.parent_id is None]
    assert operation(root) in ("invoke_agent", "invoke_workflow")
    [agent] = [
        span for span in spans if operation(span) == "invoke_agent" and span.attributes[semconv.AGENT_NAME] == "solver"
    ]
    assert agent is root or root in above(agent, by_id)
    served = [span for span in spans if is_served(span)]
    assert len(served) == 2
    for span in served:
        assert span.attributes[semconv.AGENT_NAME] == "solver"
        parent = by_id[str(span.parent_id)]
        assert operation(parent) in ("chat", "invoke_agent") and not is_served(parent)
        assert parent is agent or agent in above(parent, by_id)
    [tool] = [span for span in spans if operation(span) == "execute_tool"]
    assert tool.name == "execute_tool double"
    assert tool.attributes[semconv.TOOL_NAME] == "double"
    assert json.loads(str(tool.attributes[semconv.TOOL_ARGUMENTS])) == {"number": number}
    assert str(2 * number) in str(tool.attributes[semconv.TOOL_RESULT])
    assert agent in above(tool, by_id)
