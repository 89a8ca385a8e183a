"""Recorded rollout: one rollout with all its attempts and spans, for display."""

import msgspec

from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.errors import NotFound, RunError
from leyden.core.store.base import LightningStore

SHOWN = 5
"""Maximum number of ids in an error message when several rollouts match."""


class RecordedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout with all its attempts and their spans."""

    rollout: Rollout
    attempts: list[tuple[Attempt, list[Span]]]


async def read_rollout(store: LightningStore, rollout_id: str) -> RecordedRollout:
    """Read a rollout from the store; raises NotFound when no rollout has this id."""
    rollout = await store.get_rollout_by_id(rollout_id)
    if rollout is None:
        raise NotFound(f"no rollout {rollout_id!r}")
    attempts = await store.query_attempts(rollout_id)
    recorded = [(attempt, (await store.query_spans(rollout_id, attempt.attempt_id)).items) for attempt in attempts]
    return RecordedRollout(rollout=rollout, attempts=recorded)


async def find_rollout(store: LightningStore, wanted: str) -> Rollout | None:
    """Return the rollout with the id `wanted`, or the only one whose id contains it; None if no rollout matches.

    Raises RunError when several match.
    """
    if (exact := await store.get_rollout_by_id(wanted)) is not None:
        return exact
    page = await store.query_rollouts(rollout_id_contains=wanted, limit=SHOWN)
    if page.total > 1:
        names = ", ".join(rollout.rollout_id for rollout in page)
        more = f" and {page.total - SHOWN} more" if page.total > SHOWN else ""
        raise RunError(f"{wanted!r} could be any of {page.total} rollouts: {names}{more}; give a longer part of the id")
    return next(iter(page), None)


async def no_rollout(store: LightningStore, run: str, wanted: str) -> RunError:
    """Return the error for an id that no rollout of a run matches; its message gives examples of ids."""
    some = await store.query_rollouts(limit=3)
    example = ", ".join(rollout.rollout_id for rollout in some) or "none"
    return RunError(f"run {run!r} has no rollout {wanted!r}; it has {some.total} rollouts, with ids such as {example}")


def group_of(rollout: Rollout) -> str:
    """Return the rollout's id without the number of the copy; empty for a rollout that is compared with no other."""
    return "" if rollout.mode in ("val", "test") else rollout.rollout_id.rpartition("-")[0]
