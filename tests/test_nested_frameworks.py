"""Frameworks inside one another: a LangGraph node that runs another framework's agent, whose tool runs a graph."""

# The frameworks' own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias

import agents
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from openai import AsyncOpenAI
from pydantic import SecretStr

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.runner.adapters.registry import installed_adapter
from leyden.core.testing.adapter_contract.shared import API_KEY, PROVIDER, ContractModel, Question, above, is_served
from leyden.core.testing.gateway_bench import GatewayBench, only_this_machine, turns
from leyden.core.tracing.context import OpenAttempt, open_attempt
from leyden.core.tracing.spans.export import Recorder
from leyden.core.tracing.wire import gateway_pool

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # CrewAI warns while it is imported
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool as crew_tool

Tool: TypeAlias = Callable[[int], Awaitable[int]]
Ask: TypeAlias = Callable[[str, Tool], Awaitable[str]]

CROWD = 8
pytestmark = [
    pytest.mark.filterwarnings("ignore:Resolved model mismatch:UserWarning"),  # AutoGen expects a dated model
    pytest.mark.filterwarnings("ignore:function_calling_llm is deprecated:DeprecationWarning"),  # CrewAI's own
    pytest.mark.filterwarnings("ignore:deprecated$:DeprecationWarning"),
]


async def ask_openai_agents(question: str, tool: Tool) -> str:
    client = AsyncOpenAI(base_url=PROVIDER, api_key=API_KEY)
    model = agents.OpenAIChatCompletionsModel("gpt-4.1-mini", openai_client=client)

    @agents.function_tool
    async def double(number: int) -> int:
        """Double a number."""
        return await tool(number)

    result = await agents.Runner.run(agents.Agent(name="solver", model=model, tools=[double]), question)
    return result.final_output


async def ask_autogen(question: str, tool: Tool) -> str:
    async def double(number: int) -> int:
        """Double a number."""
        return await tool(number)

    client = OpenAIChatCompletionClient(model="gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY)
    solver = AssistantAgent("solver", client, tools=[double], reflect_on_tool_use=True)
    result: Any = (await solver.run(task=question)).messages[-1]
    return result.content


async def ask_crewai(question: str, tool: Tool) -> str:
    @crew_tool("double")
    def double(number: int) -> int:
        """Double a number."""
        return asyncio.run(_then_close(tool(number)))  # CrewAI runs tools in threads of its own

    llm = LLM(model="openai/gpt-4.1-mini", base_url=PROVIDER, api_key=API_KEY)
    solver = Agent(role="solver", goal="answer", backstory="You work.", llm=llm, tools=[double])
    task = Task(description=question, expected_output="a sentence", agent=solver)
    output: Any = await Crew(agents=[solver], tasks=[task]).kickoff_async()
    return output.raw


async def _then_close(work: Awaitable[int]) -> int:
    try:
        return await work
    finally:
        await gateway_pool.aclose()


OTHERS: dict[str, Ask] = {"autogen": ask_autogen, "crewai": ask_crewai, "openai_agents": ask_openai_agents}


def model() -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4.1-mini", base_url=PROVIDER, api_key=SecretStr(API_KEY))


def graph(name: str, **nodes: Any) -> Any:
    """One node after the other."""
    built, last = StateGraph(MessagesState), START
    for node, function in nodes.items():
        built.add_node(node, function)
        built.add_edge(last, node)
        last = node
    return built.compile(name=name)


def listener(speaker: str) -> Any:
    """A node that asks the model itself."""

    async def listen(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model().ainvoke(f"{speaker} {state['messages'][0].text}")]}

    return listen


async def double_in_a_graph(number: int) -> int:
    """What the inner agent's tool does: a graph of its own."""
    await graph("abacus", count=listener("right")).ainvoke({"messages": [("user", f"double {number}")]})
    return 2 * number


def school(ask: Ask) -> Any:
    async def consult(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(await ask(state["messages"][0].text, double_in_a_graph))]}

    return graph("school", hear=listener("left"), consult=consult, conclude=listener("left"))


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[Ask]:
    """The inner framework, with both adapters instrumented."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapters = [installed_adapter(name) for name in ("langchain", request.param)]
        for adapter in adapters:
            adapter.instrument()
        yield OTHERS[request.param]
        for adapter in adapters:
            adapter.uninstrument()


@pytest.fixture
async def bench() -> AsyncIterator[GatewayBench]:
    bench = GatewayBench(ContractModel())
    await asyncio.to_thread(bench.start)
    yield bench
    await asyncio.to_thread(bench.stop)


@pytest.fixture
async def recorder(bench: GatewayBench) -> AsyncIterator[Recorder]:
    async with bench.recording() as recorder:
        with only_this_machine() as asked:
            yield recorder
    assert not asked


@pytest.mark.parametrize("other", OTHERS, indirect=True)
async def test_the_outer_tree_holds_the_inner_and_every_call_is_its_speakers(
    other: Ask, bench: GatewayBench, recorder: Recorder, request: pytest.FixtureRequest
) -> None:
    framework = request.node.callspec.params["other"]

    async def run(attempt: OpenAttempt, number: int) -> None:
        with open_attempt(attempt):
            result = await school(other).ainvoke({"messages": [("user", f"double {number}")]})
        assert result["messages"][-2].text == f"It is {2 * number}."

    attempts = [await bench.attempt(number) for number in range(CROWD)]
    await asyncio.gather(*(run(attempt, 1000 + number) for number, attempt in enumerate(attempts)))
    await recorder.flush()
    log = {record.request_id: Question(turns(record.prompt_ids)) for record in bench.log}
    assert len(log) == 5 * CROWD
    for number, attempt in enumerate(attempts):
        spans = await bench.spans(attempt)
        assert {span.trace_id for span in spans} == {attempt.trace_id}
        by_id = {span.span_id: span for span in spans}
        [root] = [span for span in spans if span.parent_id is None]
        assert root.name.split()[-1] == "school"
        [solver] = [span for span in spans if span.name == "invoke_agent solver"]
        assert solver.attributes[semconv.FRAMEWORK] == framework
        assert {"node consult", root.name} <= {span.name for span in above(solver, by_id)}
        [abacus] = [span for span in spans if span.name == "invoke_agent abacus"]
        assert {"execute_tool double", "invoke_agent solver"} <= {span.name for span in above(abacus, by_id)}
        check_calls(spans, by_id, log, 1000 + number)


def check_calls(spans: list[Span], by_id: Mapping[str, Span], log: Mapping[str, Question], number: int) -> None:
    """Each call is recorded for who made it, by the engine's own log."""
    whose = {"left": ("school", ["hear", "conclude"]), "solver": ("solver", None), "right": ("abacus", ["consult"])}
    calls = sorted((span for span in spans if is_served(span)), key=lambda span: span.start_time)
    said = [log[str(span.attributes[semconv.CALL_ID])] for span in calls]
    assert [question.speaker for question in said] == ["left", "solver", "right", "solver", "left"]
    for span, question in zip(calls, said, strict=True):
        assert question.number == number
        agent, nodes = whose[question.speaker]
        assert span.attributes[semconv.AGENT_NAME] == agent
        assert nodes is None or span.attributes[semconv.NODE] in nodes
        assert f"invoke_agent {agent}" in [one.name.replace("workflow", "agent") for one in above(span, by_id)]
