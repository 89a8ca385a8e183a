"""`ScriptedContext`: a context that gives out batches from a script, runs no agent, and notes what it is asked.

For testing algorithms. Knows no method, and loads no torch itself.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from leyden.core.algorithm.base import Context
from leyden.core.data.route import POLICY
from leyden.core.data.transition import TrajectoryGroup

if TYPE_CHECKING:
    from leyden.core.policy.model import PolicyModel
    from leyden.core.policy.update.updater import Updater

P = ParamSpec("P")
R = TypeVar("R")


class ScriptedContext(Context):
    """Trains `model` for `steps` updates, at once and in this thread; several by their names, `model` being the first.

    Each of `batches` is taken when it is collected, so a generator may make it with the weights of that moment.
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
        self.asked: list[str] = []
        """Every verb asked for, in order: evaluations by their label, computations by their phase."""
        self.computed: list[tuple[str, tuple[Any, ...]]] = []
        """Each computation's phase and what its function was given."""
        self.lines: list[Mapping[str, Any]] = []
        """What was logged."""
        self.dropped: Counter[str] = Counter()

    def load_policy(self, name: str = POLICY) -> "PolicyModel":
        """Give the model."""
        return self.models[name]

    async def restore(self, updaters: "Mapping[str, Updater]") -> None:
        """Note it: there is no checkpoint."""
        self.asked.append("restore")

    async def collect(self) -> list[TrajectoryGroup]:
        """Give out the next batch; AssertionError when the script has no more."""
        self.asked.append("collect")
        batch = next(self._batches, None)
        assert batch is not None, "more batches were collected than there are in the script"
        return batch

    async def evaluate(self, label: str) -> None:
        """Note it: nothing is run."""
        self.asked.append(label)

    async def compute(self, phase: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` here and now."""
        self.asked.append(phase)
        self.computed.append((phase, args))
        return function(*args, **kwargs)

    async def publish(self, models: "Mapping[str, PolicyModel]") -> dict[str, float]:
        """Take the step, with no difference between served and trained."""
        self.asked.append("publish")
        self.step += 1
        return dict.fromkeys(models, 0.0)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Keep the line."""
        self.lines.append(metrics)

    def count_dropped(self, reasons: Mapping[str, int]) -> None:
        """Add them up."""
        self.dropped.update(reasons)

    async def checkpoint(self, updaters: "Mapping[str, Updater]") -> None:
        """Note it: nothing is kept."""
        self.asked.append("checkpoint")
