"""Runs: the SDK objects that can run for a task, their options, and reasons against it. No spans.

An `Agent`, or a `functools.partial` of `Runner.run`, `run_sync` or `run_streamed` that lacks only the input.
"""

import copy
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast
from uuid import uuid4

from leyden.core.data.rollout import Task
from leyden.core.errors import TaskError, UnknownAgent
from leyden.core.runner.isolation.alone import is_alone
from leyden.core.runner.user_code.task_input import text_for

RUNNERS = ("run", "run_sync", "run_streamed")
SESSION = "leyden-"
"""Prefix of Leyden's session ids; only such sessions are closed."""


class Run(NamedTuple):
    """An agent and how its author runs it."""

    agent: Any
    streamed: bool
    options: Mapping[str, Any]


def run_of(given: Any) -> Run | None:
    """Return how to run `given`; None when it is not the SDK's."""
    sdk = sys.modules.get("agents")
    if sdk is None or not hasattr(sdk, "Agent") or not hasattr(sdk, "Runner"):  # another package named `agents`
        return None
    if isinstance(given, sdk.Agent):
        return Run(given, False, {})
    if not isinstance(given, functools.partial):
        return None
    partial = cast("functools.partial[Any]", given)
    method, owner = getattr(partial.func, "__name__", None), getattr(partial.func, "__self__", None)
    if method not in RUNNERS or not isinstance(owner, type) or not issubclass(owner, sdk.Runner):
        return None
    options = {**dict(zip(("starting_agent", "input"), partial.args, strict=False)), **partial.keywords}
    agent = options.pop("starting_agent", None)
    if not isinstance(agent, sdk.Agent) or "input" in options:
        return None
    return Run(agent, method == "run_streamed", options)


def fresh(given: Any) -> Any:
    """Return `given` with a session and a context of its own; a bare agent keeps nothing between runs.

    A process that runs one attempt keeps the given ones, which the agent's tools may refer to. It replaces an SDK
    session in a file or a service: other attempts would read the messages of this one there.
    """
    run = run_of(given)
    if run is None or not {"session", "context"} & set(run.options):
        return given
    options = dict(run.options)
    session = options.get("session")
    if session is not None and not (is_alone() and _ends_with_process(session)):
        from agents import SQLiteSession

        options["session"] = SQLiteSession(f"{SESSION}{uuid4().hex}")  # in memory
    if is_alone():
        return functools.partial(given.func, run.agent, **options)
    try:
        options["context"] = copy.deepcopy(options.get("context"))
    except Exception as error:
        kind = type(options["context"]).__name__
        raise UnknownAgent(
            f"the context, a {kind}, cannot be copied for each attempt: give a function that makes the run"
        ) from error
    return functools.partial(given.func, run.agent, **options)


def _ends_with_process(session: object) -> bool:
    """Whether a session keeps its messages in this process; assumed for classes of the user's."""
    is_sdks = type(session).__module__.partition(".")[0] == "agents"
    return not is_sdks or str(getattr(session, "db_path", "")) == ":memory:"


def close_session(run: Run) -> None:
    """Close the session that `fresh` opened, if it did."""
    session = run.options.get("session")
    if str(getattr(session, "session_id", "")).startswith(SESSION):
        cast("Any", session).close()


def input_for(task: Task) -> str | list[Any]:
    """Return the input for a run; raises TaskError with the keys found when it is not clear."""
    given = text_for(task)
    if isinstance(given, str):
        return given
    items = cast("list[Any]", given) if isinstance(given, list) else []
    if not items or not all(isinstance(item, Mapping) for item in items):
        raise TaskError(f"the task's messages are {given!r:.80}; the agent takes a text, or a list of messages")
    return items


def team_of(agent: Any) -> list[Any]:
    """Return `agent` and the agents that it may hand off to or call as tools, if the SDK shows them."""
    found: dict[int, Any] = {}
    pending = [agent]
    while pending:
        member = pending.pop()
        if id(member) not in found:
            found[id(member)] = member
            pending += _reachable(member)
    return list(found.values())


def refusal(agent: Any) -> str | None:
    """Return why `agent` cannot run unattended or under training; None where no reason is found."""
    for member in team_of(agent):
        for tool in member.tools:
            if getattr(tool, "needs_approval", False) is True:
                return (
                    f"the agent {member.name!r} waits for a human to approve its tool {tool.name!r}, and Leyden runs "
                    "it unattended: remove needs_approval"
                )
        if _over_websockets(member.model):
            return f"the agent {member.name!r} calls its model over WebSockets, which cannot be routed: use HTTP"
    return None


def _over_websockets(model: Any) -> bool:
    """Whether `model`, or the default transport for a mere name, is the Responses API over WebSockets."""
    if model is None or isinstance(model, str):
        from agents.models import _openai_shared

        transport: Any = getattr(_openai_shared, "get_default_openai_responses_transport", None)
        return transport is not None and transport() == "websocket"
    return type(model).__name__ == "OpenAIResponsesWSModel"


def _reachable(agent: Any) -> Iterator[Any]:
    for handoff in agent.handoffs:
        target = getattr(handoff, "_agent_ref", None)
        other = handoff if hasattr(handoff, "handoffs") else target and target()
        if other is not None:
            yield other
    for tool in agent.tools:
        other = getattr(tool, "_agent_instance", None)
        if other is not None:
            yield other
