"""`Recorded`: the evidence of a campaign in the order that checks need; and the reading of its spans."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import msgspec

from campaign.agents import Outcome
from campaign.evidence import Evidence
from campaign.plan import CallPlan, Mark, marks_in
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids
from leyden.core.data.sampling import Sampling, recorded_sampling
from leyden.core.data.span import Attribute, Span
from leyden.core.data.transition import Trajectory
from leyden.core.testing.tiny_vision import IMAGE
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.select import Selector

Files: TypeAlias = Mapping[tuple[str, str], bytes]
"""Recorded image files, by attempt and digest."""


class Recorded:
    """The evidence, put in the order that checks need: the calls that reached the model, by mark."""

    def __init__(self, evidence: Evidence, tokenizer: Any) -> None:
        self.evidence = evidence
        self.image_token: int = tokenizer.convert_tokens_to_ids(IMAGE)
        decode: Callable[[Sequence[int]], str] = tokenizer.decode
        self.plans: dict[Mark, CallPlan] = {call.mark: call for plan in evidence.plans for call in plan.calls()}
        self.outcomes: dict[Mark, Outcome] = {outcome.mark: outcome for outcome in evidence.outcomes}
        self.log = {record.request_id: record for log in evidence.log.values() for record in log}
        self.drawn_by = {record.request_id: policy for policy, log in evidence.log.items() for record in log}
        self.calls = [span for spans in evidence.spans.values() for span in spans if is_recorded_call(span)]
        self.encoded = [span for span in self.calls if semconv.PROMPT_IDS in span.attributes]
        """Calls whose messages became a prompt: all but the refused ones."""
        self.drawn = [span for span in self.encoded if text(span, semconv.CALL_ID) in self.log or response_ids(span)]
        """Calls that an engine has in its log, or that have an answer."""
        self.marks: dict[str, list[Mark]] = {
            span.span_id: marks_in(decode(list(unpack_ids(packed(span, semconv.PROMPT_IDS))))) for span in self.encoded
        }
        """Of each encoded span, those in its prompt; the last is the call's own."""
        self.received = {outcome.answer.id for outcome in evidence.outcomes if outcome.answer is not None}
        """Ids of the answers that arrived in full."""
        self.files: Files = {
            (span.attempt_id, text(span, semconv.IMAGE_DIGEST)): packed(span, semconv.IMAGE_DATA)
            for spans in evidence.spans.values()
            for span in spans
            if is_image(span)
        }

    @cached_property
    def trajectories(self) -> dict[int, Trajectory]:
        """What would be trained, by rollout."""
        spans = self.evidence.spans
        return {n: assemble(one, one.attempt, spans[n], Selector()) for n, one in self.evidence.rollouts.items()}

    def pictures(self, span: Span) -> list[str]:
        """Return the digests of the pictures that the calls in an encoded span's prompt brought with them."""
        marks = self.marks[span.span_id]
        return [picture.digest for mark in marks if mark in self.plans for picture in self.plans[mark].pictures]

    def answers(self) -> dict[Mark, dict[str, list[Span]]]:
        """The spans of each call, by the answer that they are choices of."""
        found: defaultdict[Mark, dict[str, list[Span]]] = defaultdict(dict)
        for span in self.encoded:
            if marks := self.marks[span.span_id]:
                found[marks[-1]].setdefault(text(span, semconv.RESPONSE_ID), []).append(span)
        return found


# --- Reading spans


def text(span: Span, key: str) -> str:
    """An attribute that is text."""
    return str(span.attributes[key])


def packed(span: Span, key: str) -> bytes:
    """An attribute that is packed numbers."""
    value: Attribute = span.attributes[key]
    assert isinstance(value, bytes)
    return value


def is_image(span: Span) -> bool:
    """Whether a span holds an image file."""
    return semconv.IMAGE_DIGEST in span.attributes


def named_images(span: Span) -> list[tuple[str, int, int]]:
    """The images of a call's prompt: digest, index of the first placeholder, and placeholders."""
    named = span.attributes.get(semconv.PROMPT_IMAGES)
    return [] if named is None else msgspec.json.decode(str(named), type=list[tuple[str, int, int]])


def message_images(span: Span) -> list[tuple[str, str]]:
    """The images in the recorded messages of a call, in order: role of the message, and URL."""
    if semconv.INPUT_MESSAGES not in span.attributes:
        return []
    messages: list[Any] = msgspec.json.decode(text(span, semconv.INPUT_MESSAGES))
    parts = [(one["role"], part) for one in messages if isinstance(one.get("content"), list) for part in one["content"]]
    return [(role, part["image_url"]["url"]) for role, part in parts if part.get("type") == "image_url"]


def can_be_trained(span: Span) -> bool:
    """Return whether the tokens were sampled, and what truncation left of the distribution is recorded."""
    sampling = sampling_of(span)
    return sampling.temperature > 0 and (semconv.SAMPLING_KEPT in span.attributes or not sampling.truncates)


def sampling_of(span: Span) -> Sampling:
    """How a call's tokens were drawn; of a call that never got that far, as if they were not."""
    if semconv.SAMPLING_USED not in span.attributes:
        return Sampling(temperature=0)
    sampling = recorded_sampling(span.attributes)
    assert sampling is not None, f"the sampling of call {text(span, semconv.CALL_ID)} cannot be read"
    return sampling


def message_text(span: Span) -> str:
    """The text of the assistant's message in a record, as a template would write it."""
    output = span.attributes.get(semconv.OUTPUT_MESSAGES)
    return "" if output is None else str(msgspec.json.decode(str(output))[0]["content"] or "").strip()


def agent_of(span: Span) -> str | None:
    """The agent that a call is recorded for."""
    agent = span.attributes.get(semconv.AGENT_NAME)
    return None if agent is None else str(agent)


def response_ids(span: Span) -> Sequence[int]:
    """The ids of an answer; none for a call that has no answer."""
    return unpack_ids(packed(span, semconv.RESPONSE_IDS)) if semconv.RESPONSE_IDS in span.attributes else []


def is_whole(spans: Sequence[Span]) -> bool:
    """Whether an answer went on to its end, all of its choices."""
    return all(
        semconv.ENGINE_FINISH in span.attributes and semconv.NOT_TRAINED not in span.attributes for span in spans
    )


def drew_the_end(span: Span, recorded: Recorded) -> bool:
    """Whether the engine went on to the end of an answer."""
    record = recorded.log.get(text(span, semconv.CALL_ID))
    return record is not None and record.finish_reason != "abort"


def has_siblings(span: Span, calls: Sequence[Span]) -> bool:
    """Whether an answer has further choices."""
    name = span.attributes.get(semconv.RESPONSE_ID)
    return sum(other.attributes.get(semconv.RESPONSE_ID) == name for other in calls) > 1
