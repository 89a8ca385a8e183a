"""`ScriptedContext`: a training context that returns batches from a script and records its calls.

For tests of algorithms. It runs no agent, and does not load torch itself.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from leyden.core.algorithm.base import NO_POLICY, Context
from leyden.core.data.resources import NamedResources
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.token_record import TokenRecord
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")


class ScriptedContext(Context):
    """Trains `model` for `steps` updates, synchronously in this thread.

    `model` may be several models by name; the first is then `self.model`. Each batch is taken from the iterator when it
    is collected, so a generator may use the weights of that moment.
    """

    def __init__(
        self,
        model: "PolicyModel | Mapping[str, PolicyModel]",
        batches: Iterable[list[TrajectoryGroup]] = (),
        *,
        steps: int = 1,
        seed: int = 0,
    ) -> None:
        self.models = dict(model) if isinstance(model, Mapping) else {POLICY: model}
        self.policies = tuple(self.models)
        self.model, self._batches = self.models[self.policies[0]], iter(batches)
        self.steps, self.step, self.seed = steps, 0, seed
        self.calls: list[str] = []
        """Every call in order: evaluations by their label, computations by their phase."""
        self.computed: list[tuple[str, tuple[Any, ...]]] = []
        """Each computation's phase, and the arguments of its function."""
        self.lines: list[Mapping[str, Any]] = []
        """Logged metrics."""
        self.dropped: Counter[str] = Counter()
        self.token_records: list[TokenRecord] = []
        """What each step recorded of its trained tokens."""

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Return the model."""
        return self.models[name]

    async def restore(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Record the call: there is no checkpoint."""
        self.calls.append("restore")

    async def collect(self) -> list[TrajectoryGroup]:
        """Return the next batch; raises AssertionError when the script has no more."""
        self.calls.append("collect")
        batch = next(self._batches, None)
        assert batch is not None, "more batches were collected than there are in the script"
        return batch

    async def evaluate(self, label: str) -> None:
        """Record the label: no evaluation is run."""
        self.calls.append(label)

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` at once in this thread."""
        self.calls.append(phase)
        self.computed.append((phase, args))
        return function(*args, **kwargs)

    async def publish(
        self, models: "Mapping[str, PolicyModel]" = NO_POLICY, *, resources: NamedResources | None = None
    ) -> dict[str, float]:
        """Count the step; the served and the trained weights do not differ."""
        self.resources = {**self.resources, **(resources or {})}
        self.calls.append("publish")
        self.step += 1
        return dict.fromkeys(models, 0.0)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics."""
        self.lines.append(metrics)

    def record_tokens(self, record: "TokenRecord") -> None:
        """Keep the record."""
        self.token_records.append(record)

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Add the counts."""
        self.dropped.update(reasons)

    async def checkpoint(self, updaters: "Mapping[str, Updater]" = NO_POLICY) -> None:
        """Record the call: nothing is saved."""
        self.calls.append("checkpoint")
