# The SDK's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import agents
import pytest
from agents import (
    Agent,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    OpenAIResponsesModel,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    add_trace_processor,
    function_tool,
    handoff,
    input_guardrail,
)
from agents.guardrail import GuardrailFunctionOutput
from agents.mcp import MCPServerStdio
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor, ConsoleSpanExporter
from openai import AsyncOpenAI

from leyden.core.errors import TaskError, UnknownAgent
from leyden.openai_agents import OpenAIAgentsAdapter

ADAPTER = OpenAIAgentsAdapter()
Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("untouched")

MCP_SERVER = """
import json, sys
tool = {"name": "add_one", "description": "Add one.", "inputSchema":
        {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    given = asked.get("params", {})
    results = {
        "initialize": lambda: {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}},
                               "serverInfo": {"name": "counter", "version": "1"}},
        "tools/list": lambda: {"tools": [tool]},
        "tools/call": lambda: {"content": [{"type": "text", "text": str(given["arguments"]["number"] + 1)}]},
    }
    known = asked["method"] in results
    answer = {"result": results[asked["method"]]()} if known else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def solo(make_model: Make, *turns: Any, **more: Any) -> Agent[Any]:
    return Agent(name="solo", model=make_model(*turns or ("fine",)), **more)


async def run(agent: Any, task: Any = "hi") -> Any:
    fresh = ADAPTER.fresh(agent)
    ADAPTER.check(fresh, task)
    return await ADAPTER.run(fresh, task, {})


# --- What is run, and with what


async def test_agents_and_the_ways_to_run_them_are_known_and_run(make_model: Make) -> None:
    agent = solo(make_model)
    for how in (Runner.run, Runner.run_sync, Runner.run_streamed):
        for given in (functools.partial(how, agent), functools.partial(how, starting_agent=agent, max_turns=3)):
            assert ADAPTER.supports(given)
            assert (await run(given)).final_output == "fine"
    assert ADAPTER.supports(agent)
    assert (await run(agent)).final_output == "fine"
    for other in (functools.partial(Runner.run), functools.partial(Runner.run, agent, "hi"), functools.partial(print)):
        assert not ADAPTER.supports(other)
    with pytest.raises(UnknownAgent, match="int"):
        ADAPTER.check(3, "hi")


def test_somebody_elses_package_called_agents_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", ModuleType("agents"))
    assert not ADAPTER.supports(object())


async def test_texts_and_messages_are_taken(make_model: Make) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for task in ("hi", {"question": "hi", "answer": "42"}, {"messages": messages}, messages):
        model = make_model("fine")
        await run(Agent(name="solo", model=model), task)
        assert model.heard == [messages]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"id": 1, "body": "x"}, ["id, body", "question"]),
        ([1, 2], ["[1, 2]"]),
        ({"messages": [("user", "hi")]}, ["hi"]),
    ],
)
def test_a_row_that_does_not_fit_is_an_error_that_says_so(task: Any, words: list[str], make_model: Make) -> None:
    with pytest.raises(TaskError) as error:
        ADAPTER.check(solo(make_model), task)
    assert all(word in str(error.value) for word in words), error.value


# --- Each attempt afresh


async def test_a_session_and_a_context_are_one_attempts_own(make_model: Make) -> None:
    @function_tool
    def note(context: RunContextWrapper[Any]) -> str:
        """Note."""
        context.context.append("noted")
        return str(len(context.context))

    model = make_model(("note", {}), "fine", ("note", {}), "fine")
    memory: list[str] = []
    session = SQLiteSession("the author's")
    given = functools.partial(
        Runner.run, Agent(name="solo", model=model, tools=[note]), session=session, context=memory
    )
    for _ in range(2):
        await run(given)
    assert [len(heard) for heard in model.heard] == [1, 3, 1, 3]
    assert [heard[-1]["output"] for heard in model.heard[1::2]] == ["1", "1"]
    assert not memory
    assert not await session.get_items()
    assert given.keywords["session"] is session
    session.close()


def test_a_context_that_cannot_be_copied_asks_for_a_factory(make_model: Make) -> None:
    given = functools.partial(Runner.run, solo(make_model), context=threading.Lock())
    with pytest.raises(UnknownAgent, match=r"lock.*a function that makes"):
        ADAPTER.fresh(given)


# --- What cannot run unattended, and errors


async def test_agents_that_wait_for_a_human_are_refused(make_model: Make) -> None:
    def pay(sum: int) -> str:
        """Pay."""
        return "paid"

    always, sometimes = (function_tool(pay, needs_approval=when) for when in (True, ask))
    asking = solo(make_model, tools=[always])
    tool, passing = asking.as_tool(tool_name="ask", tool_description="Ask."), handoff(asking)
    above = [asking, Agent(name="a", handoffs=[asking]), Agent(name="b", tools=[tool])]
    if hasattr(passing, "_agent_ref"):  # older releases do not tell where it leads
        above.append(Agent(name="c", handoffs=[passing]))
    for agent in above:
        with pytest.raises(UnknownAgent, match="'pay'"):
            ADAPTER.check(agent, "hi")
    with pytest.raises(UnknownAgent, match=r"'pay'.*unattended"):
        await run(solo(make_model, ("pay", {"sum": 1}), tools=[sometimes]))


async def ask(*_: Any) -> bool:
    return True


@pytest.mark.skipif(not hasattr(agents, "OpenAIResponsesWSModel"), reason="this release has no WebSockets yet")
def test_models_over_websockets_are_refused() -> None:
    client = AsyncOpenAI(api_key="sk-none")
    with pytest.raises(UnknownAgent, match="WebSockets"):
        ADAPTER.check(Agent(name="solo", model=agents.OpenAIResponsesWSModel("m", openai_client=client)), "hi")
    ADAPTER.check(Agent(name="solo", model=OpenAIResponsesModel("m", openai_client=client)), "hi")
    agents.set_default_openai_responses_transport("websocket")
    try:
        with pytest.raises(UnknownAgent, match="WebSockets"):
            ADAPTER.check(Agent(name="solo"), "hi")
    finally:
        agents.set_default_openai_responses_transport("http")
    ADAPTER.check(Agent(name="solo"), "hi")


async def test_the_sdks_own_errors_pass_through(make_model: Make) -> None:
    @function_tool
    def again() -> str:
        """Again."""
        return "again"

    @input_guardrail(run_in_parallel=False)
    def refuse(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    agent = solo(make_model, ("again", {}), tools=[again])
    for how in (Runner.run, Runner.run_streamed):
        with pytest.raises(MaxTurnsExceeded, match="2"):
            await run(functools.partial(how, agent, max_turns=2))
    silent = make_model("never")
    with pytest.raises(InputGuardrailTripwireTriggered):
        await run(Agent(name="guarded", model=silent, input_guardrails=[refuse]))
    assert not silent.heard


async def test_a_streamed_run_that_is_cancelled_stops(make_model: Make) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "done"

    task = asyncio.create_task(
        run(functools.partial(Runner.run_streamed, solo(make_model, ("wait", {}), tools=[wait])))
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(ended.wait(), 20)


# --- MCP


def server() -> MCPServerStdio:
    return MCPServerStdio({"command": sys.executable, "args": ["-c", MCP_SERVER]}, client_session_timeout_seconds=30)


@pytest.mark.integration
async def test_mcp_servers_are_connected_for_the_runs_and_closed_after_the_last(make_model: Make) -> None:
    shared = server()
    turns = make_model(("add_one", {"number": 41}))
    inner = Agent(name="inner", model=turns, mcp_servers=[shared], tool_use_behavior="stop_on_first_tool")
    outer = Agent(name="outer", model=make_model(("transfer_to_inner", {})), handoffs=[inner])
    results = await asyncio.gather(*(run(agent) for agent in (inner, outer, inner)))
    assert ["42" in str(result.final_output) for result in results] == [True] * 3
    assert getattr(shared, "session", ...) is None
    assert "42" in str((await run(inner)).final_output)  # and connected again
    assert getattr(shared, "session", ...) is None


@pytest.mark.integration
async def test_a_server_that_the_user_has_connected_stays_connected(make_model: Make) -> None:
    async with server() as theirs:
        turns = make_model(("add_one", {"number": 41}), "fine")
        assert (await run(Agent(name="solo", model=turns, mcp_servers=[theirs]))).final_output == "fine"
        assert [tool.name for tool in await theirs.list_tools()] == ["add_one"]


@pytest.mark.integration
async def test_a_server_is_closed_after_a_failed_run_and_its_own_failure_is_the_runs(make_model: Make) -> None:
    shared = server()
    with pytest.raises(RuntimeError, match="down"):
        await run(solo(make_model, RuntimeError("down"), mcp_servers=[shared]))
    assert getattr(shared, "session", ...) is None
    missing = MCPServerStdio({"command": "/no/such/server"})
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await run(solo(make_model, mcp_servers=[missing]))


# --- The SDK's own export


class Kept(BackendSpanExporter):
    """What would have left for OpenAI."""

    def __init__(self) -> None:
        super().__init__(api_key="sk-real")
        self.items: list[Any] = []

    def export(self, items: list[Any]) -> None:
        self.items += items

    def _export_with_deadline(self, items: list[Any], deadline: float | None) -> None:
        self.export(items)


class Elsewhere(ConsoleSpanExporter):
    """The user's own exporter."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def export(self, items: list[Any]) -> None:
        self.items += items


async def test_no_trace_leaves_for_openai_while_the_adapter_is_instrumented(make_model: Make) -> None:
    to_openai, elsewhere = Kept(), Elsewhere()
    processors = [BatchTraceProcessor(to_openai), BatchTraceProcessor(elsewhere)]
    for processor in processors:
        add_trace_processor(processor)
    adapter, sizes = OpenAIAgentsAdapter(), list[tuple[int, int]]()
    methods = dict(vars(BatchTraceProcessor))
    for change in (lambda: None, adapter.instrument, adapter.instrument, adapter.uninstrument):
        change()
        await run(solo(make_model))
        for processor in processors:
            processor.force_flush()
        sizes.append((len(to_openai.items), len(elsewhere.items)))
    once = sizes[0][0]
    assert once >= 3
    assert sizes == [(once, once), (once, 2 * once), (once, 3 * once), (2 * once, 4 * once)]
    assert dict(vars(BatchTraceProcessor)) == methods
    for processor in processors:
        processor.shutdown()
    to_openai.close()


@pytest.mark.integration
def test_importing_the_adapter_loads_no_framework_and_it_is_found_by_its_entry_points() -> None:
    script = """
import sys
from importlib.metadata import entry_points
[adapter] = [e for e in entry_points(group="leyden.adapters") if e.name == "openai_agents"]
adapter = adapter.load()()
assert adapter.name == "openai_agents" and not adapter.supports(object())
[instrumentor] = [e for e in entry_points(group="opentelemetry_instrumentor") if e.name == "leyden_openai_agents"]
assert instrumentor.load()().instrumentation_dependencies()
loaded = {"agents", "openai", "mcp", "httpx", "torch"} & set(sys.modules)
assert not loaded, loaded
from leyden.openai_agents import LeydenTraceProcessor
assert isinstance(adapter.callback_handler(), LeydenTraceProcessor)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
