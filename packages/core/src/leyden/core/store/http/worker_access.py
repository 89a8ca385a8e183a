"""Access control for a worker's token: claims under its own id, and the attempts that it has claimed.

Each call has three checks: its arguments (`check_call`), its attempts (`check_claimed`), and its answer (`own_part`).
Tokens are checked in `access`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from leyden.core.data.rollout import AttemptedRollout, Rollout
from leyden.core.store.base import LightningStore
from leyden.core.store.http.access import WorkerCaller
from leyden.core.store.http.refused import Refused

_ALLOWED_FILTERS = frozenset({"status_in", "rollout_id_in", "queue"})
"""Arguments of `query_rollouts` that a worker may set."""
_DEFAULTS: Mapping[str, Any] = {"filter_logic": "and", "sort_order": "asc", "limit": -1, "offset": 0}


def check_call(worker: WorkerCaller, method: str, call: Mapping[str, Any]) -> None:
    """Raise Refused, with status 403, for a method or arguments that a worker's token does not allow."""
    check = _CHECKS.get(method)
    if check is None:
        raise Refused(403, f"a worker's token does not allow {method}, only {', '.join(sorted(_CHECKS))}")
    problem = check(worker, call)
    if problem is not None:
        raise Refused(403, problem)


async def check_claimed(store: LightningStore, worker: WorkerCaller, method: str, call: Mapping[str, Any]) -> None:
    """Raise Refused for a call about an attempt that this worker has not claimed."""
    attempts = _ATTEMPTS.get(method)
    for rollout_id, attempt_id in dict.fromkeys(attempts(call) if attempts is not None else ()):
        if attempt_id is None:
            raise Refused(403, f"{method} needs an attempt; {_only(worker)}")
        problem = await claim_problem(store, worker, rollout_id, attempt_id)
        if problem is not None:
            raise Refused(403, problem)
    if method == "update_rollout":
        rollout = await store.get_rollout_by_id(call["rollout_id"])
        if not (isinstance(rollout, AttemptedRollout) and worker.is_own(rollout.attempt.worker_id)):
            raise _not_own_rollout(worker, call["rollout_id"])


async def claim_problem(store: LightningStore, worker: WorkerCaller, rollout_id: str, attempt_id: str) -> str | None:
    """Return why an attempt is not claimed by the worker; None where it is."""
    found = await store.find_attempt(rollout_id, attempt_id)
    if found is not None and worker.is_own(found[1].worker_id):
        return None
    return f"attempt {attempt_id} of rollout {rollout_id} is not claimed by {worker}; {_only(worker)}"


async def own_part(store: LightningStore, worker: WorkerCaller, method: str, answer: Any) -> Any:
    """Return the part of an answer that the worker may read; raises Refused where it may read nothing."""
    if method in ("dequeue_rollout", "dequeue_many_rollouts") and answer:
        claimed: list[AttemptedRollout] = [answer] if method == "dequeue_rollout" else answer
        # with the request id of another worker
        if not all(worker.is_own(rollout.attempt.worker_id) for rollout in claimed):
            raise Refused(403, f"this claim belongs to another worker; {_only(worker)}")
    elif method == "get_rollout_by_id":
        if answer is not None and not await _has_claimed(store, worker, answer):
            raise _not_own_rollout(worker, answer.rollout_id)
    elif method == "query_rollouts":
        items = [rollout for rollout in answer.items if await _has_claimed(store, worker, rollout)]
        return replace(answer, items=items, total=len(items))
    elif method == "query_attempts":
        items = [attempt for attempt in answer.items if worker.is_own(attempt.worker_id)]
        return replace(answer, items=items, total=len(items))
    return answer


async def _has_claimed(store: LightningStore, worker: WorkerCaller, rollout: Rollout) -> bool:
    """Whether the worker has claimed any attempt of a rollout.

    A worker must still be able to end an attempt that another attempt has replaced.
    """
    if not isinstance(rollout, AttemptedRollout):
        return False
    if worker.is_own(rollout.attempt.worker_id):
        return True
    if rollout.attempt.sequence_id == 1:
        return False
    return any(worker.is_own(attempt.worker_id) for attempt in await store.query_attempts(rollout.rollout_id))


def _not_own_rollout(worker: WorkerCaller, rollout_id: str) -> Refused:
    return Refused(403, f"rollout {rollout_id} is not claimed by {worker}; {_only(worker)}")


def _only(worker: WorkerCaller) -> str:
    return f"the token is only for rollouts that {worker} has claimed"


def _in_own_name(worker: WorkerCaller, call: Mapping[str, Any]) -> str | None:
    if worker.is_own(call["worker_id"]):
        return None
    return f"worker_id is {call['worker_id']!r}; the token is only for {worker}"


def _put_back_alone(worker: WorkerCaller, call: Mapping[str, Any]) -> str | None:
    others = [
        name for name, value in call.items() if name not in ("rollout_id", "status") and value is not msgspec.UNSET
    ]
    if others or call["status"] != "requeuing":
        return "a worker may only put a rollout back into the queue (status requeuing), and not change anything else"
    return None


def _not_the_worker(worker: WorkerCaller, call: Mapping[str, Any]) -> str | None:
    return None if call["worker_id"] is msgspec.UNSET else "a worker may not change worker_id of its attempts"


def _by_id_or_status(worker: WorkerCaller, call: Mapping[str, Any]) -> str | None:
    others = [name for name, value in call.items() if name not in _ALLOWED_FILTERS and value != _DEFAULTS.get(name)]
    if others or (call["status_in"] is None and call["rollout_id_in"] is None):
        return "a worker may query its rollouts only by rollout_id_in or status_in"
    return None


def _any(worker: WorkerCaller, call: Mapping[str, Any]) -> str | None:
    return None


def _of_call(call: Mapping[str, Any]) -> Iterable[tuple[str, str | None]]:
    return [(call["rollout_id"], call["attempt_id"])]


_CHECKS: Mapping[str, Callable[[WorkerCaller, Mapping[str, Any]], str | None]] = {
    "add_many_spans": _any,
    "add_span": _any,
    "dequeue_many_rollouts": _in_own_name,
    "dequeue_rollout": _in_own_name,
    "find_attempt": _any,
    "get_latest_resources": _any,
    "get_many_span_sequence_ids": _any,
    "get_next_span_sequence_id": _any,
    "get_resources_by_id": _any,
    "get_rollout_by_id": _any,
    "query_attempts": _any,
    "query_rollouts": _by_id_or_status,
    "query_spans": _any,
    "update_attempt": _not_the_worker,
    "update_rollout": _put_back_alone,
    "update_worker": _in_own_name,
}
"""Calls that a worker may make, each with a check that returns why this call is not allowed, or None.

They are the calls of a runner, its pool, and hooks that read their attempt.
"""

_ATTEMPTS: Mapping[str, Callable[[Mapping[str, Any]], Iterable[tuple[str, str | None]]]] = {
    "add_many_spans": lambda call: [(span.rollout_id, span.attempt_id) for span in call["spans"]],
    "add_span": lambda call: [(call["span"].rollout_id, call["span"].attempt_id)],
    "find_attempt": _of_call,
    "get_many_span_sequence_ids": lambda call: [(pair[0], pair[1]) for pair in call["rollout_attempt_ids"]],
    "get_next_span_sequence_id": _of_call,
    "query_spans": _of_call,
    "update_attempt": _of_call,
}
"""Ids of the attempts that a call concerns, by method."""
