"""Factories of records for tests: each fills the fields that a test does not set."""

from collections.abc import Iterable
from typing import Any

from leyden.core.data.encoding.tokens import log_probs, token_ids
from leyden.core.data.span import Attributes, Span
from leyden.core.data.transition import Trajectory, Transition
from leyden.core.tracing.context import OpenAttempt


def transition(
    prompt: Iterable[int] = (1,),
    response: Iterable[int] = (2,),
    logprobs: Iterable[float] | None = None,
    **changes: Any,
) -> Transition:
    """Return a call that read `prompt` and generated `response`; the log-probabilities are -1 by default."""
    written = token_ids(response)
    fields: dict[str, Any] = {
        "rollout_id": "ro",
        "attempt_id": "at",
        "span_id": "s",
        "call_id": "c",
        "temperature": 1.0,
        "policy": "policy",
        "version": 0,
    }
    return Transition(
        prompt_ids=token_ids(prompt),
        response_ids=written,
        logprobs=log_probs([-1.0] * len(written) if logprobs is None else logprobs),
        **(fields | changes),
    )


def trajectory(reward: float | None, calls: Iterable[Transition] = (), **changes: Any) -> Trajectory:
    """Return a successful attempt with these `calls` and this `reward`; `rollout_id` is that of its calls.

    `changes` are further fields of `Trajectory`; raises TypeError for an unknown field.
    """
    made = tuple(calls)
    fields: dict[str, Any] = {
        "rollout_id": made[0].rollout_id if made else "ro",
        "attempt_id": made[0].attempt_id if made else "at",
        "dimensions": {},
        "succeeded": True,
        "untrained": {},
    }
    return Trajectory(transitions=made, reward=reward, **(fields | changes))


def span(name: str = "chat", attributes: Attributes | None = None, **changes: Any) -> Span:
    """Return a span of the same attempt as `transition`, the first of its rollout, at time 0.

    `changes` are further fields of `Span`; raises TypeError for an unknown field.
    """
    fields: dict[str, Any] = {
        "rollout_id": "ro",
        "attempt_id": "at",
        "sequence_id": 1,
        "trace_id": "0" * 32,
        "span_id": "0" * 16,
        "start_time": 0.0,
    }
    return Span(name=name, attributes=attributes or {}, **(fields | changes))


def attempt(gateway_url: str = "http://127.0.0.1:9", **changes: Any) -> OpenAttempt:
    """Return an attempt to open in a test; by default, no gateway listens at its `gateway_url`.

    `changes` are further fields of `OpenAttempt`; raises TypeError for an unknown field.
    """
    fields: dict[str, Any] = {"rollout_id": "ro", "attempt_id": "at", "token": "t", "trace_id": "ab" * 16}
    return OpenAttempt(gateway_url=gateway_url, **(fields | changes))
