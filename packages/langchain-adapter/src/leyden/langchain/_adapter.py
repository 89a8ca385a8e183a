"""LangChain adapter: runs LangChain runnables and compiled LangGraph graphs for a task."""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from uuid import uuid4

from leyden.core.data.resources import Resource
from leyden.core.data.rollout import Task
from leyden.core.errors import UnknownAgent
from leyden.core.runner.adapters.base import Adapter
from leyden.core.runner.adapters.instrumentor_switch import InstrumentorSwitch
from leyden.core.runner.attempts.threads import in_thread
from leyden.langchain._input import input_for
from leyden.langchain._instrumentor import LangChainInstrumentor, handler_class
from leyden.langchain._parts import stateless_parts
from leyden.langchain._sync import THREAD, checkpoints, is_missing_async, layers, works_only_sync

log = logging.getLogger("leyden.langchain")


class LangChainAdapter(Adapter):
    """Runs chains, `create_agent` and compiled graphs; awaits them unless they work only by `invoke`."""

    name = "langchain"
    module = "langchain_core"

    def __init__(self) -> None:
        self._instrumentor_switch = InstrumentorSwitch(LangChainInstrumentor)
        self._caches: list[Any] = []
        self._only_sync = False
        """Whether an attempt has failed because the agent cannot be awaited."""

    def supports(self, agent: object) -> bool:
        """Whether `agent` is a runnable, or a graph that only lacks `.compile()`, which `check` reports."""
        runnables = sys.modules.get("langchain_core.runnables")
        return (runnables is not None and isinstance(agent, runnables.Runnable)) or _is_uncompiled(agent)

    def fresh(self, agent: Any) -> Any:
        """Return `agent` with its own thread and session ids; itself where it keeps nothing between runs."""
        fields: set[str] = set()
        for layer in layers(agent):
            if getattr(layer, "checkpointer", None):
                fields.add("thread_id")
            fields.update(spec.id for spec in getattr(layer, "history_factory_config", ()))
        if not fields:
            return agent
        return agent.with_config({"configurable": {name: f"{THREAD}{uuid4().hex}" for name in fields}})

    def stateless_parts(self, thing: object) -> Iterable[object] | None:
        """Return what a runnable or a graph without a memory is made of."""
        return stateless_parts(thing)

    def check(self, agent: Any, task: Task) -> None:
        """Raise TaskError when `agent` cannot take `task`, and UnknownAgent when it cannot run unattended."""
        if _is_uncompiled(agent):
            raise UnknownAgent(
                "the agent is a StateGraph that is not compiled: give the graph that its .compile() returns"
            )
        for name, graph in _graphs(agent):
            before, after = (getattr(graph, f"interrupt_{when}_nodes", ()) for when in ("before", "after"))
            if before or after:
                raise UnknownAgent(f"{name} waits for human input at {before or after}: compile it without interrupts")
        input_for(agent, task)

    async def run(self, agent: Any, task: Task, resources: Mapping[str, Resource]) -> Any:
        """Await `agent.ainvoke` for `task`, or call `agent.invoke` in a thread where only this works.

        Raises UnknownAgent when the agent interrupts itself.
        """
        from langsmith import tracing_context  # pyright: ignore[reportUnknownVariableType]  # a bare Mapping in its type

        self._disable_cache()
        given = input_for(agent, task)
        sync = self._only_sync or await works_only_sync(agent)
        try:
            with tracing_context(enabled=False):  # prompts and answers are not sent to LangSmith
                result = await (in_thread(agent.invoke, given) if sync else agent.ainvoke(given))
        except NotImplementedError as error:
            if not sync and is_missing_async(error):
                # The agent is not run again here: it would repeat what it did before the error.
                log.warning(
                    "the agent cannot be awaited (%s): from the next attempt on, Leyden calls its invoke", error
                )
                self._only_sync = True
            raise
        finally:
            await _delete_checkpoints(agent, sync)
        if isinstance(result, Mapping) and cast("Mapping[str, Any]", result).get("__interrupt__"):
            raise UnknownAgent(
                f"the agent waits for human input ({result['__interrupt__']}), and Leyden runs it unattended: remove "
                "the interrupt"
            )
        return cast("Any", result)

    def final_output(self, result: Any) -> Any:
        """Return the structured response of an agent's state, or the content of its last message."""
        if isinstance(result, Mapping):
            state = cast("Mapping[str, Any]", result)
            if state.get("structured_response") is not None:
                return state["structured_response"]
            result = (state.get("messages") or [None])[-1]
        return getattr(result, "content", None)

    def instrument(self) -> None:
        """Record every LangChain run of this process, and turn LangChain's own answer cache off."""
        self._disable_cache()
        self._instrumentor_switch.on()

    def uninstrument(self) -> None:
        """Undo `instrument`, unless the user had instrumented before."""
        self._instrumentor_switch.off()
        if self._caches:
            from langchain_core.globals import set_llm_cache

            set_llm_cache(self._caches[-1])
            self._caches.clear()

    def callback_handler(self) -> object:
        """Return a handler for `config={"callbacks": [...]}`."""
        return handler_class()()

    def _disable_cache(self) -> None:
        """Turn the cache off: another policy version sampled its answers, and they bypass the gateway."""
        from langchain_core.globals import get_llm_cache, set_llm_cache

        if (cache := get_llm_cache()) is not None:
            self._caches.append(cache)
            set_llm_cache(None)


def _is_uncompiled(agent: object) -> bool:
    graphs = sys.modules.get("langgraph.graph.state")
    return graphs is not None and isinstance(agent, graphs.StateGraph)


def _graphs(agent: Any) -> Iterator[tuple[str, Any]]:
    """Yield `agent`, what it wraps, and the graphs among its nodes, each with its name for messages.

    A graph among nodes that has no memory ends at its interrupts silently.
    """
    for layer in layers(agent):
        yield "the agent", layer
        if hasattr(layer, "get_subgraphs"):
            for name, graph in layer.get_subgraphs(recurse=True):
                yield f"the subgraph {name!r} of the agent", graph


async def _delete_checkpoints(agent: Any, sync: bool) -> None:
    """Delete this attempt's checkpoints, which are not read again."""
    saver, config = checkpoints(agent)
    if config is None:
        return
    thread = config["configurable"]["thread_id"]
    try:
        await (in_thread(saver.delete_thread, thread) if sync else saver.adelete_thread(thread))
    except Exception as error:
        log.debug("the checkpoints of %s could not be deleted: %r", thread, error)
