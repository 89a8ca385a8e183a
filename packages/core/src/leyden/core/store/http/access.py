"""Access control of a store's server: which calls a token allows.

A trainer may call everything, and an agent only what belongs to its own attempt. A worker may claim rollouts, and do
what a runner does with the attempts that it has claimed; see `worker_access`.

An agent's token is `scope.rollout.attempt.signature`, the last three parts as in `data.identity`. It is signed with a
key derived from the trainer's token and the scope. Any holder of the trainer's token can therefore make one, and every
server with that token can check it, also after a restart. No token is stored.

A machine's token is `workers.name..signature`, signed in the same way. It signs the tokens of its workers,
`worker.name.rest.signature`, where `name` and `rest` together are the worker's id. The machine needs no server to make
such a token, and a worker cannot make another worker's token. Does not read HTTP headers; see `server`.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from leyden.core.data import semconv
from leyden.core.data.identity import fits_header, ids_in, mint, verify
from leyden.core.data.rollout import FINISHED_ATTEMPT, FINISHED_ROLLOUT
from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.http.refused import Refused

SCOPES: Mapping[str, bool] = {"agent": False, "agent-reward": True}
"""Scopes of agents' tokens, each with whether its spans may hold rewards."""
_MACHINE, _WORKER = "workers", "worker"
"""Scopes of a machine and of one of its workers."""
_STATUS_ALONE = ("worker_id", "metadata")
"""Arguments of `update_attempt` that an agent may not change."""


@dataclass(frozen=True, slots=True)
class AttemptCaller:
    """The process that runs one attempt, as the holder of that attempt's token."""

    rollout_id: str
    attempt_id: str
    rewards: bool = False
    """Whether its spans may hold a reward."""

    @property
    def key(self) -> tuple[str, str]:
        """Rollout id and attempt id."""
        return self.rollout_id, self.attempt_id


@dataclass(frozen=True, slots=True)
class WorkerCaller:
    """The holder of a token that may claim rollouts: one worker, or a machine with all of its workers."""

    name: str
    """The worker's id; for a machine, the prefix of its workers' ids."""
    is_machine: bool = False

    def is_own(self, worker_id: str | None) -> bool:
        """Whether `worker_id` is this worker's id, or that of one of the machine's workers."""
        if worker_id is None:
            return False
        return worker_id.startswith(self.name) if self.is_machine else worker_id == self.name

    def __str__(self) -> str:
        return f"{'the machine of workers' if self.is_machine else 'worker'} {self.name}"


def limited_as(sender: AttemptCaller | WorkerCaller | None) -> tuple[str, str] | None:
    """Return the attempt whose limits a request counts against; None for trainers and workers, which share limits."""
    return sender.key if isinstance(sender, AttemptCaller) else None


class Access:
    """Checks tokens against the trainer's token; raises UsageError for a token that cannot be sent in a header."""

    def __init__(self, token: str) -> None:
        if not fits_header(token):
            raise UsageError("the token of a store must be printable ASCII without spaces: it is sent in a header")
        self._token = token

    def is_trainer(self, given: str) -> bool:
        """Whether `given` is the trainer's token, which allows everything."""
        return hmac.compare_digest(given.encode(), self._token.encode())

    def agent(self, given: str) -> AttemptCaller | None:
        """Return the agent of this token, or None; raises Refused for a scope of another version of Leyden."""
        scope, _, signed = given.partition(".")
        ids = verify(_key(self._token, scope), signed)
        if ids is None:
            return None
        if scope not in SCOPES:
            raise Refused(403, f"unknown token scope {scope[:32]!r}; use one of {', '.join(SCOPES)}")
        return AttemptCaller(*ids, SCOPES[scope])

    def worker(self, given: str) -> WorkerCaller | None:
        """Return the worker or machine of this token, or None."""
        scope, _, signed = given.partition(".")
        ids = ids_in(signed)
        if ids is None or not ids[0]:
            return None
        if scope == _MACHINE:
            return WorkerCaller(ids[0], is_machine=True) if verify(_key(self._token, _MACHINE), signed) else None
        is_signed = scope == _WORKER and verify(self.machine_token(ids[0]).encode(), signed)
        return WorkerCaller("".join(ids)) if is_signed else None

    def holder(self, given: str) -> AttemptCaller | WorkerCaller | None:
        """Return the agent, worker or machine of this token, or None; raises Refused like `agent`."""
        return self.worker(given) or self.agent(given)

    def machine_token(self, name: str) -> str:
        """Return the token of a machine whose workers' ids begin with `name`, a prefix that no other machine may use.

        Raises ValueError for an empty name.
        """
        if not name:
            raise ValueError("a machine needs a name that is not empty: the ids of its workers begin with it")
        return f"{_MACHINE}.{mint(_key(self._token, _MACHINE), name, '')}"

    def agent_token(self, rollout_id: str, attempt_id: str, *, rewards: bool = False) -> str:
        """Return the token of one attempt, valid while the attempt is open."""
        scope = next(scope for scope, allowed in SCOPES.items() if allowed == rewards)
        return f"{scope}.{mint(_key(self._token, scope), rollout_id, attempt_id)}"


def new_machine(access: Access, kind: str = "worker") -> str:
    """Return the token of a machine with a random name that begins with `kind`."""
    return access.machine_token(f"{kind}-{secrets.token_hex(6)}-")


def machine_name(token: str) -> str | None:
    """Return the prefix of the ids of a machine's workers; None where `token` is no machine's, such as a trainer's."""
    scope, _, signed = token.partition(".")
    ids = ids_in(signed)
    return ids[0] or None if scope == _MACHINE and ids is not None else None


def worker_token(token: str, worker_id: str) -> str:
    """Return the token of one of a machine's workers; a `token` that is no machine's is returned unchanged.

    Raises ValueError for an id that does not begin with the machine's name.
    """
    name = machine_name(token)
    if name is None:
        return token
    if not worker_id.startswith(name):
        raise ValueError(f"worker {worker_id!r} does not belong to this machine, whose workers' ids begin with {name}")
    return f"{_WORKER}.{mint(token.encode(), name, worker_id.removeprefix(name))}"


def _key(token: str, scope: str) -> bytes:
    return hmac.digest(token.encode(), b"leyden store " + scope.encode(), "sha256")


async def check_open(store: LightningStore, agent: AttemptCaller) -> None:
    """Raise Refused when the agent's attempt or its rollout has ended, or is not in the store."""
    found = await store.find_attempt(agent.rollout_id, agent.attempt_id)
    if found is None:
        raise Refused(403, f"there is no attempt {agent.attempt_id} of rollout {agent.rollout_id} in this store")
    rollout, attempt = found
    if attempt.status in FINISHED_ATTEMPT:
        raise Refused(403, f"attempt {agent.attempt_id} has ended ({attempt.status}); its token is no longer valid")
    if rollout.status in FINISHED_ROLLOUT:
        raise Refused(403, f"rollout {agent.rollout_id} has ended ({rollout.status}); its tokens are no longer valid")


def check_call(agent: AttemptCaller, method: str, call: Mapping[str, Any]) -> None:
    """Raise Refused, with status 403, for a call that the agent's token does not allow."""
    check = _CHECKS.get(method)
    if check is None:
        raise Refused(403, f"an agent's token does not allow {method}, only {', '.join(sorted(_CHECKS))}")
    problem = check(agent, call)
    if problem is not None:
        raise Refused(403, problem)


def span_problem(agent: AttemptCaller, span: Span) -> str | None:
    """Return why the agent may not store `span`; None if it may."""
    if not _is_own(agent, span.rollout_id, span.attempt_id):
        return f"span {span.span_id} belongs to attempt {span.attempt_id}; {_only(agent)}"
    if not agent.rewards and _holds_reward(span):
        return f"span {span.span_id} holds a reward, which the token's scope does not allow"
    return None


def _holds_reward(span: Span) -> bool:
    return span.name == semconv.REWARD or any(
        name == semconv.REWARD_VALUE or name.startswith(semconv.REWARD_DIMENSION) for name in span.attributes
    )


def _is_own(agent: AttemptCaller, rollout_id: object, attempt_id: object) -> bool:
    return (rollout_id, attempt_id) == (agent.rollout_id, agent.attempt_id)


def _only(agent: AttemptCaller) -> str:
    return f"the token is only for attempt {agent.attempt_id}"


def _spans(agent: AttemptCaller, spans: Sequence[Span]) -> str | None:
    return next((problem for span in spans if (problem := span_problem(agent, span)) is not None), None)


def _attempt(agent: AttemptCaller, call: Mapping[str, Any]) -> str | None:
    own = _is_own(agent, call["rollout_id"], call["attempt_id"])
    return None if own else f"the call is for attempt {call['attempt_id']}; {_only(agent)}"


def _numbers(agent: AttemptCaller, call: Mapping[str, Any]) -> str | None:
    return None if all(_is_own(agent, *pair) for pair in call["rollout_attempt_ids"]) else _only(agent)


def _status(agent: AttemptCaller, call: Mapping[str, Any]) -> str | None:
    changed = [name for name in _STATUS_ALONE if call[name] is not msgspec.UNSET]
    return f"an agent may not change {' and '.join(changed)} of its attempt" if changed else _attempt(agent, call)


_CHECKS: Mapping[str, Callable[[AttemptCaller, Mapping[str, Any]], str | None]] = {
    "add_span": lambda agent, call: span_problem(agent, call["span"]),
    "add_many_spans": lambda agent, call: _spans(agent, call["spans"]),
    "get_next_span_sequence_id": _attempt,
    "get_many_span_sequence_ids": _numbers,
    "query_spans": _attempt,
    "update_attempt": _status,
}
"""Calls that an agent may make, each with a check that returns why this call is not allowed, or None."""
