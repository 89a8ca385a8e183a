"""Makers of the nouns, for tests: each gives the fields that a test does not care about. Knows no model."""

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
    """Return a call that read `prompt` and wrote `response`, each token at log-probability -1 unless `logprobs` says.

    `changes` are further fields of `Transition`; TypeError when it has no such field.
    """
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
    """Return an attempt that succeeded, made these `calls` and earned `reward`; `rollout_id` is that of its calls.

    `changes` are further fields of `Trajectory`; TypeError when it has no such field.
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
    """Return a span of the attempt that `transition` is of, the first of its rollout, at time 0.

    `changes` are further fields of `Span`; TypeError when it has no such field.
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
    """Return an attempt to open in a test, of a gateway that is not there unless `gateway_url` says where one is.

    `changes` are further fields of `OpenAttempt`; TypeError when it has no such field.
    """
    fields: dict[str, Any] = {"rollout_id": "ro", "attempt_id": "at", "token": "t", "trace_id": "ab" * 16}
    return OpenAttempt(gateway_url=gateway_url, **(fields | changes))
