"""Idempotent writes: a write with a request id is made once, and a repeated call returns the first result.

The keys of what a write made are recorded in its own transaction, so that this holds even when the server process dies.
The records are kept for `rows.KEPT_SECONDS`.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from leyden.core.data.resources import ResourcesUpdate
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.errors import CallRefused
from leyden.core.store.common.rows import Rows, to_attempted_rollout, to_resources
from leyden.core.store.state_and_retry_rules import OPEN_ATTEMPT

T = TypeVar("T")

_Keys = list[tuple[str, str | int]]
_KEYS = msgspec.msgpack.Decoder(_Keys)


def idempotent_attempts(
    rows: Rows, request_id: str | None, work: Callable[[Rows], Sequence[AttemptedRollout]], queue: str | None = None
) -> list[AttemptedRollout]:
    """Do `work`; on a repeated call, return those of the first call's attempts that are open and the latest.

    Raises CallRefused where the first call was about another queue than `queue`, if one is given.
    """

    def found(keys: _Keys) -> list[AttemptedRollout]:
        wanted = [(rollout_id, str(attempt_id)) for rollout_id, attempt_id in keys]
        rollouts, attempts = rows.rollouts([rollout_id for rollout_id, _ in wanted]), rows.attempts(wanted)
        if queue is not None and any(row.queue != queue for row in rollouts.values()):
            raise _used_for_another(request_id)
        return [
            to_attempted_rollout(rollouts[key[0]], attempt)
            for key, attempt in attempts.items()
            if attempt.status in OPEN_ATTEMPT and attempt.sequence_id == rollouts[key[0]].attempts
        ]

    return _run_once(rows, request_id, lambda: list(work(rows)), _attempt_keys, found)


def idempotent_resources(
    rows: Rows, request_id: str | None, work: Callable[[Rows], ResourcesUpdate]
) -> ResourcesUpdate:
    """Do `work`; on a repeated call, return the version that the first call made.

    Raises CallRefused where the request id was used for another write.
    """

    def found(keys: _Keys) -> ResourcesUpdate:
        ((resources_id, version),) = keys
        row = rows.resources(resources_id, int(version))
        if row is None:
            raise _used_for_another(request_id)
        return to_resources(row)

    return _run_once(rows, request_id, lambda: work(rows), lambda made: [(made.resources_id, made.version)], found)


def recorded_version(resources_id: str, version: int) -> bytes:
    """Return the recorded result of a request that made this version of resources."""
    keys: _Keys = [(resources_id, version)]
    return msgspec.msgpack.encode(keys)


def _used_for_another(request_id: str | None) -> CallRefused:
    return CallRefused(f"request id {request_id} was used for another request: give every request its own id")


def _attempt_keys(made: Sequence[AttemptedRollout]) -> _Keys:
    return [(rollout.rollout_id, rollout.attempt.attempt_id) for rollout in made]


def _run_once(
    rows: Rows,
    request_id: str | None,
    work: Callable[[], T],
    keys_of: Callable[[T], _Keys],
    found: Callable[[_Keys], T],
) -> T:
    if request_id is None:
        return work()
    known = rows.recorded_answer(request_id)
    if known is not None:
        return found(_KEYS.decode(known))
    made = work()
    keys = keys_of(made)
    if keys:  # a claim that found no rollout made nothing
        rows.record_answer(request_id, msgspec.msgpack.encode(keys))
    return made
