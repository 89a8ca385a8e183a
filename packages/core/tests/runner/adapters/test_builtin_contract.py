"""What agents without a framework are promised: `LitAgent`, `@rollout`, `openai` scripts, programs of any language."""

import asyncio
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from leyden.core.data import semconv
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Attributes
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.builtin import CommandAdapter, FunctionAdapter, LitAgentAdapter
from leyden.core.runner.adapters.lit_agent import LitAgent
from leyden.core.runner.adapters.rollout_function import rollout
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing.adapter_contract import API_KEY, ForeignContract, PlainContract
from leyden.core.testing.adapter_contract.shared import ContractModel
from leyden.core.testing.factories import span
from leyden.core.testing.gateway_bench import Answer, GatewayBench
from leyden.core.testing.running import finished, running
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.emit import emit_reward

PATIENCE = 120.0  # seconds; a client waits five for a connection, which 64 at once may need on a busy machine
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
FUNCTION = {"name": "double", "description": "Double a number.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}


def double(number: int) -> int:
    if number == 13:
        raise ValueError("13 is unlucky")
    return 2 * number


def first_messages(question: str) -> list[Any]:
    return [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": question}]


def request(messages: list[Any]) -> dict[str, Any]:
    return {"model": "gpt-4.1-mini", "messages": messages, "tools": [TOOL], "temperature": 0}


def use_tools(message: dict[str, Any]) -> list[Any]:
    results: list[Any] = []
    for call in message.get("tool_calls") or ():
        content = str(double(**json.loads(call["function"]["arguments"])))
        results.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return results


def put_together(chunks: Iterable[Any]) -> dict[str, Any]:
    """The message that the chunks of a stream come to."""
    content, calls = "", dict[int, dict[str, Any]]()
    for chunk in chunks:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or ():
            call = calls.setdefault(part.index, {"type": "function", "function": {"name": "", "arguments": ""}})
            call["id"] = part.id or call["id"]
            call["function"]["name"] += part.function.name or ""
            call["function"]["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls.values())} if calls else {})


def solve(base_url: str, stream: bool, retries: int, task: Any) -> str:
    """An agent as a plain script on the `openai` package would have it."""
    messages = first_messages(task["question"])
    with OpenAI(base_url=base_url, api_key=API_KEY, max_retries=retries, timeout=PATIENCE) as client:
        create: Any = client.chat.completions.create
        while True:
            if stream:
                message = put_together(create(**request(messages), stream=True))
            else:
                answer = create(**request(messages))
                message = answer.choices[0].message.model_dump(exclude_none=True)
            results = use_tools(message)
            if not results:
                return message["content"]
            messages += [message, *results]


async def solve_async(base_url: str, stream: bool, retries: int, task: Any) -> str:
    messages = first_messages(task["question"])
    async with AsyncOpenAI(base_url=base_url, api_key=API_KEY, max_retries=retries, timeout=PATIENCE) as client:
        create: Any = client.chat.completions.create
        while True:
            if stream:
                chunks = await create(**request(messages), stream=True)
                message = put_together([chunk async for chunk in chunks])
            else:
                answer = await create(**request(messages))
                message = answer.choices[0].message.model_dump(exclude_none=True)
            results = use_tools(message)
            if not results:
                return message["content"]
            messages += [message, *results]


class AsksOnce:
    """The steps that agents in this process share."""

    base_url = ""

    async def stream_a_little(self, agent: Any, text: str) -> None:
        async with AsyncOpenAI(base_url=self.base_url, api_key=API_KEY, max_retries=0, timeout=PATIENCE) as client:
            stream = await client.chat.completions.create(**request(first_messages(text)), stream=True)
            async for _ in stream:
                break
            await stream.close()

    def note(self, base_url: str, stream: bool, retries: int) -> tuple[str, bool, int]:
        self.base_url = base_url
        return base_url, stream, retries


class TestSyncFunctionContract(AsksOnce, PlainContract):
    def make_adapter(self) -> Adapter:
        return FunctionAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        return functools.partial(solve, *self.note(base_url, stream, retries))

    def call(self, agent: Any, text: str) -> Any:
        return agent({"question": text})

    def answer(self, result: Any) -> str:
        return result


class TestAsyncFunctionContract(TestSyncFunctionContract):
    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        return functools.partial(solve_async, *self.note(base_url, stream, retries))

    def call(self, agent: Any, text: str) -> Any:
        return asyncio.run(agent({"question": text}))


@dataclass
class Streaming:
    """Called with a question, it yields the words of its answer."""

    base_url: str
    stream: bool
    retries: int

    def __call__(self, question: str) -> Iterator[str]:
        yield from re.findall(r"\S+\s*", solve(self.base_url, self.stream, self.retries, {"question": question}))


class TestStreamingObjectContract(TestSyncFunctionContract):
    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        return Streaming(*self.note(base_url, stream, retries))

    def call(self, agent: Any, text: str) -> Any:
        return "".join(agent(text))


class TestAsyncStreamContract(TestSyncFunctionContract):
    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        settings = self.note(base_url, stream, retries)

        async def solver(question: str) -> AsyncIterator[str]:
            for word in re.findall(r"\S+\s*", await solve_async(*settings, {"question": question})):
                yield word

        return solver

    def call(self, agent: Any, text: str) -> Any:
        async def whole() -> str:
            return "".join([word async for word in agent(text)])

        return asyncio.run(whole())


class Solver(LitAgent[Any]):
    """Returns named dimensions."""

    def __init__(self, base_url: str, stream: bool, retries: int) -> None:
        self.settings = base_url, stream, retries
        self.questions: list[str] = []

    def rollout(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> dict[str, float]:
        self.questions.append(task["question"])
        answer = solve(*self.settings, {"question": " and ".join(self.questions)})
        return {"number": number_in(answer), "words": float(len(answer.split()))}


def number_in(answer: str) -> float:
    return float(answer.removeprefix("It is ").removesuffix("."))


class TestLitAgentContract(AsksOnce, PlainContract):
    def make_adapter(self) -> Adapter:
        return LitAgentAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        return Solver(*self.note(base_url, stream, retries))

    def call(self, agent: Any, text: str) -> Any:
        return agent.rollout({"question": text}, {}, None)

    def answer(self, result: Any) -> str:
        assert result["words"] == 3
        return f"It is {result['number']:.0f}."


class TestRolloutFunctionContract(AsksOnce, PlainContract):
    def make_adapter(self) -> Adapter:
        return LitAgentAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        settings = self.note(base_url, stream, retries)

        @rollout
        async def solver(task: dict[str, str], resources: NamedResources) -> float:
            assert resources == {}
            return number_in(await solve_async(*settings, task))

        return solver

    def call(self, agent: Any, text: str) -> Any:
        return asyncio.run(agent({"question": text}, {}))

    def answer(self, result: Any) -> str:
        return f"It is {result:.0f}."


PROGRAM = '''
"""A solver that knows no package but the standard library's: program.py URL plain|streamed|leaves RETRIES QUESTION."""

import http.client, json, os, sys, time, urllib.parse

own_url, how, retries, question = sys.argv[1:]
url = urllib.parse.urlsplit(os.environ.get("OPENAI_BASE_URL", own_url))
tool = json.loads(os.environ["TOOL"])

def post(messages):
    body = {"model": "gpt-4.1-mini", "messages": messages, "tools": [tool], "temperature": 0}
    body["stream"] = how != "plain"
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "")}
    for attempt in range(1 + int(retries)):
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        count = {"x-stainless-retry-count": str(attempt)}
        connection.request("POST", url.path + "/chat/completions", json.dumps(body), headers | count)
        answer = connection.getresponse()
        if answer.status == 200:
            return answer
        text = answer.read().decode()
    sys.exit(f"the model answers {answer.status}: {text}")

def complete(messages):
    answer = post(messages)
    if how == "plain":
        return json.load(answer)["choices"][0]["message"]
    message = {"role": "assistant", "content": ""}
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        if how == "leaves":
            sys.exit(0)
        delta = json.loads(line[6:])["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            calls = message.setdefault("tool_calls", [])
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            for key, text in part["function"].items():
                calls[part["index"]]["function"][key] += text or ""
    return message

messages = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": question}]
while True:
    message = complete(messages)
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        number = json.loads(call["function"]["arguments"])["number"]
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(2 * number)})
print(message["content"])
'''


class TestForeignProcessContract(ForeignContract):
    @pytest.fixture(autouse=True)
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = tmp_path / "program.py"
        self.path.write_text(PROGRAM)
        monkeypatch.setenv("TOOL", json.dumps(TOOL))
        monkeypatch.setenv("OPENAI_API_KEY", API_KEY)

    def make_adapter(self) -> Adapter:
        return CommandAdapter()

    def make_solver(self, base_url: str, *, stream: bool, retries: int = 0) -> Any:
        how = "streamed" if stream else "plain"
        return CommandAgent([sys.executable, "-IS", str(self.path), base_url, how, str(retries), "{question}"])

    def call(self, agent: Any, text: str) -> Any:
        environment = {name: value for name, value in os.environ.items() if name != "OPENAI_BASE_URL"}
        command = agent.filled({"question": text})
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    async def stream_a_little(self, agent: Any, text: str) -> None:
        leaving = [word.replace("streamed", "leaves") for word in agent.arguments]
        attempt = current_attempt()
        assert attempt is not None
        assert await CommandAgent(leaving).run({"question": text}, attempt) == ""

    def answer(self, result: Any) -> str:
        return result

    async def test_its_end_and_its_last_words_are_the_error(self, bench: GatewayBench, adapter: Adapter) -> None:
        with pytest.raises(Exception, match=r"ended with exit code 1: the model answers 500") as failure:
            await self.run(bench, adapter, self.make_solver("http://127.0.0.1:9", stream=False), "broken 1")
        assert "\n" not in str(failure.value)


# --- What `@rollout` may return


@contextmanager
def started(model: Answer) -> Generator[GatewayBench]:
    bench = GatewayBench(model)
    bench.start()
    try:
        yield bench
    finally:
        bench.stop()


def as_number(answer: str) -> Any:
    return number_in(answer)


def as_dimensions(answer: str) -> Any:
    return {"number": number_in(answer), "words": 3.0}


def as_spans(answer: str) -> Any:
    attributes: Attributes = {semconv.REWARD_VALUE: number_in(answer)}
    return [span(semconv.REWARD, attributes, rollout_id="", attempt_id="", sequence_id=0, span_id="2" * 16)]


def as_nothing(answer: str) -> None:
    emit_reward(number_in(answer))


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("returns", "expected"), [(as_number, 14.0), (as_dimensions, 17.0), (as_spans, 14.0), (as_nothing, 14.0)]
)
async def test_what_a_typed_rollout_returns_is_the_reward_of_its_attempt(
    kind: str, returns: Callable[[str], Any], expected: float
) -> None:
    @rollout
    def sync_solver(task: dict[str, str], llm: LLM, rollout: AttemptedRollout) -> Any:
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        return returns(solve(url, False, 0, task))

    @rollout
    async def async_solver(task: dict[str, str], *, llm: LLM, rollout: AttemptedRollout) -> Any:
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        return returns(await solve_async(url, True, 0, task))

    with started(ContractModel()) as bench:
        store, agent = bench.store, sync_solver if kind == "sync" else async_solver
        await store.add_resources({"main_llm": LLM(endpoint=bench.url, model="policy")})
        waiting = await store.enqueue_rollout({"question": "double 7"}, mode="train")
        async with running(store, agent, gateway_url=bench.url, key=bench.gateway.key) as runner:
            (ended,) = await finished(store, [waiting.rollout_id])
            trajectory = await runner.source.adapter.collect_trajectory(store, ended.attempt)
        assert ended.status == "succeeded"
        assert trajectory.reward == expected
        assert len(trajectory.transitions) == len(bench.log) == 2
        assert trajectory.dimensions == ({"number": 14.0, "words": 3.0} if returns is as_dimensions else {})
