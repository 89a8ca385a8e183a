import asyncio
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from autogen_agentchat.agents import (
    AssistantAgent,
    MessageFilterAgent,
    MessageFilterConfig,
    SocietyOfMindAgent,
    UserProxyAgent,
)
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    BaseGroupChat,
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.tools import AgentTool
from autogen_core import InMemoryStore, SingleThreadedAgentRuntime
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import UserMessage
from autogen_ext.models.cache import ChatCompletionCache
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient

from leyden.autogen import AutoGenAdapter
from leyden.core.errors import TaskError, UnknownAgent

ADAPTER = AutoGenAdapter()
Replay = Callable[..., ReplayChatCompletionClient]


class Again(ReplayChatCompletionClient):
    """AutoGen's replayed model keeps the tokens of all its calls, which have no copy."""

    def __deepcopy__(self, memo: Any) -> "Again":
        return Again(self.chat_completions, self.model_info)


@pytest.fixture
def replay(replay: Replay) -> Replay:
    """Makes a model that has copies after it was asked, too."""
    return lambda *answers: Again((made := replay(*answers)).chat_completions, made.model_info)


def heard(result: TaskResult) -> list[str]:
    """What the agent was told, as `source: text`."""
    return [f"{message.source}: {message.to_text()}" for message in result.messages[:-1]]


async def given(agent: Any, task: Any) -> TaskResult:
    ADAPTER.check(agent, task)
    return await ADAPTER.run(ADAPTER.fresh(agent), task, {})


@pytest.mark.parametrize("key", ["question", "input", "prompt", "query", "text", "problem"])
async def test_the_text_of_a_row_becomes_the_task(key: str, replay: Replay) -> None:
    result = await given(AssistantAgent("solo", replay("fine")), {key: "hi", "answer": "42"})
    assert heard(result) == ["user: hi"]
    assert result.messages[-1].to_text() == "fine"


async def test_messages_are_given_as_they_are(replay: Replay) -> None:
    agent = AssistantAgent("solo", replay("fine"))
    for messages in (
        [{"role": "user", "content": "a"}, {"source": "ann", "content": "b"}],
        [("user", "a"), TextMessage(content="b", source="ann")],
    ):
        assert heard(await given(agent, {"messages": messages})) == ["user: a", "ann: b"]
    assert heard(await given(agent, {"messages": "a"})) == ["user: a"]
    assert heard(await given(agent, TextMessage(content="b", source="ann"))) == ["ann: b"]
    assert heard(await given(agent, [{"content": "a"}])) == ["user: a"]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"id": 1, "body": "x"}, ["id, body", "question", "messages"]),
        (3, ["a int"]),
        ({"messages": [{"role": "assistant", "content": "x"}]}, ["'assistant'"]),
        ({"messages": [{"role": "user", "content": ["x"]}]}, ["['x']"]),
        ({"messages": []}, ["empty"]),
    ],
)
def test_a_row_that_does_not_fit_is_an_error_that_names_what_was_found(
    task: Any, words: list[str], replay: Replay
) -> None:
    with pytest.raises(TaskError) as error:
        ADAPTER.check(AssistantAgent("solo", replay()), task)
    assert all(word in str(error.value) for word in words), error.value


def teams(replay: Replay) -> list[BaseGroupChat]:
    """Teams of two that end after each has spoken."""

    def members() -> list[Any]:
        return [AssistantAgent("a", replay(*"1234"), handoffs=["b"]), AssistantAgent("b", replay(*"1234"))]

    pair = members()
    graph = DiGraphBuilder().add_node(pair[0]).add_node(pair[1]).add_edge(pair[0], pair[1]).build()
    return [
        RoundRobinGroupChat(members(), termination_condition=MaxMessageTermination(3)),
        SelectorGroupChat(members(), replay(*"abab"), max_turns=2),
        Swarm(members(), max_turns=2),
        GraphFlow(pair, graph),
    ]


async def test_every_kind_of_team_runs_again_and_again_as_if_for_the_first_time(replay: Replay) -> None:
    for team in teams(replay):
        assert ADAPTER.supports(team)
        first = await team.run(task="the author's own")
        for _ in range(2):
            result = await given(team, "hi")
            assert len(result.messages) == len(first.messages)
            assert [message.to_text() for message in result.messages][:2] == ["hi", "1"]
        assert len((await team.run(task="again")).messages) == len(first.messages)  # ours changed nothing of it


async def test_copies_of_one_agent_hear_nothing_of_each_other(replay: Replay) -> None:
    context = UnboundedChatCompletionContext([UserMessage(content="from the start", source="user")])
    agent = AssistantAgent("solo", replay("1", "2"), model_context=context)
    await agent.run(task="the author's own")
    copies = [ADAPTER.fresh(agent) for _ in range(3)]
    await asyncio.gather(*(ADAPTER.run(copy, f"task {number}", {}) for number, copy in enumerate(copies)))
    for number, copy in enumerate(copies):
        said = [str(message.content) for message in await copy.model_context.get_messages()]
        assert said[:2] == ["from the start", f"task {number}"]
        assert len(said) == 3
    assert len(await agent.model_context.get_messages()) == 3


async def test_agents_inside_agents_are_copied_too(replay: Replay) -> None:
    inner = AssistantAgent("inner", replay("poem"))
    tool = AgentTool(inner)
    boss = AssistantAgent("boss", replay(("inner", {"task": "x"}), "good"), tools=[tool], reflect_on_tool_use=True)
    society = SocietyOfMindAgent("society", RoundRobinGroupChat([boss], max_turns=1), replay("all"))
    wrapped = MessageFilterAgent("outer", society, MessageFilterConfig(per_source=[]))
    for _ in range(2):
        assert (await given(wrapped, "hi")).messages[-1].to_text() == "all"
    assert not await inner.model_context.get_messages()


def test_a_client_that_remembers_nothing_is_shared_and_one_that_does_is_not(replay: Replay) -> None:
    client = OpenAIChatCompletionClient(model="gpt-4.1-mini", api_key="sk-x")
    for given_client, shared in ((client, True), (replay("a"), False)):
        agent = AssistantAgent("solo", given_client)
        copy = ADAPTER.fresh(agent)
        assert copy is not agent
        assert (vars(copy)["_model_client"] is given_client) == shared


async def test_a_cache_answers_nothing_in_an_attempt(replay: Replay) -> None:
    store: InMemoryStore[Any] = InMemoryStore()
    agent = AssistantAgent("solo", ChatCompletionCache(replay("first", "second"), store))
    assert isinstance(vars(ADAPTER.fresh(agent))["_model_client"], ReplayChatCompletionClient)
    assert isinstance(vars(agent)["_model_client"], ChatCompletionCache)


def test_what_cannot_be_copied_is_refused_with_a_way_out(replay: Replay) -> None:
    class Shop:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def buy(self, what: str) -> str:
            """Buy."""
            return what

    agent = AssistantAgent("solo", replay(), tools=[Shop().buy])
    with pytest.raises(
        UnknownAgent, match=r"cannot pickle '_thread.lock' object\): give a function that makes the agent"
    ):
        ADAPTER.check(agent, "hi")


async def test_agents_that_cannot_run_unattended_are_refused(replay: Replay) -> None:
    member, human = AssistantAgent("a", replay()), UserProxyAgent("human")
    asked = UserProxyAgent("human", input_func=input)
    for agent in (human, asked, RoundRobinGroupChat([RoundRobinGroupChat([human], max_turns=1), member], max_turns=1)):
        with pytest.raises(UnknownAgent, match="'human' reads its input from the console"):
            ADAPTER.check(agent, "hi")
    for team in (RoundRobinGroupChat([member]), SelectorGroupChat([member, human], replay()), Swarm([member])):
        with pytest.raises(UnknownAgent, match=r"would never end|from the console"):
            ADAPTER.check(team, "hi")
    with pytest.raises(UnknownAgent, match="runtime="):
        ADAPTER.check(RoundRobinGroupChat([member], max_turns=1, runtime=SingleThreadedAgentRuntime()), "hi")
    simulated = UserProxyAgent("simulated", input_func=lambda prompt: "yes")
    result = await given(RoundRobinGroupChat([simulated], max_turns=1), "hi")
    assert result.messages[-1].to_text() == "yes"
    ADAPTER.check(MagenticOneGroupChat([member], replay()), "hi")


async def test_a_team_that_is_cancelled_stops(replay: Replay) -> None:
    asked = list[int]()
    began = asyncio.Event()

    async def wait() -> str:
        """Wait for long."""
        asked.append(1)
        began.set()
        await asyncio.sleep(3600)
        return ""

    slow = AssistantAgent("slow", replay(*[("wait", {})] * 9), tools=[wait])
    team = RoundRobinGroupChat([slow, AssistantAgent("next", replay(*"abcdefgh"))], max_turns=8)
    running = asyncio.create_task(ADAPTER.run(ADAPTER.fresh(team), "hi", {}))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asked == [1]
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_an_agent_that_listens_to_no_token_is_cancelled_all_the_same(replay: Replay) -> None:
    began = asyncio.Event()

    class Deaf(AssistantAgent):
        async def run(self, **_: Any) -> Any:
            began.set()
            await asyncio.sleep(3600)

    running = asyncio.create_task(ADAPTER.run(Deaf("deaf", replay()), "hi", {}))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_errors_and_turn_limits_are_the_agents_own(replay: Replay) -> None:
    with pytest.raises(ValueError, match="No more mock responses"):
        await given(AssistantAgent("dry", replay()), "hi")
    result = await given(RoundRobinGroupChat([AssistantAgent("a", replay(*"123"))], max_turns=2), "hi")
    assert result.stop_reason == "Maximum number of turns 2 reached."


def test_only_while_instrumented_nobody_is_warned_of_the_policys_name() -> None:
    before, adapter = list(warnings.filters), AutoGenAdapter()
    for _ in range(2):
        adapter.instrument()
    warnings.warn("Resolved model mismatch: gpt-4.1-mini-2025-04-14 != gpt-4.1-mini", stacklevel=1)
    for _ in range(2):
        adapter.uninstrument()
    assert warnings.filters == before
    with pytest.warns(UserWarning, match="Resolved model mismatch"):
        warnings.warn("Resolved model mismatch: a != b", stacklevel=1)


async def test_servers_that_a_copys_tools_start_are_stopped(replay: Replay) -> None:
    from autogen_core.tools import StaticWorkbench

    events: list[str] = []

    class Server(StaticWorkbench):
        async def stop(self) -> None:
            events.append("stop")
            raise RuntimeError("was never started")

    agent = AssistantAgent("solo", replay("fine"), workbench=Server([]))
    await given(agent, "hi")
    assert events == ["stop"]
    await ADAPTER.run(agent, "hi", {})  # the author's own is the author's to stop
    assert events == ["stop"]


@pytest.mark.integration
def test_importing_the_adapter_loads_no_framework_and_it_is_found_by_its_entry_points() -> None:
    script = """
import sys
from importlib.metadata import entry_points
[adapter] = [e for e in entry_points(group="leyden.adapters") if e.name == "autogen"]
adapter = adapter.load()()
assert adapter.name == "autogen" and not adapter.supports(object())
[instrumentor] = [e for e in entry_points(group="opentelemetry_instrumentor") if e.name == "leyden_autogen"]
assert instrumentor.load()().instrumentation_dependencies()
loaded = {name for name in sys.modules if name.startswith("autogen_")} | {"openai", "httpx", "torch"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True)
