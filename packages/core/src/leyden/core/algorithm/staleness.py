"""How far collecting may run ahead of learning: in step, one batch ahead, or all the time within a bound of versions.

Knows nothing of stores, agents or weights: it says which group may be begun, and which groups a batch is made of.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from leyden.core.data.transition import Transition
from leyden.core.errors import UsageError

Loop = Literal["sync", "one_off", "async"]
DEFAULT_STALENESS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A loop and its bound."""

    loop: Loop = "sync"
    max_staleness: int = 0
    """The most updates that may lie between the weights that drew a token and those that learn from it."""

    @classmethod
    def of(cls, loop: Loop, max_staleness: int | None, *, accounts_for_age: bool) -> "Pace":
        """Return the pace for what a user gave; None means that no bound was.

        `accounts_for_age` says whether the loss, or a correction, knows that tokens came from other weights. Raises
        UsageError for what cannot work.
        """
        if loop not in get_args(Loop):
            raise UsageError(f"loop must be {', '.join(get_args(Loop))}, got {loop!r}")
        if max_staleness is not None and loop != "async":
            raise UsageError(f"max_staleness has no effect on loop {loop}, whose bound is fixed; set loop=async")
        if max_staleness is not None and max_staleness < 1:
            raise UsageError(f"max_staleness must be at least 1, got {max_staleness}; for fresh tokens set loop=sync")
        if loop != "sync" and not accounts_for_age:
            raise UsageError(
                f"loop {loop} learns from tokens of older weights, and a loss without ratios takes them for its own: "
                "set correction=truncated, or a loss with ratios such as ppo_clip"
            )
        bounds = {"sync": 0, "one_off": 1, "async": DEFAULT_STALENESS if max_staleness is None else max_staleness}
        return cls(loop=loop, max_staleness=bounds[loop])


@dataclass(slots=True)
class Window:
    """Admits groups and puts batches of `size` together so that none gets older than `max_staleness` turns.

    A turn is a batch and the update from it. A group that is begun in turn t must be part of a batch by turn
    t + `max_staleness`. Invariant at the beginning of each turn: for every k, at most (k + 1) × `size` groups must be
    taken within the next k turns. So there is always a batch that leaves nobody behind, once its groups have finished.
    """

    size: int
    max_staleness: int
    turn: int = 0
    begun: int = 0
    """Groups begun in all; also the number of the next one."""
    due: dict[int, int] = field(default_factory=dict[int, int])
    """Groups begun and not yet taken: number to the last turn that may take it."""
    _taken: int = field(default=0, init=False)
    """Size of the batch that is being learned from; it counts until its turn ends, for its weights are not out yet."""

    def may_begin(self, turns_left: int) -> bool:
        """Whether a further group can be begun now, where `turns_left` turns are still wanted, this one included."""
        return len(self.due) + self._taken < self.size * min(self.max_staleness + 1, turns_left)

    def begin(self) -> int:
        """Note that the next group is begun, and return its number."""
        number = self.begun
        self.due[number] = self.turn + self.max_staleness
        self.begun += 1
        return number

    def choose(self, finished: Sequence[int]) -> list[int] | None:
        """A batch of the `finished` groups, those that are due first; None while one must be waited for.

        Among those due at the same time, the order given decides.
        """
        batch = sorted(finished, key=self.due.__getitem__)[: self.size]
        return batch if len(batch) == self.size and self._leaves_nobody_behind(batch) else None

    def take(self, batch: Collection[int]) -> None:
        """Note that an update learns from `batch`."""
        for number in batch:
            del self.due[number]
        self._taken = len(batch)

    def end_turn(self) -> None:
        """Note that what was learned from the batch is served, or that it taught nothing."""
        self.turn += bool(self._taken)
        self._taken = 0

    def _leaves_nobody_behind(self, batch: Collection[int]) -> bool:
        left = [due for number, due in self.due.items() if number not in batch]
        return all(sum(due <= self.turn + k for due in left) <= k * self.size for k in range(self.max_staleness + 1))


def staleness(calls: Sequence[Transition], version: int) -> dict[str, float]:
    """How old the tokens of `calls`, of which there is one, are for weights of `version`, and how many calls mix.

    In versions, over tokens. Counted on either side: a run that was killed may learn from tokens of a version that is
    about to be made again.
    """
    ages = np.array([abs(version - drew) for call in calls for drew, _ in call.versions], dtype=np.float64)
    tokens = np.array([count for call in calls for _, count in call.versions], dtype=np.float64)
    return {
        "staleness_mean": float((ages * tokens).sum() / tokens.sum()),
        "staleness_max": float(ages.max()),
        "mixed_version_share": float(np.mean([len({drew for drew, _ in call.versions}) > 1 for call in calls])),
    }


def window_state(window: Window) -> dict[str, Any]:
    """A window between two turns as JSON."""
    return {"turn": window.turn, "begun": window.begun, "due": [[number, due] for number, due in window.due.items()]}


def restore_window(window: Window, state: Mapping[str, Any]) -> None:
    """Put a window back as `window_state` gave it."""
    window.turn, window.begun = state["turn"], state["begun"]
    window.due = dict(state["due"])
