"""Core hooks: wrap AutoGen's core, its runtime and agents. They never raise into the agent.

An agent of the core is any object that handles messages. AgentChat builds its teams of such agents; these are not
recorded as agents here, because `_hooks` records its teams and members.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from autogen_core import CancellationToken

from leyden.autogen._hooks import Hooks, argument
from leyden.autogen._messages import Exchange, SentMessage, deliver, handler_failed, send
from leyden.autogen._steps import RUNS, Step
from leyden.core.data import semconv
from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings
from leyden.core.tracing.patching.safe_callback import quietly

AGENT_CHAT = "autogen_agentchat."
TEAMS = "autogen_agentchat.teams."
"""Modules that teams are built of, their messages included."""


class CoreHooks:
    """Hooks of one instrumentor; `hooks` holds the span provider, and whether recording is on."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    @hidden_from_warnings
    async def send_call(self, wrapped: Any, runtime: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `send_message` of a runtime, which returns the recipient's answer."""
        name = getattr(argument(args, kwargs, 1, "recipient"), "type", "message")
        message = self._record_send(argument(args, kwargs, 0, "message"), name, kwargs)
        if message is None:
            return await wrapped(*args, **kwargs)
        try:
            return await wrapped(*args, **kwargs)
        except BaseException as error:
            if message.is_first:
                message.fail(error)
            raise
        finally:
            message.finish()  # it was, unless no agent handles it

    @hidden_from_warnings
    async def publish_call(self, wrapped: Any, runtime: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `publish_message` of a runtime, which does not wait for handlers."""
        name = getattr(argument(args, kwargs, 1, "topic_id"), "type", "message")
        self._record_send(argument(args, kwargs, 0, "message"), name, kwargs)
        return await wrapped(*args, **kwargs)

    @hidden_from_warnings
    async def delivery_call(self, wrapped: Any, runtime: Any, args: Any, kwargs: Any) -> Any:
        """Wrap the delivery of a message to all its handlers, in a task of its own."""
        message = self._record_delivery(args[0].message_id)
        try:
            return await wrapped(*args, **kwargs)
        finally:
            if message is not None:
                message.finish()

    @hidden_from_warnings
    async def handler_call(self, wrapped: Any, agent: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `on_message` of an agent."""
        if type(agent).__module__.startswith(AGENT_CHAT):
            return await wrapped(*args, **kwargs)
        with self._hooks.step(Step("handler", agent.id.type), _agent_opener(agent)):
            try:
                return await wrapped(*args, **kwargs)
            except BaseException as error:
                context = argument(args, kwargs, 1, "ctx")
                handler_failed(error, context.message_id, is_awaited=context.is_rpc)
                raise

    def _record_send(self, message: Any, name: str, kwargs: dict[str, Any]) -> SentMessage | None:
        """Record that `message` is sent from here; sets the token and id in `kwargs` that identify it."""
        found: list[SentMessage] = []

        @quietly
        def record() -> None:
            is_teams = type(message).__module__.startswith(TEAMS)
            begins = kwargs.get("sender") is None and not is_teams  # `_hooks` records the start of a team
            token = kwargs.get("cancellation_token") or CancellationToken()
            sent_message, message_id = send(
                token, kwargs.get("message_id"), partial(self._exchange, name) if begins else None
            )
            kwargs.update(cancellation_token=token, message_id=message_id)
            found.append(sent_message)

        if self._hooks.enabled:
            record()
        return found[0] if found else None

    def _record_delivery(self, message_id: str) -> SentMessage | None:
        found: list[SentMessage | None] = [None]

        @quietly
        def record() -> None:
            found[0] = deliver(message_id)

        record()
        return found[0]

    def _exchange(self, name: str) -> Exchange:
        return Exchange(Step("exchange", name), self._hooks.with_provider(partial(RUNS.open_workflow, name=name)))


def _agent_opener(agent: Any) -> Callable[..., None]:
    attributes = {
        semconv.AGENT_ID: str(agent.id),
        semconv.AGENT_DESCRIPTION: getattr(agent, "_description", None),  # each access rebuilds its metadata
    }
    return partial(RUNS.open_agent, agent=agent.id.type, attributes=attributes)
