"""Staleness: decides how far collecting may run ahead of updates, within a bound on policy versions.

It decides which groups may begin and which groups form a batch.
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
class LoopKind:
    """A loop kind and its staleness bound."""

    loop: Loop = "sync"
    max_staleness: int = 0
    """The most updates between the weights that generated a token and the weights that learn from it."""

    @classmethod
    def of(cls, loop: Loop, max_staleness: int | None, *, accounts_for_age: bool) -> "LoopKind":
        """Return the pace for a user's options; `max_staleness` None means the default bound.

        `accounts_for_age` is whether the loss, or a correction, handles tokens that came from other weights. Raises
        UsageError for a combination that cannot work.
        """
        if loop not in get_args(Loop):
            raise UsageError(f"loop must be one of {', '.join(get_args(Loop))}, got {loop!r}")
        if max_staleness is not None and loop != "async":
            raise UsageError(f"max_staleness has no effect on loop {loop}, whose bound is fixed; set loop=async")
        if max_staleness is not None and max_staleness < 1:
            raise UsageError(
                f"max_staleness must be at least 1, got {max_staleness}; to learn only from tokens of the current "
                "weights, set loop=sync"
            )
        if loop != "sync" and not accounts_for_age:
            raise UsageError(
                f"loop {loop} learns from tokens of older weights, and a loss without ratios treats them as tokens of "
                "the current weights: set correction=truncated, or a loss with ratios such as ppo_clip"
            )
        bounds = {"sync": 0, "one_off": 1, "async": DEFAULT_STALENESS if max_staleness is None else max_staleness}
        return cls(loop=loop, max_staleness=bounds[loop])


@dataclass(slots=True)
class StalenessWindow:
    """Admits groups and forms batches of `size` groups so that no group gets older than `max_staleness` turns.

    A turn is a batch and the update from it. A group that begins in turn t must be in a batch by turn t +
    `max_staleness`. Invariant at the beginning of each turn: for every k, at most (k + 1) × `size` groups must be taken
    within the next k turns. Therefore a batch always exists that lets every group meet its deadline, once its groups
    have finished.
    """

    size: int
    max_staleness: int
    turn: int = 0
    begun: int = 0
    """Number of groups begun so far; also the number of the next group."""
    due: dict[int, int] = field(default_factory=dict[int, int])
    """Groups that have begun and were not taken: group number to the last turn that may take it."""
    _taken: int = field(default=0, init=False)
    """Size of the batch being learned from; it counts until its turn ends, when its weights are published."""

    def may_begin(self, turns_left: int) -> bool:
        """Return whether another group can begin now, with `turns_left` turns left including this one."""
        return len(self.due) + self._taken < self.size * min(self.max_staleness + 1, turns_left)

    def begin(self) -> int:
        """Record that the next group begins, and return its number."""
        number = self.begun
        self.due[number] = self.turn + self.max_staleness
        self.begun += 1
        return number

    def choose(self, finished: Sequence[int]) -> list[int] | None:
        """Return a batch of the `finished` groups, earliest deadline first; None if another group must finish first.

        Groups with the same deadline keep the order of `finished`.
        """
        batch = sorted(finished, key=self.due.__getitem__)[: self.size]
        return batch if len(batch) == self.size and self._meets_deadlines(batch) else None

    def take(self, batch: Collection[int]) -> None:
        """Record that an update learns from `batch`."""
        for number in batch:
            del self.due[number]
        self._taken = len(batch)

    def end_turn(self) -> None:
        """Record that the batch's update is published, or that the batch gave no training signal."""
        self.turn += bool(self._taken)
        self._taken = 0

    def _meets_deadlines(self, batch: Collection[int]) -> bool:
        left = [due for number, due in self.due.items() if number not in batch]
        return all(sum(due <= self.turn + k for due in left) <= k * self.size for k in range(self.max_staleness + 1))


def staleness(calls: Sequence[Transition], version: int) -> dict[str, float]:
    """Return metrics of how old the tokens of `calls` are for weights of `version`; `calls` is not empty.

    Ages are in versions, averaged over tokens. `mixed_version_share` is the share of calls with tokens of several
    versions. Ages are absolute differences: a run that was killed may learn from tokens of a version that it is about
    to repeat.
    """
    ages = np.array(
        [abs(version - token_version) for call in calls for token_version, _ in call.versions], dtype=np.float64
    )
    tokens = np.array([count for call in calls for _, count in call.versions], dtype=np.float64)
    return {
        "staleness_mean": float((ages * tokens).sum() / tokens.sum()),
        "staleness_max": float(ages.max()),
        "mixed_version_share": float(
            np.mean([len({token_version for token_version, _ in call.versions}) > 1 for call in calls])
        ),
    }


def window_state(window: StalenessWindow) -> dict[str, Any]:
    """Return the state of a window between two turns, as JSON values."""
    return {"turn": window.turn, "begun": window.begun, "due": [[number, due] for number, due in window.due.items()]}


def restore_window(window: StalenessWindow, state: Mapping[str, Any]) -> None:
    """Restore a window from the result of `window_state`."""
    window.turn, window.begun = state["turn"], state["begun"]
    window.due = dict(state["due"])
