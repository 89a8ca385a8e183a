"""Callback handler: turns LangChain's callbacks into spans and into the current caller.

It never raises into the agent, and reads no tokens. Roots and graphs become `invoke_agent` spans, those that hold other
agents `invoke_workflow`, graph nodes `node` spans. The links of a chain get no span.
"""

import json
from asyncio import CancelledError
from collections.abc import Iterator
from threading import Lock
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config
from opentelemetry.trace import SpanKind, TracerProvider

from leyden.core.data import semconv
from leyden.core.tracing.context import agent_name
from leyden.core.tracing.patching.safe_callback import quietly
from leyden.core.tracing.spans.run_tree import Run, RunTree, ToolFailure

NODE_TAG = "graph:step:"
"""Tag with the step that LangGraph sets on the runs of its nodes."""
CONTROL_FLOW = "GraphBubbleUp"
"""LangGraph's base class of exceptions for control flow, such as interrupts, which are no failures."""
CREATED = "langchain_create_agent"
PUSHED = "__pregel_push"
"""First item of the path of a called task."""
UNNAMED, UNNAMED_GRAPH = "Runnable", "LangGraph"
"""Prefix of names of runnables without a given name, and such a graph's name."""
END, PARENT = "__end__", "__parent__"
"""LangGraph's names in a `Command` for a graph's end and for the graph around a graph."""


def _current_run_id() -> UUID | None:
    """Return the id of the run around this context, from LangChain's own context variable."""
    config = var_child_runnable_config.get() or {}
    return getattr(config.get("callbacks"), "parent_run_id", None)


_RUNS = RunTree("langchain", _current_run_id)
_graph_lock = Lock()


class LeydenCallbackHandler(BaseCallbackHandler):
    """Records agents, nodes, model calls and tools; passed as a callback or added by the instrumentor.

    Several handlers record a run once. `run_inline` runs them in the caller's context, where routing looks for the
    current caller.
    """

    run_inline = True
    raise_error = False

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self.enabled = True
        """A disabled handler starts no more runs, and still ends those that it started."""
        self._provider = tracer_provider

    @quietly
    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        run, metadata = self._start(run_id, kwargs.get("name") or "chain", kwargs), _mapping(kwargs, "metadata")
        if run is None:
            return
        if run.parent is None:
            agent = metadata.get("lc_agent_name")
            run.by_shape = agent is None and not _is_created(metadata)
            _RUNS.open_agent(run, agent or _root_name(run.name), provider=self._provider)
        elif _is_node(kwargs) or _is_task(kwargs):
            run.agent = self._graph(run.parent, metadata)
            _RUNS.open(run, f"node {run.name}", {}, provider=self._provider)

    @quietly
    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._model("chat", run_id, kwargs)

    @quietly
    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._model("text_completion", run_id, kwargs)

    @quietly
    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        name = str(kwargs.get("name") or serialized["name"])
        run, inputs = self._start(run_id, name, kwargs), kwargs.get("inputs")
        if run is not None:
            arguments = input_str if inputs is None else _text(inputs)
            call_id = kwargs.get("tool_call_id")
            _RUNS.open_tool(run, name, call_id=call_id, arguments=arguments, provider=self._provider)

    @quietly
    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **kwargs: Any) -> None:
        self._start(run_id, "retriever", kwargs)

    @quietly
    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        _RUNS.end(run_id, attributes=_answer_attributes(response))

    @quietly
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        result = _text(getattr(output, "content", output))
        error = ToolFailure(result) if getattr(output, "status", None) == "error" else None
        # Older releases give the id of the model's tool call only at the end.
        attributes = {semconv.TOOL_RESULT: result, semconv.TOOL_CALL_ID: getattr(output, "tool_call_id", None)}
        _RUNS.end(run_id, error, attributes)

    @quietly
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        try:
            if _is_node(kwargs):
                self._handoffs(run_id, outputs)
        finally:
            _RUNS.end(run_id)

    @quietly
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if _is_stopped(error):
            _RUNS.stop(run_id, CancelledError())
            return
        is_closed = isinstance(error, GeneratorExit)  # the reader of the stream has stopped
        is_control_flow = is_closed or any(kind.__name__ == CONTROL_FLOW for kind in type(error).__mro__)
        try:
            if is_control_flow and _is_node(kwargs):
                self._handoffs(run_id, [command for command in error.args if _graph_of(command) == PARENT])
        finally:
            _RUNS.end(run_id, None if is_control_flow else error)

    @quietly
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        _RUNS.end(run_id)

    on_llm_error = on_tool_error = on_retriever_error = on_chain_error

    def _start(self, run_id: UUID, name: str, kwargs: dict[str, Any]) -> Run | None:
        if not self.enabled:
            return None
        parent = kwargs.get("parent_run_id")
        return _RUNS.start(run_id, parent, name, _outermost_node(_RUNS.find(parent), kwargs))

    def _graph(self, graph: Run, metadata: dict[str, Any]) -> str | None:
        """Return the agent that `graph` is. A run that holds nodes is a graph; its first node's start shows it."""
        with _graph_lock:  # the first nodes may start at the same time
            if graph.span is None:
                agent = metadata.get("lc_agent_name")  # this may be the name of the agent around it
                name = graph.name if agent in (None, graph.agent) else agent
                graph.by_shape = name is not agent and not _is_created(metadata)
                _RUNS.open_agent(graph, name, provider=self._provider)
                if graph.parent is not None:
                    _RUNS.hold_agents(graph.parent)
        return graph.agent

    def _handoffs(self, node: UUID, commands: Any) -> None:
        """Record the handoffs of a node, by what it returns or, from a graph to the one around it, raises."""
        run = _RUNS.find(node)
        if run is None:
            return
        for command in _listed(commands):
            source = run.agent if _graph_of(command) == PARENT else run.name
            for target in _targets(command):
                _RUNS.handoff(node, source or run.name, target, provider=self._provider)

    def _model(self, operation: str, run_id: UUID, kwargs: dict[str, Any]) -> None:
        metadata, parameters = _mapping(kwargs, "metadata"), _mapping(kwargs, "invocation_params")
        model = metadata.get("ls_model_name") or parameters.get("model") or "model"
        run = self._start(run_id, model, kwargs)
        if run is not None:
            attributes = {
                semconv.OPERATION: operation,
                semconv.PROVIDER: metadata.get("ls_provider"),
                semconv.REQUEST_MODEL: model,
                semconv.REQUEST_STREAM: parameters.get("stream"),
            }
            _RUNS.open(run, f"{operation} {model}", attributes, provider=self._provider, kind=SpanKind.CLIENT)


def _mapping(kwargs: dict[str, Any], name: str) -> dict[str, Any]:
    return kwargs.get(name) or {}


def _is_node(kwargs: dict[str, Any]) -> bool:
    return any(tag.startswith(NODE_TAG) for tag in kwargs.get("tags") or ())


def _is_task(kwargs: dict[str, Any]) -> bool:
    """Whether it is a `@task` of LangGraph's functional API; the graph's function calls it."""
    metadata = _mapping(kwargs, "metadata")
    path: tuple[Any, ...] = metadata.get("langgraph_path") or ()
    return path[:1] == (PUSHED,) and path[-1] is True and kwargs.get("name") == metadata.get("langgraph_node")


def _outermost_node(above: Run | None, kwargs: dict[str, Any]) -> str | None:
    """Return the outermost node; in a function with tasks, which is one node, return the task.

    In `solver:<id>|model:<id>` this is `solver`. The run `above` tells a run below a task from one below a node.
    """
    metadata = _mapping(kwargs, "metadata")
    namespace = metadata.get("langgraph_checkpoint_ns") or metadata.get("langgraph_node") or ""
    outer, *inner = (part.split(":")[0] for part in namespace.split("|"))
    is_task = len(inner) == 1 and _is_task(kwargs)
    is_below_task = bool(inner) and above is not None and above.node == inner[0]
    return inner[0] if is_task or is_below_task else outer or None


def _root_name(name: str) -> str:
    """Return a root's name: the user's name for the agent where LangChain only has its class name."""
    return agent_name.get() or name if name == UNNAMED_GRAPH or name.startswith(UNNAMED) else name


def _is_created(metadata: dict[str, Any]) -> bool:
    """Whether `create_agent` has marked it as an agent."""
    return metadata.get("ls_integration") == CREATED


def _is_stopped(error: BaseException) -> bool:
    """Whether LangGraph cancels what is running in a graph that ends, for any reason.

    LangGraph marks this with a bare object as the message.
    """
    return isinstance(error, CancelledError) and [type(argument) for argument in error.args] == [object]


def _graph_of(command: Any) -> str | None:
    return getattr(command, "graph", None)


def _targets(command: Any) -> Iterator[str]:
    """Yield the nodes that a `Command` names; nothing for other values and for updates alone."""
    for step in _listed(getattr(command, "goto", ())):
        target = getattr(step, "node", step)  # of a `Send`
        if isinstance(target, str) and target != END:
            yield target


def _listed(value: Any) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]


def _answer_attributes(response: Any) -> dict[str, Any]:
    """Return the fields of an answer that the framework has; the gateway's record has the rest."""
    message = getattr(response.generations[0][0], "message", None)
    usage: dict[str, Any] = getattr(message, "usage_metadata", None) or {}
    metadata: dict[str, Any] = getattr(message, "response_metadata", None) or {}
    return {
        semconv.RESPONSE_ID: metadata.get("id"),
        semconv.RESPONSE_MODEL: metadata.get("model_name"),
        semconv.FINISH_REASONS: [metadata["finish_reason"]] if metadata.get("finish_reason") else None,
        semconv.INPUT_TOKENS: usage.get("input_tokens"),
        semconv.OUTPUT_TOKENS: usage.get("output_tokens"),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
