"""`LangChainAdapter`: runs LangChain runnables and compiled LangGraph graphs for a task. Knows nothing of spans."""

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast
from uuid import uuid4

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapter import Adapter
from leyden.core.runner.instrumentor_switch import InstrumentorSwitch
from leyden.langchain._input import input_for
from leyden.langchain._instrumentor import LangChainInstrumentor

log = logging.getLogger("leyden.langchain")

THREAD = "leyden-"
"""Our thread ids begin so, and only such threads are deleted from a checkpointer."""


class LangChainAdapter(Adapter):
    """Runs what `Runnable.ainvoke` runs: chains, `create_agent`, compiled graphs."""

    name = "langchain"
    module = "langchain_core"

    def __init__(self) -> None:
        self._recording = InstrumentorSwitch(LangChainInstrumentor)
        self._caches: list[Any] = []

    def supports(self, agent: object) -> bool:
        """Whether `agent` is a runnable, or a graph that only lacks `.compile()`, which `check` then says."""
        runnables = sys.modules.get("langchain_core.runnables")
        return (runnables is not None and isinstance(agent, runnables.Runnable)) or _is_uncompiled(agent)

    def fresh(self, agent: Any) -> Any:
        """Return `agent` under a thread and session of its own; itself where it keeps nothing between runs."""
        fields: set[str] = set()
        for layer in _layers(agent):
            if getattr(layer, "checkpointer", None):
                fields.add("thread_id")
            fields.update(spec.id for spec in getattr(layer, "history_factory_config", ()))
        if not fields:
            return agent
        return agent.with_config({"configurable": {name: f"{THREAD}{uuid4().hex}" for name in fields}})

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `task` cannot be given to `agent`, and UnknownAgent when it cannot run unattended."""
        if _is_uncompiled(agent):
            raise UnknownAgent("the agent is a StateGraph that is not compiled: give what its .compile() returns")
        for name, graph in _graphs(agent):
            before, after = (getattr(graph, f"interrupt_{when}_nodes", ()) for when in ("before", "after"))
            if before or after:
                raise UnknownAgent(f"{name} waits for a human at {before or after}: compile it without interrupts")
        input_for(agent, task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Await `agent.ainvoke` for `task`; raises UnknownAgent when the agent interrupts itself."""
        from langsmith import tracing_context  # pyright: ignore[reportUnknownVariableType]  # a bare Mapping in its type

        self._disable_cache()
        try:
            with tracing_context(enabled=False):  # prompts and answers do not leave for LangSmith
                result = await agent.ainvoke(input_for(agent, task))
        finally:
            await _forget(agent)
        if isinstance(result, Mapping) and cast("Mapping[str, Any]", result).get("__interrupt__"):
            raise UnknownAgent(f"the agent waits for a human ({result['__interrupt__']}): it cannot run unattended")
        return cast("Any", result)

    def instrument(self) -> None:
        """Record every LangChain run of this process, and turn LangChain's own answer cache off."""
        self._disable_cache()
        self._recording.on()

    def uninstrument(self) -> None:
        """Undo `instrument`, unless the user had instrumented before us."""
        self._recording.off()
        if self._caches:
            from langchain_core.globals import set_llm_cache

            set_llm_cache(self._caches[-1])
            self._caches.clear()

    def callback_handler(self) -> object:
        """Return a handler for `config={"callbacks": [...]}`."""
        from leyden.langchain._callbacks import LeydenCallbackHandler

        return LeydenCallbackHandler()

    def _disable_cache(self) -> None:
        """A cached answer was drawn by another version of the policy, and never reaches the gateway."""
        from langchain_core.globals import get_llm_cache, set_llm_cache

        if (cache := get_llm_cache()) is not None:
            self._caches.append(cache)
            set_llm_cache(None)


def _is_uncompiled(agent: object) -> bool:
    graphs = sys.modules.get("langgraph.graph.state")
    return graphs is not None and isinstance(agent, graphs.StateGraph)


def _layers(agent: Any) -> Iterator[Any]:
    """Yield `agent` and what it wraps (`with_config`, `with_retry`, message histories)."""
    while agent is not None:
        yield agent
        agent = getattr(agent, "bound", None)


def _graphs(agent: Any) -> Iterator[tuple[str, Any]]:
    """Yield `agent`, what it wraps, and the graphs among its nodes, each with what to call it.

    A graph among nodes that has no memory ends at its interrupts without a word.
    """
    for layer in _layers(agent):
        yield "the agent", layer
        if hasattr(layer, "get_subgraphs"):
            for name, graph in layer.get_subgraphs(recurse=True):
                yield f"the subgraph {name!r} of the agent", graph


async def _forget(agent: Any) -> None:
    """Delete this attempt's checkpoints, which nobody reads again."""
    layers = list(_layers(agent))
    checkpointer = next((found for layer in layers if (found := getattr(layer, "checkpointer", None))), None)
    for layer in layers:
        config: Mapping[str, Any] = getattr(layer, "config", None) or {}
        thread = str(config.get("configurable", {}).get("thread_id"))
        if thread.startswith(THREAD) and hasattr(checkpointer, "adelete_thread"):
            try:
                await cast("Any", checkpointer).adelete_thread(thread)
            except Exception as error:
                log.debug("the checkpoints of %s stay: %r", thread, error)
