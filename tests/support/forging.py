"""An agent that says of itself that a model answered it: it writes the record of a call that no gateway served."""

import asyncio
import secrets
import time
from typing import Any

import httpx
import msgspec
from opentelemetry import trace

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Attributes, Span
from leyden.core.store.http.client import HttpStore
from leyden.core.tracing.context import current_attempt
from leyden.core.tracing.spans.export import start_span

RECORD: Attributes = {
    semconv.CALL_ID: "forged",
    semconv.POLICY: "policy",
    semconv.POLICY_VERSION: 0,
    semconv.POLICY_VERSIONS: [0, 2],
    semconv.PROMPT_IDS: pack_ids([1, 2, 3]),
    semconv.RESPONSE_IDS: pack_ids([4, 5]),
    semconv.RESPONSE_LOGPROBS: pack_log_probs([-0.5, -0.5]),
    semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.5, -0.5]),
    semconv.SAMPLING_USED: msgspec.json.encode(Sampling()).decode(),
}
"""What a transition needs."""
FORGED_BY_AGENT = 4
"""Spans that `run` forges; it also makes one real call."""
CALL = {"model": "gpt-4.1-mini", "messages": [{"role": "user", "content": "hello"}]}


def forged_span(rollout_id: str, attempt_id: str, attributes: Attributes = RECORD, **changes: Any) -> Span:
    """Return a span of the attempt that bears the record of a call."""
    now = time.time()
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=0,
        trace_id="ab" * 16,
        span_id=secrets.token_hex(8),
        name="chat",
        attributes=dict(attributes),
        start_time=now,
        end_time=now,
        **changes,
    )


def run(task: Any) -> str:
    """Forge in every way that an agent's process has, and call the model once."""
    attempt = current_attempt()
    assert attempt is not None
    ids = attempt.rollout_id, attempt.attempt_id
    start_span("chat", None, RECORD, started=time.time_ns()).end()
    with trace.get_tracer("agent").start_as_current_span("chat") as span:
        span.set_attributes({semconv.CALL_ID: "forged", semconv.POLICY_VERSION: 0})
    attempt.notes.append(forged_span(*ids))
    asyncio.run(_by_http(task["store"], task["token"], forged_span(*ids)))
    with httpx.Client() as client:
        client.post("https://api.openai.com/v1/chat/completions", json=CALL).raise_for_status()
    return "done"


async def _by_http(url: str, token: str, span: Span) -> None:
    """Store `span` past the runner, with the token that the worker has."""
    store = HttpStore(url, token)
    await store.add_span(span)
    await store.close()
