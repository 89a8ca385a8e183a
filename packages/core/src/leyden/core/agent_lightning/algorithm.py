"""Algorithms in the form of Agent Lightning 0.3: code that works on a store while runners run the agent.

Leyden's own algorithms (`leyden.core.Algorithm`) have a `Context` in place of the store, and checkpoints, resuming and
reports. `Trainer` takes both.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from leyden.core.agent_lightning.adapter import Adapter, TracerTraceToTriplet
from leyden.core.agent_lightning.emitter import find_final_reward
from leyden.core.agent_lightning.replaced import WithReplaced, lookup, refuse
from leyden.core.agent_lightning.types import Dataset, NamedResources
from leyden.core.algorithm.prompts.apo import APO
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.data.rollout import Rollout, RolloutMode
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.trajectory.trace_to_messages import TraceToMessages

log = logging.getLogger(__name__)

TraceReader = Adapter[Any, Any] | TraceToMessages
"""What `Trainer(adapter=...)` takes for such an algorithm."""


class Algorithm(WithReplaced):
    """Base class: override `run`, sync or async. `Trainer` gives it the store before it calls `run`."""

    _store: LightningStore | None = None
    _adapter: TraceReader | None = None
    _initial_resources: NamedResources | None = None

    def is_async(self) -> bool:
        """Return whether `run` is a coroutine function."""
        return inspect.iscoroutinefunction(self.run)

    def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> Awaitable[None] | None:
        """Work until done. A sync method runs in a thread."""
        raise NotImplementedError(f"{type(self).__name__} does not override run")

    def set_store(self, store: LightningStore) -> None:
        """Set the store that `get_store` returns."""
        self._store = store

    def get_store(self) -> LightningStore:
        """Return the store. Raises UsageError before `Trainer.fit` or `set_store`."""
        if self._store is None:
            raise UsageError(f"{type(self).__name__} has no store yet: Trainer.fit gives it one, or call set_store")
        return self._store

    def set_adapter(self, adapter: TraceReader) -> None:
        """Set the adapter that `get_adapter` returns."""
        self._adapter = adapter

    def get_adapter(self) -> TraceReader:
        """Return the adapter; `TracerTraceToTriplet()` if none was set."""
        return self._adapter or TracerTraceToTriplet()

    def set_initial_resources(self, resources: NamedResources) -> None:
        """Set the resources that `get_initial_resources` returns."""
        self._initial_resources = resources

    def get_initial_resources(self) -> NamedResources | None:
        """Return the resources that `Trainer` was given; None without any."""
        return self._initial_resources

    def get_llm_proxy(self) -> None:
        """Return None: the run's gateway answers and records the agent's calls."""

    def get_trainer(self) -> Any:
        """Raise ReplacedName."""
        refuse("get_trainer()", "give the algorithm what it needs in its constructor")

    def get_client(self) -> Any:
        """Raise ReplacedName."""
        refuse("get_client()", "get_store() returns the store")


class FunctionAlgorithm(Algorithm):
    """Algorithm that `algo` makes of a function. A call of it calls the function."""

    OFFERED = ("store", "adapter", "llm_proxy", "initial_resources", "train_dataset", "val_dataset")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        kinds = inspect.Parameter
        parameters = [
            one
            for one in inspect.signature(function).parameters.values()
            if one.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
        ]
        self._names = [one.name for one in parameters if one.name in self.OFFERED]
        unknown = [one.name for one in parameters if one.name not in self.OFFERED and one.default is one.empty]
        if unknown:
            raise UsageError(f"@algo: no {unknown[0]!r} is given; parameters can be {', '.join(self.OFFERED)}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def is_async(self) -> bool:
        """Return whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> Any:
        """Call the function with what its parameters name. Raises TypeError for a dataset that it does not take."""
        for name, dataset in (("train_dataset", train_dataset), ("val_dataset", val_dataset)):
            if dataset is not None and name not in self._names:
                raise TypeError(f"the algorithm has no parameter {name}, and fit was given one")
        offered: dict[str, Callable[[], Any]] = {
            "store": self.get_store,
            "adapter": self.get_adapter,
            "llm_proxy": self.get_llm_proxy,
            "initial_resources": self.get_initial_resources,
            "train_dataset": lambda: train_dataset,
            "val_dataset": lambda: val_dataset,
        }
        return self.function(**{name: offered[name]() for name in self._names})


def algo(function: Callable[..., Any]) -> FunctionAlgorithm:
    """Make an algorithm of a function, sync or async.

    Its parameters can be `store`, `adapter`, `llm_proxy` (None), `initial_resources`, `train_dataset`, `val_dataset`.
    """
    return FunctionAlgorithm(function)


class FastAlgorithm(Algorithm):
    """Base class of algorithms that are quick enough for `Trainer.dev`."""


class Baseline(FastAlgorithm):
    """Runs the agent on the datasets, `n_epochs` times, and logs status, reward and spans of each rollout.

    `train_split` is the share of the training dataset that runs in mode `train`; the others run in mode `val`, as does
    the validation dataset. At most `max_queue_length` rollouts are queued or run at once.
    """

    def __init__(
        self,
        *,
        n_epochs: int = 1,
        train_split: float = 0.5,
        polling_interval: float | None = None,
        max_queue_length: int = 4,
        span_verbosity: Literal["keys", "key_values", "none"] = "keys",
    ) -> None:
        if polling_interval is not None:
            refuse("polling_interval=", "leave it out: a store notifies those who wait for rollouts")
        if not 0 < train_split < 1:
            raise UsageError(f"train_split is {train_split}; it must be between 0 and 1")
        self.n_epochs, self.train_split, self.max_queue_length = n_epochs, train_split, max_queue_length
        self.span_verbosity = span_verbosity

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Run the agent on every task."""
        first = list(train_dataset or ())
        split = round(len(first) * self.train_split)
        modes: list[tuple[RolloutMode, Any]] = [
            *(("train", task) for task in first[:split]),
            *(("val", task) for task in [*first[split:], *(val_dataset or ())]),
        ]
        if not modes:
            raise UsageError("Baseline needs a train_dataset or a val_dataset")
        slots = asyncio.Semaphore(self.max_queue_length)
        await asyncio.gather(*(self._run(slots, mode, task) for _ in range(self.n_epochs) for mode, task in modes))

    async def _run(self, slots: asyncio.Semaphore, mode: RolloutMode, task: Any) -> None:
        store = self.get_store()
        async with slots:
            rollout = await store.enqueue_rollout(task, mode=mode)
            (ended,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        await self._log(store, ended)

    async def _log(self, store: LightningStore, rollout: Rollout) -> None:
        spans = await store.query_spans(rollout.rollout_id, "latest")
        log.info("rollout %s: %s, reward %s", rollout.rollout_id, rollout.status, find_final_reward(spans))
        if self.span_verbosity == "none":
            return
        for span in spans:
            shown = span.attributes if self.span_verbosity == "key_values" else list(span.attributes)
            log.info("rollout %s: span %d, %s: %s", rollout.rollout_id, span.sequence_id, span.name, shown)


__all__ = ["APO", "VERL", "Algorithm", "Baseline", "FastAlgorithm", "FunctionAlgorithm", "algo"]

__getattr__ = lookup("algorithm")
