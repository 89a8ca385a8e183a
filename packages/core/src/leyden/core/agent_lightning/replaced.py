"""Names of Agent Lightning 0.3 that have no meaning in Leyden, each with one line that names what replaces it."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from leyden.core.errors import UsageError

PACKAGE = "leyden.core.agent_lightning"


class ReplacedName(UsageError, ImportError):
    """A name or an argument of Agent Lightning that something else in Leyden replaces.

    It is an ImportError, because Python drops the message of an AttributeError in `from ... import name`.
    """

    __str__ = Exception.__str__


class ReplacedMember(UsageError, AttributeError):
    """A method or an attribute of one of Agent Lightning's classes that something else in Leyden replaces.

    It is an AttributeError, so that `hasattr` returns False.
    """

    __str__ = Exception.__str__


_QUEUE = "a store has the queue and the resources: serve one with LightningStoreServer, and open it with open_store"
_FILTERS = "the query_* methods of a store take filters and order as keywords, such as status_in= and sort_by="
_EXECUTION = (
    "Trainer runs a live agent in the calling process and an import string (file.py:agent) in n_workers processes of "
    "leyden.core.Trainer; runners=RunnerPlacement(...) places them on Ray or on other machines"
)
_RECORDING = "the gateway and the adapters record every attempt; emit_* and operation() add spans of your own"
_GATEWAY = (
    "Leyden's gateway serves the policy and records every call: name another model as "
    "Trainer(initial_resources={'main_llm': LLM(endpoint=..., model=...)}), or start `leyden gateway`"
)
_STATUS = "Leyden's spans have plain fields: "
_LINKS = "find the spans of a rollout with store.query_spans(rollout_id), and their order by sequence_id"
_VERL = "algorithm=VERL(config) starts VERL's own trainer; docs/verl.md describes what it takes"

ROOT: Mapping[str, str] = {
    "AgentLightningClient": _QUEUE,
    "AgentLightningServer": _QUEUE,
    "DevTaskLoader": "Trainer.dev(agent, tasks) runs an agent on tasks without training",
    "lightning_cli": "`leyden train --help` has every option; in Python, give arguments to Trainer",
    "LegacyAgentRunner": "LitAgentRunner runs agents",
    "RolloutLegacy": "Rollout, with its spans from store.query_spans(rollout_id)",
    "RolloutRawResultLegacy": "a rollout returns a reward, named rewards, spans, or None: RolloutRawResult",
    "Task": "a task is any value that JSON can hold (TaskInput); its place in the queue is a Rollout",
    "TaskIfAny": "store.dequeue_rollout() returns a claimed rollout or None",
    "GenericResponse": "store methods return their results, and raise StoreError",
    "ParallelWorkerBase": "Hook has methods around every attempt; an agent's constructor prepares it",
    "build_component": "give Trainer the objects themselves",
    "LLMProxy": _GATEWAY,
    "CollectionBasedLightningStore": "subclass leyden.core.LightningStore, and test it with testing.store_contract",
    "LightningStoreThreaded": "leave it out: every store of Leyden may be used by any number of threads",
    "Tracer": f"{_RECORDING}; docs/writing-an-adapter.md describes how to record a framework",
    "DummyTracer": f"leave it out: {_RECORDING}",
    "get_active_tracer": _RECORDING,
    "set_active_tracer": _RECORDING,
    "clear_active_tracer": _RECORDING,
    "FilterField": _FILTERS,
    "FilterOptions": _FILTERS,
    "SortOptions": _FILTERS,
    "TraceState": "OpenTelemetry's own; a Span keeps trace_id and span_id",
    "SpanContext": _STATUS + "span.trace_id and span.span_id",
    "TraceStatus": _STATUS + "leyden.core.data.span.SpanStatus(code='ok'), with codes in lower case",
    "Event": _STATUS + "leyden.core.data.span.SpanEvent(name=..., time=..., attributes=...)",
    "Link": _STATUS + "leyden.core.data.span.SpanLink(trace_id=..., span_id=...)",
    "OtelResource": _STATUS + "span.resource is a dict of attributes",
    "SpanCoreFields": "emitters return nothing, because the runner stores what they emit",
    "SpanRecordingContext": "operation() returns an object with set_input, set_output and set_attributes",
}
"""Names of the package itself."""

MODULES: Mapping[str, Mapping[str, str]] = {
    "execution": {
        **dict.fromkeys(
            ("ExecutionStrategy", "ClientServerExecutionStrategy", "SharedMemoryExecutionStrategy"), _EXECUTION
        ),
        "ExecutionEvent": "use an event of the standard library: asyncio.Event, threading.Event",
        "ThreadingEvent": "threading.Event of the standard library",
        "MultiprocessingEvent": "multiprocessing.Event of the standard library",
    },
    "llm_proxy": {"LLMProxy": _GATEWAY},
    "algorithm": {
        "with_store": "get_store() returns the store inside run()",
        "with_llm_proxy": _GATEWAY,
    },
    "adapter": {
        "RewardMatchPolicy": "a reward goes to the latest call that ended before it and has none yet",
        "TraceTree": "leyden.core.trainer.rollouts.tree.rollout_tree draws a rollout's spans",
    },
    "tracer": {"WeaveTracer": f"{_RECORDING}; docs/trackers.md lists where numbers of a run can be sent, W&B too"},
    "store": {
        "MongoLightningStore": "open_store('postgresql://...') or open_store('redis://...') keeps a store on a server"
    },
    "semconv": {
        "LightningResourceAttributes": "spans have the fields rollout_id, attempt_id and sequence_id",
        "LightningSpanAttributes": "leyden.core.data.semconv has the names of attributes",
        "RewardAttributes": "get_rewards_from_span(span) returns the named rewards",
        "LinkAttributes": _LINKS,
        "LinkPydanticModel": _LINKS,
        "AGL_VIRTUAL": "Leyden's stores hold no virtual spans",
    },
    "verl": dict.fromkeys(
        ("AgentLightningTrainer", "AgentModeDaemon", "AgentDataset", "LoadedDataset", "TaskRunner", "run_ppo"), _VERL
    ),
    "instrumentation": dict.fromkeys(("instrument_all", "uninstrument_all"), _RECORDING),
}
"""Names of the original's modules, by the module. Those of `ROOT` are found in every module."""


REPLACED: Mapping[str, str] = {
    "dev": "call trainer.dev(agent, tasks)",
    "max_rollouts": "the algorithm decides how many rollouts run: steps=, tasks_per_step= and group_size=",
    "max_tasks": "the algorithm decides how many rollouts run: steps=, tasks_per_step= and group_size=",
    "runner": "leave it out: Trainer makes its runners",
    "strategy": "leave it out; docs/python.md and docs/cluster.md describe where agents run",
    "port": "leave it out: the gateway takes a free port, and `leyden gateway --port` serves at a fixed one",
    "llm_proxy": "name the model as initial_resources={'main_llm': LLM(endpoint=..., model=...)}",
    "daemon": "leave it out: workers end with their trainer",
}
"""Arguments of the original's `Trainer` that Leyden refuses, and what to do."""

_WORKER = ("init", "init_worker", "run", "teardown", "teardown_worker")
"""Methods that the original's classes have from `ParallelWorkerBase`."""

MEMBERS: Mapping[str, Mapping[str, str]] = {
    "OtelTracer": dict.fromkeys(
        (
            *_WORKER,
            "lifespan",
            "trace_context",
            "trace_run",
            "trace_run_async",
            "create_span",
            "operation_context",
            "instrument",
            "uninstrument",
        ),
        _RECORDING,
    ),
    "LitAgentRunner": {
        **dict.fromkeys(_WORKER, "`with runner.run_context(agent=..., store=...)` prepares it, and ends it"),
        **dict.fromkeys(("get_agent", "get_store"), "run_context() is given both"),
        "get_worker_id": "store.query_workers() returns the workers of a store",
    },
    "LitAgent": {
        **dict.fromkeys(("get_trainer", "set_trainer"), "give the agent what it needs in its constructor"),
        **dict.fromkeys(("get_runner", "set_runner"), "a Hook receives the runner"),
        "set_tracer": _RECORDING,
    },
    "Algorithm": {
        "set_llm_proxy": _GATEWAY,
        "set_trainer": "give the algorithm what it needs in its constructor",
    },
    "Trainer": {
        **{name: line for name, line in REPLACED.items() if name != "dev"},
        **dict.fromkeys(_WORKER, "Trainer.fit(agent, tasks) does all of it"),
        "client": _QUEUE,
        "fit_v0": "Trainer.fit(agent, tasks)",
        "kill_orphaned_processes": "workers end with their trainer, also if that is killed",
    },
    "TracerTraceToTriplet": {
        "visualize": "leyden.core.trainer.rollouts.tree.rollout_tree draws a rollout's spans, as `leyden show` does"
    },
    "LightningStoreServer": {
        "run_forever": "await start(), and stop() at the end; `leyden store` is a server in its own process",
    },
}
"""Methods and attributes of the original's classes that have no meaning in Leyden, by the class here."""


class WithReplaced:
    """Base class of a class of the original: its members in `MEMBERS` raise ReplacedMember with their line."""

    def __getattr__(self, name: str) -> Any:
        """Raise ReplacedMember for a member of the original's class, else AttributeError."""
        for kind in type(self).__mro__:
            if (line := MEMBERS.get(kind.__name__, {}).get(name)) is not None:
                raise ReplacedMember(f"{kind.__name__}.{name} of Agent Lightning 0.3 is replaced: {line}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def replacement(name: str, module: str = "") -> str | None:
    """Return the line that says what replaces `name` of `module`, or None for a name that 0.3 does not have."""
    return MODULES.get(module, {}).get(name) or ROOT.get(name) or _of_own_module(name, module)


def refuse(what: str, instead: str) -> NoReturn:
    """Raise ReplacedName for an argument or a method."""
    raise ReplacedName(f"{what} of Agent Lightning has no meaning in Leyden: {instead}")


def lookup(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module: raises ReplacedName for a replaced name, else AttributeError."""
    path = f"{PACKAGE}.{module}" if module else PACKAGE

    def find(name: str) -> NoReturn:
        if (line := replacement(name, module)) is not None:
            raise ReplacedName(f"{name} of Agent Lightning 0.3 is replaced: {line}")
        raise AttributeError(f"module {path!r} has no attribute {name!r}")

    return find


def _of_own_module(name: str, module: str) -> str | None:
    """The line for a name that the original's package takes over from its module `execution`."""
    return None if module else MODULES["execution"].get(name)
