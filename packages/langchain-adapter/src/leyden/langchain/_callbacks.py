"""LangChain's callbacks, as spans and as "who speaks now". Never raises into the agent. Knows nothing of tokens.

Roots and graphs become `invoke_agent` spans, graph nodes `node` spans; the links of a chain get none of their own.
"""

import json
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from opentelemetry.trace import SpanKind, TracerProvider

from leyden.core.data import semconv
from leyden.core.tracing.quietly import quietly
from leyden.core.tracing.run_tree import Run, RunTree

NODE_TAG = "graph:step:"
"""LangGraph tags the runs of its nodes with their step."""
CONTROL_FLOW = "GraphBubbleUp"
"""LangGraph's base class of what is raised for control flow, such as interrupts, and is no failure."""

_RUNS = RunTree("langchain")
_promoting = Lock()


class ToolFailure(Exception):
    """A tool answered with an error instead of raising one; only ever recorded."""


class LeydenCallbackHandler(BaseCallbackHandler):
    """Records agents, nodes, model calls and tools; give it as a callback, or let the instrumentor do it.

    Any number of handlers record a run once. `run_inline` keeps them in the caller's context, where the wire looks
    for who speaks.
    """

    run_inline = True
    raise_error = False

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self.enabled = True
        """A disabled handler starts nothing more; what has started still ends."""
        self._provider = tracer_provider

    @quietly
    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **known: Any) -> None:
        run, metadata = self._start(run_id, known.get("name") or "chain", known), _mapping(known, "metadata")
        if run is None:
            return
        if run.parent is None:
            _RUNS.open_agent(run, metadata.get("lc_agent_name") or run.name, provider=self._provider)
        elif any(tag.startswith(NODE_TAG) for tag in known.get("tags") or ()):
            run.agent = self._graph(run.parent, metadata.get("lc_agent_name"))
            _RUNS.open(run, f"node {run.name}", {}, provider=self._provider)

    @quietly
    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **known: Any) -> None:
        self._model("chat", run_id, known)

    @quietly
    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **known: Any) -> None:
        self._model("text_completion", run_id, known)

    @quietly
    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **known: Any) -> None:
        name = str(known.get("name") or serialized["name"])
        run, inputs = self._start(run_id, name, known), known.get("inputs")
        if run is not None:
            arguments = input_str if inputs is None else _text(inputs)
            call_id = known.get("tool_call_id")
            _RUNS.open_tool(run, name, call_id=call_id, arguments=arguments, provider=self._provider)

    @quietly
    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **known: Any) -> None:
        self._start(run_id, "retriever", known)

    @quietly
    def on_llm_end(self, response: Any, *, run_id: UUID, **known: Any) -> None:
        _RUNS.end(run_id, attributes=_answer(response))

    @quietly
    def on_tool_end(self, output: Any, *, run_id: UUID, **known: Any) -> None:
        result = _text(getattr(output, "content", output))
        error = ToolFailure(result) if getattr(output, "status", None) == "error" else None
        _RUNS.end(run_id, error, {semconv.TOOL_RESULT: result})

    @quietly
    def on_chain_end(self, outputs: Any, *, run_id: UUID, **known: Any) -> None:
        _RUNS.end(run_id)

    @quietly
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **known: Any) -> None:
        intended = any(kind.__name__ == CONTROL_FLOW for kind in type(error).__mro__)
        _RUNS.end(run_id, None if intended else error)

    @quietly
    def on_retriever_end(self, documents: Any, *, run_id: UUID, **known: Any) -> None:
        _RUNS.end(run_id)

    on_llm_error = on_tool_error = on_retriever_error = on_chain_error

    def _start(self, run_id: UUID, name: str, known: dict[str, Any]) -> Run | None:
        if not self.enabled:
            return None
        metadata = _mapping(known, "metadata")
        # The outermost node: `solver` of `solver:<id>|model:<id>`.
        place = metadata.get("langgraph_checkpoint_ns") or metadata.get("langgraph_node") or ""
        return _RUNS.start(run_id, known.get("parent_run_id"), name, place.split("|")[0].split(":")[0] or None)

    def _graph(self, graph: Run, agent: str | None) -> str | None:
        """Return the agent that `graph` is: what holds nodes is a graph, which shows when its first node starts."""
        with _promoting:  # the first nodes may start at once
            if graph.span is None:
                name = graph.name if agent in (None, graph.agent) else agent
                _RUNS.open_agent(graph, name, provider=self._provider)
        return graph.agent

    def _model(self, operation: str, run_id: UUID, known: dict[str, Any]) -> None:
        metadata, parameters = _mapping(known, "metadata"), _mapping(known, "invocation_params")
        model = metadata.get("ls_model_name") or parameters.get("model") or "model"
        run = self._start(run_id, model, known)
        if run is not None:
            attributes = {
                semconv.OPERATION: operation,
                semconv.PROVIDER: metadata.get("ls_provider"),
                semconv.REQUEST_MODEL: model,
                semconv.REQUEST_STREAM: parameters.get("stream"),
            }
            _RUNS.open(run, f"{operation} {model}", attributes, provider=self._provider, kind=SpanKind.CLIENT)


def _mapping(known: dict[str, Any], name: str) -> dict[str, Any]:
    return known.get(name) or {}


def _answer(response: Any) -> dict[str, Any]:
    """Return what the framework still knows of an answer; the gateway's record has the rest."""
    message = getattr(response.generations[0][0], "message", None)
    usage: dict[str, Any] = getattr(message, "usage_metadata", None) or {}
    known: dict[str, Any] = getattr(message, "response_metadata", None) or {}
    return {
        semconv.RESPONSE_ID: known.get("id"),
        semconv.RESPONSE_MODEL: known.get("model_name"),
        semconv.FINISH_REASONS: [known["finish_reason"]] if known.get("finish_reason") else None,
        semconv.INPUT_TOKENS: usage.get("input_tokens"),
        semconv.OUTPUT_TOKENS: usage.get("output_tokens"),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
