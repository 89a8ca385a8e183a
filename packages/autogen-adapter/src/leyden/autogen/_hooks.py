"""AutoGen hooks: wrap AutoGen's functions and record what they do. They never raise into the agent.

The hooks read no tokens. AutoGen opens spans of its own through three functions, in any provider. The hooks suppress
these where they would duplicate Leyden's, and read the rest from methods that AutoGen's classes share.
"""

import json
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.trace import SpanKind, TracerProvider

from leyden.autogen._steps import RUNS, Step, in_step, in_steps, innermost
from leyden.core.data import semconv
from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.export import is_global, is_ours
from leyden.core.tracing.spans.run_tree import Run, ToolFailure

CLIENTS = "autogen_ext.models."
"""Package of AutoGen's own model clients; their modules are named after the provider."""


class Hooks:
    """Hooks of one instrumentor. A disabled one starts nothing more, and still ends what it started."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.enabled = True
        self._provider = provider

    @contextmanager
    def agent_span(self, wrapped: Any, _: Any, args: Any, kwargs: Any) -> Generator[Any]:
        """Wrap AutoGen's `trace_invoke_agent_span`."""
        name = str(argument(args, kwargs, 0, "agent_name"))
        attributes = {
            semconv.AGENT_ID: kwargs.get("agent_id"),
            semconv.AGENT_DESCRIPTION: kwargs.get("agent_description"),
        }
        with self._agent(name, attributes), self._framework_span(wrapped, args, kwargs) as span:
            yield span

    @contextmanager
    def tool_span(self, wrapped: Any, _: Any, args: Any, kwargs: Any) -> Generator[Any]:
        """Wrap AutoGen's `trace_tool_span`."""
        name = str(argument(args, kwargs, 0, "tool_name"))
        with self._tool(name, None, kwargs.get("tool_call_id")), self._framework_span(wrapped, args, kwargs) as span:
            yield span

    def create_span(self, wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        """Wrap AutoGen's `trace_create_agent_span`: creating an agent is no step."""
        return self._framework_span(wrapped, args, kwargs, hidden=is_ours(self._provider))

    def runtime_span(self, wrapped: Any, runtime: Any, args: Any, kwargs: Any) -> Any:
        """Wrap the span of a runtime's message: AutoGen's internals, kept out of Leyden's record."""
        given = getattr(runtime, "tracer_provider", None)
        is_global_provider = given is trace.get_tracer_provider() or isinstance(given, trace.ProxyTracerProvider)
        return self._framework_span(wrapped, args, kwargs, hidden=is_global_provider and is_ours(self._provider))

    @hidden_from_warnings
    async def agent_call(self, wrapped: Any, agent: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `on_messages` of an agent, for which AutoGen has no span where users call it themselves."""
        with self._agent(_name(agent), {}):
            return await wrapped(*args, **kwargs)

    @hidden_from_warnings
    def agent_stream(self, wrapped: Any, agent: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any, None]:
        """Wrap `on_messages_stream` of an agent."""
        step, stream = innermost(), wrapped(*args, **kwargs)
        if not self.enabled or (step is not None and step.is_same("agent", _name(agent))):
            return stream
        return in_steps(_stream(self._agent(_name(agent), {}), stream))

    @hidden_from_warnings
    def run_stream(self, wrapped: Any, agent: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any, None]:
        """Wrap `run_stream` of an agent; AutoGen opens its span."""
        stream = wrapped(*args, **kwargs)
        return in_steps(stream) if self.enabled else stream

    @hidden_from_warnings
    def team_stream(self, wrapped: Any, team: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any, None]:
        """Wrap `run_stream` of a team. Calls outside its members, as for the next speaker, have its manager as node."""
        stream = wrapped(*args, **kwargs)
        if not self.enabled:
            return stream
        step = Step("team", _name(team), getattr(team, "_group_chat_manager_name", None))
        return in_steps(_stream(self.step(step, partial(RUNS.open_workflow, name=step.name)), stream))

    @hidden_from_warnings
    async def member_publish_call(self, wrapped: Any, container: Any, args: Any, kwargs: Any) -> Any:
        """Wrap a team member's messages to the others: its answer may hand off to another member."""
        self._handoff(argument(args, kwargs, 0, "message"))
        return await wrapped(*args, **kwargs)

    @hidden_from_warnings
    async def tool_call(self, wrapped: Any, tool: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `run_json` of a tool."""
        with self._tool(_name(tool), *_call_arguments(args, kwargs, 0)) as step:
            result = await wrapped(*args, **kwargs)
            _record_tool_result(step, tool, result)
            return result

    @hidden_from_warnings
    def tool_stream(self, wrapped: Any, tool: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any, None]:
        """Wrap `run_json_stream` of a tool, such as an agent or a team; the last piece is the result."""
        stream = wrapped(*args, **kwargs)
        if not self.enabled:
            return stream
        step = self._tool(_name(tool), *_call_arguments(args, kwargs, 0))
        return in_steps(_stream(step, stream, lambda step, last: _record_tool_result(step, tool, last)))

    @hidden_from_warnings
    async def workbench_call(self, wrapped: Any, workbench: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `call_tool` of a workbench; one with tools of its own only passes the call to them."""
        if hasattr(workbench, "_tools"):
            return await wrapped(*args, **kwargs)
        name = str(argument(args, kwargs, 0, "name"))
        with self._tool(name, *_call_arguments(args, kwargs, 1)) as step:
            result = await wrapped(*args, **kwargs)
            _record_workbench_result(step, result)
            return result

    @hidden_from_warnings
    async def model_call(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        """Wrap `create` of a model client."""
        with self._chat(client, None) as step:
            result = await wrapped(*args, **kwargs)
            _record_answer(step, result)
            return result

    @hidden_from_warnings
    def model_stream(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> AsyncGenerator[Any, None]:
        """Wrap `create_stream` of a model client; the last piece is the whole answer."""
        stream = wrapped(*args, **kwargs)
        return in_steps(_stream(self._chat(client, True), stream, _record_answer)) if self.enabled else stream

    def _agent(self, name: str, attributes: dict[str, Any]) -> AbstractContextManager[Step]:
        return self.step(Step("agent", name), partial(RUNS.open_agent, agent=name, attributes=attributes))

    def _tool(self, name: str, arguments: Any, call_id: str | None) -> AbstractContextManager[Step]:
        def open_span(run: Run, provider: TracerProvider | None) -> None:
            text = None if arguments is None else json.dumps(arguments, default=str)
            RUNS.open_tool(run, name, call_id=call_id, arguments=text, provider=provider)

        return self.step(Step("tool", name), open_span)

    def _chat(self, client: Any, stream: bool | None) -> AbstractContextManager[Step]:
        model, module = _model(client), type(client).__module__
        attributes = {
            semconv.OPERATION: "chat",
            semconv.PROVIDER: module.removeprefix(CLIENTS).split(".")[0] if module.startswith(CLIENTS) else None,
            semconv.REQUEST_MODEL: model,
            semconv.REQUEST_STREAM: stream,
        }
        open_span = partial(RUNS.open, title=f"chat {model}", attributes=attributes, kind=SpanKind.CLIENT)
        return self.step(Step("chat", model), open_span)

    def step(self, step: Step, open_span: Callable[..., None]) -> AbstractContextManager[Step]:
        """Enter `step` inside the block; `open_span` opens its run's span."""
        if not self.enabled:
            return nullcontext(step)
        step.is_current = is_global(self._provider)
        return in_step(step, self.with_provider(open_span))

    def with_provider(self, open_span: Callable[..., None]) -> Callable[[Run], None]:
        """Return `open_span` with the span provider."""
        return partial(open_span, provider=self._provider)

    def _framework_span(
        self, wrapped: Any, args: Any, kwargs: Any, hidden: bool | None = None
    ) -> AbstractContextManager[Any]:
        """Return AutoGen's own span, or the current one where it would duplicate Leyden's in one trace."""
        is_hidden = is_global(self._provider) if hidden is None else hidden
        if self.enabled and is_hidden:
            return nullcontext(trace.get_current_span())
        return wrapped(*args, **kwargs)

    @quietly
    def _handoff(self, message: Any) -> None:
        chat_message: Any = getattr(getattr(message, "response", None), "chat_message", None)
        target = getattr(chat_message, "target", None)
        if self.enabled and target is not None:
            RUNS.handoff(innermost(), chat_message.source, target, provider=self._provider)


@hidden_from_warnings
async def _stream(
    block: AbstractContextManager[Step],
    stream: AsyncGenerator[Any, None],
    last: Callable[[Step, Any], None] | None = None,
) -> AsyncGenerator[Any, None]:
    """Yield what `stream` yields, inside `block`; then call `last` with its last piece."""
    piece: Any = None
    with block as step:
        try:
            async for piece in stream:
                yield piece
            if last is not None:
                last(step, piece)
        finally:
            await stream.aclose()


@quietly
def _record_tool_result(step: Step, tool: Any, result: Any) -> None:
    step.end_attributes[semconv.TOOL_RESULT] = tool.return_value_as_string(result)


@quietly
def _record_workbench_result(step: Step, result: Any) -> None:
    step.end_attributes[semconv.TOOL_RESULT] = text = result.to_text()
    if result.is_error:
        step.failure = ToolFailure(text)


@quietly
def _record_answer(step: Step, result: Any) -> None:
    """Record the fields of an answer that AutoGen has; the gateway's record has the rest."""
    usage = result.usage
    step.end_attributes[semconv.FINISH_REASONS] = [result.finish_reason]
    step.end_attributes[semconv.INPUT_TOKENS] = usage.prompt_tokens
    step.end_attributes[semconv.OUTPUT_TOKENS] = usage.completion_tokens


def _call_arguments(args: Any, kwargs: Any, first: int) -> tuple[Any, str | None]:
    """Return arguments and id of a tool call: `(arguments, cancellation_token, call_id)` from index `first` on."""
    arguments = argument(args, kwargs, first, "arguments" if first else "args")
    return arguments, argument(args, kwargs, first + 2, "call_id")


def argument(args: Any, kwargs: Any, index: int, name: str) -> Any:
    """Return an argument of a call by its index or name; None where it was not given."""
    return args[index] if len(args) > index else kwargs.get(name)


def _name(thing: Any) -> str:
    return str(getattr(thing, "name", type(thing).__name__))


def _model(client: Any) -> str:
    """Return the model's name; AutoGen's clients keep it in the defaults of their requests."""
    given = getattr(client, "_create_args", None)
    model: Any = cast("dict[str, Any]", given).get("model") if isinstance(given, dict) else None
    return str(model or type(client).__name__)
