"""`Trainer` with the arguments of Agent Lightning 0.3, and Leyden's own beside them."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from leyden.core.agent_lightning.adapter import Adapter, TracerTraceToTriplet
from leyden.core.agent_lightning.algorithm import VERL, Algorithm, FastAlgorithm
from leyden.core.agent_lightning.env_var import check_roles
from leyden.core.agent_lightning.replaced import REPLACED, WithReplaced, lookup, refuse
from leyden.core.agent_lightning.runner import check_tracer
from leyden.core.agent_lightning.session import Session, run_algorithm
from leyden.core.agent_lightning.tracer import OtelTracer
from leyden.core.algorithm.base import Algorithm as LeydenAlgorithm
from leyden.core.data.resources import LLM, NamedResources
from leyden.core.errors import UsageError
from leyden.core.runner.attempts.hooks import Hook
from leyden.core.store.base import LightningStore
from leyden.core.trainer import trainer
from leyden.core.trainer.preflight.report import CheckReport
from leyden.core.trainer.rollouts.tasks import load_tasks
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.serving.endpoint import openai_endpoint
from leyden.core.trajectory.trace_to_messages import TraceToMessages

N_RUNNERS = 64
"""Attempts that run at once with Leyden's algorithms, if neither `n_runners` nor `n_workers` is given."""
SECONDS_WITH_VERL = 1200.0
"""Time limit of an attempt with `VERL`, as in the original."""
OF_OWN = frozenset({"policy", "device", "isolation", "input"})
"""Leyden's options that also apply to an algorithm in the original's form."""
OF_TRIPLETS = frozenset(inspect.signature(TracerTraceToTriplet).parameters)
"""Keys of an adapter that is given as a mapping, as in the original."""


class Trainer(WithReplaced, trainer.Trainer):
    """Trains an agent, with an algorithm of Leyden or one that works on a store, as `@algo` makes it.

    Args:
        algorithm: `LightningRL` by default.
        n_runners: Attempts that run at once; 1 by default for an algorithm that works on a store.
        n_workers: Older name of `n_runners`, as in the original.
        adapter: For an algorithm that works on a store: what its `get_adapter` returns. For Leyden's algorithms, which
            read the gateway's records themselves: only what selects calls, `TracerTraceToTriplet(agent_match=...)` or
            a mapping as `select` takes it, or what selects every call. `triplet_exporter` is its older name. Both are
            attributes, too; a mapping becomes a `TracerTraceToTriplet`.
        store: Store of the rollouts; in memory by default for an algorithm that works on a store.
        hooks: One hook or several.
        tracer: An `OtelTracer` or `AgentOpsTracer`, which changes nothing, since every attempt is recorded.
        options: Other arguments of `leyden.core.Trainer`. An algorithm that works on a store takes only `policy`,
            `device`, `isolation` and `input`.

    Raises ReplacedName for the original's other arguments.
    """

    def __init__(  # noqa: PLR0913 -- the keywords of the original
        self,
        *,
        algorithm: LeydenAlgorithm | Algorithm | None = None,
        n_runners: int | None = None,
        n_workers: int | None = None,
        initial_resources: NamedResources | None = None,
        adapter: Adapter[Any, Any] | TraceToMessages | Mapping[str, Any] | None = None,
        triplet_exporter: Adapter[Any, Any] | None = None,
        store: str | LightningStore | None = None,
        hooks: Hook | Sequence[Hook | type[Hook] | str] = (),
        tracer: OtelTracer | None = None,
        **options: Any,
    ) -> None:
        for name in options:
            if name in REPLACED:
                refuse(f"Trainer({name}=)", REPLACED[name])
        check_tracer(tracer)
        if isinstance(algorithm, str | dict):
            refuse("an algorithm as a name or a dict", "give the object itself, such as APO(...) or LightningRL(...)")
        if None not in (n_runners, n_workers):
            raise UsageError("n_workers is the older name of n_runners: give one of them")
        own = algorithm if isinstance(algorithm, Algorithm) else None
        given = _given_adapter(adapter, triplet_exporter, is_selection=own is None)
        if own is not None and (unused := sorted(options.keys() - OF_OWN)):
            raise UsageError(f"Trainer({unused[0]}=) has no effect on an algorithm that works on a store")
        if own is not None and isinstance(store, str):
            raise UsageError("an algorithm that works on a store takes the store itself, from open_store, not its URI")
        if isinstance(algorithm, VERL):
            options.setdefault("timeout_seconds", SECONDS_WITH_VERL)
        count = n_workers if n_runners is None else n_runners
        super().__init__(
            algorithm=None if isinstance(algorithm, Algorithm) else algorithm,
            n_runners=count or (N_RUNNERS if own is None else 1),
            adapter=None if own is not None else selecting(given),
            initial_resources=initial_resources,
            hooks=(hooks,) if isinstance(hooks, Hook) else hooks,
            store=store,
            **options,
        )
        if count is not None and count < 1:
            raise UsageError(f"n_runners is {count}; it must be at least 1")
        self._own, self.tracer = own, tracer or OtelTracer()
        self.adapter: Adapter[Any, Any] | TraceToMessages = given
        if isinstance(given, Mapping | None):
            self.adapter = TracerTraceToTriplet(agent_match=self.selection.get("agent_match"))
        self.triplet_exporter = self.adapter

    def fit(self, agent: Any = None, train_dataset: Any = None, val_dataset: Any = None, reward: Any = None) -> Any:
        """Train, and return the run's report; None for an algorithm that works on a store."""
        check_roles()
        if self._own is None:
            return super().fit(agent, train_dataset, val_dataset, reward)
        if reward is not None:
            raise UsageError("an algorithm that works on a store takes no reward function: the agent gives rewards")
        train, val = _loaded(train_dataset), _loaded(val_dataset)
        return run_algorithm(self._session(agent), self._own, self.adapter, self._own_store(), train, val)

    def dev(  # pyright: ignore[reportIncompatibleMethodOverride]  # the original's names of arguments
        self, agent: Any, train_dataset: Any = None, val_dataset: Any = None, reward: Any = None
    ) -> Any:
        """Run the agent on the datasets without training, and return the recorded rollouts.

        A `FastAlgorithm` runs in place of that, as in the original. Without a policy and an LLM, the endpoint that a
        client of the library `openai` would call answers the agent.
        """
        check_roles()
        if isinstance(self._own, FastAlgorithm):
            return self.fit(agent, train_dataset, val_dataset)
        tasks = [*(_loaded(train_dataset) or ()), *(_loaded(val_dataset) or ())]
        is_llm_given = any(isinstance(one, LLM) for one in self.initial_resources.values())
        if self.policy is None and not is_llm_given and (endpoint := openai_endpoint()) is not None:
            answered = copy.copy(self)
            answered.initial_resources = {**self.initial_resources, "main_llm": endpoint.llm()}
            return trainer.Trainer.dev(answered, agent, tasks, reward)
        return super().dev(agent, tasks, reward)

    def check(self, agent: Any, dataset: Any, reward: Any = None) -> CheckReport:
        """Check that `fit` would learn. Raises UsageError for an algorithm that works on a store."""
        self._needs_run("check")
        return super().check(agent, dataset, reward)

    def resume(self, agent: Any, name: str, reward: Any = None) -> RunReport:
        """Resume a run. Raises UsageError for an algorithm that works on a store, which has no checkpoints."""
        self._needs_run("resume")
        return super().resume(agent, name, reward)

    def _own_store(self) -> LightningStore | None:
        return None if isinstance(self.store, str) else self.store

    def _needs_run(self, what: str) -> None:
        if self._own is not None:
            raise UsageError(f"Trainer.{what} works with Leyden's algorithms, not with one that works on a store")

    def _session(self, agent: Any) -> Session:
        if isinstance(self.policy, dict):
            raise UsageError("an algorithm that works on a store has one policy: give one, without a name")
        return Session(
            agent=agent,
            resources=self.initial_resources,
            policy=self.policy,
            device=self.device or "cpu",
            hooks=self.hooks,
            input=self.input,
            concurrency=self.n_runners,
            isolation=self.isolation,
        )


def _given_adapter(adapter: Any, older: Any, *, is_selection: bool) -> Any:
    """Return the adapter, made of a mapping as in the original; keys of `select` stay a mapping if `is_selection`."""
    if None not in (adapter, older):
        raise UsageError("triplet_exporter is the older name of adapter: give one of them")
    given: Any = adapter if older is None else older
    if not isinstance(given, Mapping) or (is_selection and not given.keys() <= OF_TRIPLETS):
        return cast("Any", given)
    keywords = cast("Mapping[str, Any]", given)
    if unknown := sorted(keywords.keys() - OF_TRIPLETS):
        raise UsageError(f"adapter= takes {', '.join(sorted(OF_TRIPLETS))}, not {', '.join(unknown)}")
    return TracerTraceToTriplet(**keywords)


def selecting(adapter: Any) -> Mapping[str, Any] | TraceToMessages | None:
    """Return what Leyden's algorithms take of an adapter. Raises ReplacedName for one that makes something else."""
    if adapter is None or isinstance(adapter, TraceToMessages):
        return adapter
    if isinstance(adapter, Mapping):
        return cast("Mapping[str, Any]", adapter)
    if isinstance(adapter, TracerTraceToTriplet) and type(adapter).adapt is TracerTraceToTriplet.adapt:
        return {} if adapter.agent_match is None else {"agent_match": adapter.agent_match}
    refuse(
        f"adapter={type(adapter).__name__}()",
        "select= chooses the calls that Leyden's algorithms read; @algo gets any adapter",
    )


def _loaded(dataset: Any) -> Any:
    return load_tasks(dataset) if isinstance(dataset, str) else dataset


__all__ = ["Trainer"]

__getattr__ = lookup("trainer")
