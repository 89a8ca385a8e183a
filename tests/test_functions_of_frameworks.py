"""User functions around the frameworks: what they stream or only make is run inside the attempt, whatever its form."""

# The frameworks' own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.testing.adapter_contract.shared import API_KEY, PROVIDER, is_served
from leyden.core.testing.gateway_bench import GatewayBench, Turn, only_this_machine
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.spans.export import Recorder

TASK = {"question": "What is 7 and 7?", "answer": "14"}
pytestmark = [
    pytest.mark.keeps("thread", "LanceDB, where CrewAI remembers, keeps an event loop"),
    pytest.mark.keeps("descriptor", "LanceDB's event loop has sockets"),
    pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning"),  # AutoGen expects a dated model
    pytest.mark.filterwarnings("ignore:function_calling_llm is deprecated:DeprecationWarning"),  # CrewAI's own
    pytest.mark.filterwarnings("ignore:deprecated$:DeprecationWarning"),
]


def chain() -> Any:
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    model = ChatOpenAI(model="gpt-4.1-mini", base_url=PROVIDER, api_key=SecretStr(API_KEY))
    return ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()


def chain_streams(question: str) -> Any:
    return chain().stream({"question": question})


def chain_streams_async(question: str) -> Any:
    return chain().astream({"question": question})


def graph_streams(question: str) -> Any:
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(chain().invoke({"question": state["messages"][-1].text}))]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph: Any = builder.compile()
    return graph.stream({"messages": [("user", question)]})


def chain_for(task: Any) -> Any:
    return chain()


async def chain_later() -> Any:
    return chain()


def chain_with(model: str = "gpt-4.1-mini", *, size: int = 3) -> Any:
    return chain()


def swift() -> Any:
    from agents import Agent, OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=PROVIDER, api_key=API_KEY)
    return Agent(name="solver", model=OpenAIChatCompletionsModel("gpt-4.1-mini", openai_client=client))


async def swift_streams(question: str) -> Any:
    from agents import Runner

    return Runner.run_streamed(swift(), question)


def swift_for(task: Any) -> Any:
    return swift()


async def swift_later() -> Any:
    return swift()


def assistant() -> Any:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY)
    return AssistantAgent("solver", client)


def assistant_streams(question: str) -> Any:
    return assistant().run_stream(task=question)


def assistant_for(task: Any) -> Any:
    return assistant()


async def assistant_later() -> Any:
    return assistant()


def crew(stream: bool = False) -> Any:
    from crewai import LLM, Agent, Crew, Task

    llm = LLM(model="openai/gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY, stream=stream)
    solver = Agent(role="solver", goal="answer", backstory="You work.", llm=llm)
    return Crew(
        agents=[solver], tasks=[Task(description="{question}", expected_output="a", agent=solver)], stream=stream
    )


def crew_streams(question: str) -> Any:
    return crew(stream=True).kickoff({"question": question})


async def crew_streams_async(question: str) -> Any:
    return await crew(stream=True).kickoff_async({"question": question})


def flow_streams(question: str) -> Any:
    from crewai import Flow
    from crewai.flow.flow import start

    class Asking(Flow[dict[str, Any]]):
        @start()
        def begin(self) -> Any:
            return crew().kickoff({"question": question}).raw

    flow = Asking()
    flow.stream = True
    return flow.kickoff()


def crew_for(task: Any) -> Any:
    return crew()


async def crew_later() -> Any:
    return crew()


def said(result: Any) -> str:
    """The last thing that the agent says, as each framework gives it."""
    if isinstance(result, list):
        result = result[-1]
    messages = result["ask"]["messages"] if isinstance(result, dict) else getattr(result, "messages", None)
    if messages:
        return messages[-1].content
    return str(getattr(result, "final_output", None) or getattr(result, "raw", None) or result)


AGENTS: list[Callable[..., Any]] = [
    *(chain_streams, chain_streams_async, graph_streams, chain_for, chain_later, chain_with),
    *(swift_streams, swift_for, swift_later),
    *(assistant_streams, assistant_for, assistant_later),
    *(crew_streams, crew_streams_async, flow_streams, crew_for, crew_later),
]


def answer(conversation: list[Turn]) -> str:
    assert any("7 and 7" in turn.text for turn in conversation)
    return "It is 14."


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the frameworks' imports
        yield


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    bench = GatewayBench(answer)
    await asyncio.to_thread(bench.start)
    yield bench
    await asyncio.to_thread(bench.stop)


@pytest.fixture
async def recorder(bench: GatewayBench) -> AsyncIterator[Recorder]:
    async with bench.recording() as recorder:
        with only_this_machine() as asked:
            yield recorder
    assert not asked


@pytest.mark.parametrize("agent", AGENTS)
async def test_every_call_is_made_inside_the_attempt(
    agent: Callable[..., Any], quiet: None, bench: GatewayBench, recorder: Recorder
) -> None:
    source = AgentSource.of(agent)
    attempt = await bench.attempt(TASK)
    with open_attempt(attempt):
        fresh = source.fresh()
        source.adapter.check(fresh, TASK)
        result = await source.adapter.run(fresh, TASK, {})
    assert said(result) == "It is 14."
    assert len(bench.log) == 1
    await recorder.flush()
    served = [span for span in await bench.spans(attempt) if is_served(span)]
    assert [span.attributes[semconv.CALL_ID] for span in served] == [record.request_id for record in bench.log]
