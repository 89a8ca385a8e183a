"""Adapters of Agent Lightning 0.3: from the spans of a rollout to what an algorithm learns from."""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from leyden.core.agent_lightning.emitter import REWARD_FUNCTION, get_reward_value
from leyden.core.agent_lightning.replaced import WithReplaced, lookup, refuse
from leyden.core.agent_lightning.types import Triplet
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import read_messages
from leyden.core.trajectory.select import Selector, spans_above
from leyden.core.trajectory.trace_to_messages import TraceToMessages

From = TypeVar("From")
To = TypeVar("To")

LLM_CALL = r"openai\.chat\.completion"
"""The original's name of a model call's span. Leyden's adapters read the gateway's records, whatever their name."""


class Adapter(Generic[From, To]):
    """Base class of the original's adapters: override `adapt`. A call of an adapter calls `adapt`.

    It is not `leyden.core.Adapter`, which runs the agents of a framework.
    """

    def adapt(self, source: From, /) -> To:
        """Return what `source` becomes."""
        raise NotImplementedError(f"{type(self).__name__} does not override adapt")

    def __call__(self, source: From, /) -> To:
        """Return what `source` becomes."""
        return self.adapt(source)


class TraceAdapter(Adapter[Iterable[Span], To], Generic[To]):
    """Adapter of the spans of a store."""


class OtelTraceAdapter(Adapter[Iterable[Any], To], Generic[To]):
    """Adapter of the spans of OpenTelemetry's SDK."""


class TraceToTripletBase(TraceAdapter[list[Triplet]]):
    """Base class of the adapters that make triplets."""


class TracerTraceToTriplet(WithReplaced, TraceToTripletBase):
    """Makes one triplet of each model call that the gateway recorded, in the order of their starts.

    A reward goes to the latest call that had ended before it and has none yet.

    Args:
        repair_hierarchy: Without effect: the gateway's records name their parents exactly.
        llm_call_match: Only the original's default is accepted, since the gateway's records are the model calls.
        agent_match: Regular expression, searched for in the names of the agent and of the node that made the call.
        exclude_llm_call_in_reward: Whether calls of a function with `@reward` are left out.
        reward_match: Only `first_occurrence`, which is the rule above.
    """

    def __init__(
        self,
        repair_hierarchy: bool = True,
        llm_call_match: str = LLM_CALL,
        agent_match: str | None = None,
        exclude_llm_call_in_reward: bool = True,
        reward_match: str = "first_occurrence",
    ) -> None:
        del repair_hierarchy
        if llm_call_match != LLM_CALL:
            refuse("llm_call_match=", "choose calls by agent_match=, or with Trainer(select={'span_match': ...})")
        if reward_match != "first_occurrence":
            refuse("reward_match=", "a reward goes to the latest call that ended before it and has none yet")
        self.agent_match = agent_match
        self._selector = Selector(agent_match=agent_match)
        self._excludes = exclude_llm_call_in_reward

    def adapt(self, source: Iterable[Span], /) -> list[Triplet]:
        """Return the triplets of the spans of one attempt."""
        spans = sorted(source, key=lambda span: (span.start_time, span.sequence_id))
        by_id = {span.span_id: span for span in spans}
        calls = [span for span in spans if semconv.CALL_ID in span.attributes and self._takes(span, by_id)]
        rewards: dict[str, float] = {}
        for span in spans:
            value = get_reward_value(span)
            call = next((one for one in reversed(calls) if one.span_id not in rewards and _ended(one, span)), None)
            if value is not None and call is not None:
                rewards[call.span_id] = value
        return [triplet(call, rewards.get(call.span_id)) for call in calls]

    def _takes(self, call: Span, by_id: dict[str, Span]) -> bool:
        in_reward = any(span.name == REWARD_FUNCTION for span in spans_above(call, by_id))
        return self._selector.selects(call, by_id) and not (self._excludes and in_reward)


class LlmProxyTraceToTriplet(TracerTraceToTriplet):
    """The same without options: in Leyden every triplet comes from the gateway."""

    def __init__(self) -> None:
        super().__init__()


def triplet(call: Span, reward: float | None) -> Triplet:
    """Return the triplet of a model call. Token ids are empty where a provider answered that returns none."""
    attributes = call.attributes
    return Triplet(
        prompt={
            "token_ids": _ids(attributes.get(semconv.PROMPT_IDS)),
            "raw_content": read_messages(attributes.get(semconv.INPUT_MESSAGES)),
        },
        response={
            "token_ids": _ids(attributes.get(semconv.RESPONSE_IDS)),
            "logprobs": _log_probs(attributes.get(semconv.RESPONSE_LOGPROBS)),
            "raw_content": read_messages(attributes.get(semconv.OUTPUT_MESSAGES)),
        },
        reward=reward,
        metadata={
            "response_id": attributes.get(semconv.RESPONSE_ID),
            "agent_name": attributes.get(semconv.AGENT_NAME),
            "node": attributes.get(semconv.NODE),
        },
    )


def _ended(call: Span, span: Span) -> bool:
    return call.end_time is not None and call.end_time <= span.start_time


def _ids(packed: Any) -> list[int]:
    return unpack_ids(packed).tolist() if isinstance(packed, bytes) else []


def _log_probs(packed: Any) -> list[float]:
    return unpack_log_probs(packed).tolist() if isinstance(packed, bytes) else []


__all__ = [
    "Adapter",
    "LlmProxyTraceToTriplet",
    "OtelTraceAdapter",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTripletBase",
    "TracerTraceToTriplet",
    "Triplet",
]

__getattr__ = lookup("adapter")
