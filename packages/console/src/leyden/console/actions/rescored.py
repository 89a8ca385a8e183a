"""Results of re-scoring as pages request them: a summary, and rollouts in an order, some at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec

from leyden.core.trainer.rescore.comparison import rank_changes
from leyden.core.trainer.rescore.rescore import load
from leyden.core.trainer.rescore.result import Rescored, RescoredRollout

MOST_GROUPS = 200
"""Number of groups that gain spread, and of those that lose it, in a summary."""
MOST_ROLLOUTS = 500
"""Number of rollouts of one answer."""
TEXT_CHARACTERS = 400
"""Longest feedback and error of a rollout."""

Order = Literal["rank", "raised", "lowered", "advantage", "errors", "all"]
"""Order of rollouts: by the change of their rank, reward or advantage; those without a new reward; or as stored."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout with both rewards, ranks and advantages."""

    rollout: str
    group: str
    before: float | None
    after: float | None
    rank_before: float | None
    rank_after: float | None
    advantage_before: float | None
    advantage_after: float | None
    feedback: str
    error: str


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Some rollouts of an order."""

    total: int
    rows: list[Row]


class Result:
    """The result that a job wrote."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises UsageError if it is no result of re-scoring."""
        self.found: Rescored = load(path)
        ranks = rank_changes(self.found.rollouts, most=len(self.found.rollouts))
        self._moves = {} if ranks is None else {move.rollout_id: move for move in ranks.most}

    def summary(self) -> dict[str, Any]:
        """Return everything but the rollouts, and only those groups whose spread appears or vanishes."""
        found = self.found
        groups = found.groups.groups
        plain: dict[str, Any] = msgspec.to_builtins(
            msgspec.structs.replace(found, rollouts=[], groups=msgspec.structs.replace(found.groups, groups=[]))
        )
        plain["groups"] |= {
            "compared": len(groups),
            "gain": msgspec.to_builtins([one for one in groups if one.change == "gains"][:MOST_GROUPS]),
            "lose": msgspec.to_builtins([one for one in groups if one.change == "loses"][:MOST_GROUPS]),
        }
        return plain

    def rows(self, order: Order, offset: int, limit: int) -> Rows:
        """Return rollouts in an order, without those that it does not concern, from `offset` on."""
        chosen = self._ordered(order)
        return Rows(total=len(chosen), rows=[self._row(one) for one in chosen[offset : offset + limit]])

    def _ordered(self, order: Order) -> list[RescoredRollout]:
        rollouts = self.found.rollouts
        if order == "all":
            return rollouts
        if order == "errors":
            return [one for one in rollouts if one.after is None]
        if order == "rank":
            by_id = {one.rollout_id: one for one in rollouts}
            return [by_id[name] for name in self._moves]
        key = _advantage_change if order == "advantage" else _reward_change
        sign = -1 if order == "lowered" else 1
        return _largest(rollouts, lambda one: abs(key(one)) if order == "advantage" else sign * key(one))

    def _row(self, one: RescoredRollout) -> Row:
        move = self._moves.get(one.rollout_id)
        return Row(
            rollout=one.rollout_id,
            group=one.group,
            before=one.before,
            after=one.after,
            rank_before=None if move is None else move.rank_before,
            rank_after=None if move is None else move.rank_after,
            advantage_before=one.advantage_before,
            advantage_after=one.advantage_after,
            feedback=one.feedback[:TEXT_CHARACTERS],
            error=one.error[:TEXT_CHARACTERS],
        )


def order_of(text: str) -> Order:
    """Return the order of this name; raises ValueError for any other."""
    if text not in get_args(Order):
        raise ValueError(f"sort must be one of {', '.join(get_args(Order))}, not {text[:40]!r}")
    return cast("Order", text)


def _largest(rollouts: list[RescoredRollout], change: Callable[[RescoredRollout], float]) -> list[RescoredRollout]:
    return sorted((one for one in rollouts if change(one) > 0), key=lambda one: -change(one))


def _reward_change(one: RescoredRollout) -> float:
    return 0.0 if one.before is None or one.after is None else one.after - one.before


def _advantage_change(one: RescoredRollout) -> float:
    if one.advantage_before is None or one.advantage_after is None:
        return 0.0
    return one.advantage_after - one.advantage_before
