# Agents, teams and clients keep their parts under private names:
# pyright: reportPrivateUsage=false
"""AutoGen objects: parts of agents and teams, copies without state, and agents that cannot run alone.

This module handles no spans. AutoGen's own copies (`dump_component`) write the source of every tool anew, without its
module; deep copies keep functions as they are.
"""

import asyncio
import copy
import logging
import sys
from collections.abc import Iterator
from typing import Any

from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.base import Team
from autogen_agentchat.teams import BaseGroupChat, RoundRobinGroupChat, SelectorGroupChat, Swarm
from autogen_core import SingleThreadedAgentRuntime
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import FunctionTool

from leyden.core.errors import UnknownAgent
from leyden.core.runner.isolation.alone import is_alone

log = logging.getLogger("leyden.autogen")

NESTED = ("_team", "_wrapped_agent", "_task_runner")
"""Attributes in which agents and tools keep an agent or a team."""
ENDLESS = (RoundRobinGroupChat, SelectorGroupChat, Swarm)
"""Teams that run until a termination condition stops them."""


def check_runnable(agent: Any) -> None:
    """Raise UnknownAgent where `agent` cannot run unattended or cannot be copied."""
    console = (UserProxyAgent("console").input_func, input)
    for part in parts(agent):
        name = getattr(part, "name", type(part).__name__)
        if isinstance(part, UserProxyAgent) and part.input_func in console:
            raise UnknownAgent(
                f"the agent {name!r} reads its input from the console: give it an input_func that returns the input"
            )
        if not isinstance(part, BaseGroupChat):
            continue
        if part in shared_runtimes(agent) and not is_alone():
            raise UnknownAgent(f"the team {name!r} has a runtime= that all attempts would share: remove it")
        ends = getattr(part, "_termination_condition", True) or getattr(part, "_max_turns", True)
        if type(part) in ENDLESS and not ends:
            raise UnknownAgent(f"the team {name!r} would never end: give it a termination_condition or max_turns")
    if not is_alone():
        copied(agent)


def shared_runtimes(agent: Any) -> list[Any]:
    """Return the teams in `agent` that were given a runtime, which their copies would share."""
    return [part for part in parts(agent) if not getattr(part, "_embedded_runtime", True)]


def stateless_parts(thing: object) -> list[Any] | None:
    """Return nothing for a model client, the function of a tool; None for what may keep state."""
    if isinstance(thing, FunctionTool):
        return [thing._func]
    return [] if isinstance(thing, ChatCompletionClient) and hasattr(thing, "__setstate__") else None


def copied(agent: Any) -> Any:
    """Return a deep copy of `agent` with its initial messages only."""
    memo: dict[int, Any] = {}
    for part in parts(agent):
        _share_client(getattr(part, "_model_client", None), memo)
        if isinstance(part, BaseGroupChat):
            memo[id(part._runtime)] = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
            memo[id(part._output_message_queue)] = asyncio.Queue()
    try:
        agent_copy = copy.deepcopy(agent, memo)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise UnknownAgent(
            f"the agent cannot be copied for each attempt ({reason}): give a function that makes the agent"
        ) from None
    for part in parts(agent_copy):
        _reset(part)
    return agent_copy


def has_history(agent: Any) -> bool:
    """Whether `agent` has received messages, or its state was loaded: a copy would not have them."""
    for part in parts(agent):
        context: Any = getattr(part, "_model_context", None)
        if hasattr(context, "_initial_messages") and [*context._messages] != [*(context._initial_messages or ())]:
            return True
        if isinstance(part, Team) and vars(part).get("_initialized"):
            return True
    return False


def parts(agent: Any) -> Iterator[Any]:
    """Yield `agent` and the agents and teams inside it, including those used as tools."""
    pending, seen = [agent], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        pending.extend(getattr(part, "_participants", ()))
        tools = [tool for workbench in getattr(part, "_workbench", ()) for tool in getattr(workbench, "_tools", ())]
        pending.extend(getattr(holder, name) for holder in (part, *tools) for name in NESTED if hasattr(holder, name))


def stop(agent: Any) -> None:
    """Cancel the tasks of the teams in `agent`: a member whose tool was cancelled would wait for ever."""
    for part in parts(agent):
        for task in list(getattr(getattr(part, "_runtime", None), "_background_tasks", ())):
            task.cancel()


async def close(agent: Any) -> None:
    """Stop the servers that the tools of a copy have started."""
    for part in parts(agent):
        for workbench in getattr(part, "_workbench", ()):
            try:
                await workbench.stop()
            except Exception as error:
                log.debug("a workbench could not be stopped: %r", error)


def _share_client(client: Any, memo: dict[int, Any]) -> None:
    """Let copies share `client` where it has no state, without a cache, which hides calls from training."""
    cached = sys.modules.get("autogen_ext.models.cache")
    if cached is not None and isinstance(client, cached.ChatCompletionCache):
        _share_client(client.client, memo)
        memo[id(client)] = copy.deepcopy(client.client, memo)
    elif hasattr(client, "__setstate__"):  # it can be rebuilt from its settings alone
        memo[id(client)] = client


def _reset(part: Any) -> None:
    """Reset `part` to its author's messages, without the answers sampled for other attempts."""
    context: Any = getattr(part, "_model_context", None)
    if hasattr(context, "_initial_messages"):
        context._messages = list(context._initial_messages or ())
    if isinstance(part, Team):
        vars(part).update(_initialized=False, _is_running=False)
