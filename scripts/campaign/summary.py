"""What happened in a campaign, counted; and what should have happened and did not."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from campaign.checks import may_stop_anywhere
from campaign.dialects.conversation import Answer
from campaign.formats import FORMATS
from campaign.pictures import KINDS
from campaign.plan import AGENTS, CUTS, LIBRARIES, REFUSALS, TOOLS, VIEWER, WITH_PICTURES
from campaign.recorded import Recorded, is_image, message_images, named_images
from leyden.core.data import reasons, semconv
from leyden.core.data.route import POLICY

ALWAYS = (
    *(f"calls by {agent}" for agent in AGENTS),
    *(f"calls with {library}" for library in LIBRARIES),
    *(f"calls from {kind}" for kind in ("tasks", "threads", "processes")),
    *(f"connection cut: {fault}" for fault in CUTS),
    *(f"tools: {tools}" for tools in TOOLS),
    *(f"answered after: {fault}" for fault in (*CUTS, "none", "hang up", "unread", "time out")),
    "answers with tool calls",
    "answers with several choices",
    "answers with log-probabilities",
    "answers with token ids",
    "answers of a required format",
    "answers to an agent inside another's turn",
    "answers given again from the record",
    "calls that saw an update",
    "calls with a picture in the result of a tool",
    *(f"calls with a picture: {kind}" for kind in KINDS),
    *(f"{dialect}, new images: {count}" for dialect in WITH_PICTURES for count in (1, 2)),
    "image files recorded",
    "images that several attempts recorded",
    "prompts with images of earlier calls",
    *(f"refused: {refusal}" for refusal in REFUSALS),
    "late calls answered with 403",
    "partial answers recorded",
    "prompts that go on from an answer",
    "refused",
    "rollouts: train",
    "rollouts: val",
    "unanswered",
    *(f"weight updates of {policy}" for policy in (POLICY, VIEWER)),
)
"""What every campaign must have tried, or it has shown little."""


def counts(recorded: Recorded) -> dict[str, int]:
    """Count what happened, by what it is."""
    evidence = recorded.evidence
    found = Counter(evidence.seen)
    found["calls"] = len(evidence.outcomes)
    log = [record for records in evidence.log.values() for record in records]
    found["engine's calls"], found["recorded calls"] = len(log), len(recorded.drawn)
    found["tokens drawn"] = sum(len(record.response_ids) for record in log)
    found["calls that saw an update"] = sum(len(record.versions) > 1 for record in log)
    found.update(f"rollouts: {plan.mode}" for plan in evidence.plans)
    found.update(_of_plans(recorded))
    found.update(_of_outcomes(recorded))
    left_out = [str(span.attributes.get(semconv.NOT_TRAINED)) for span in recorded.drawn]
    found["partial answers recorded"] = left_out.count(reasons.DISCONNECTED)
    found["prompts that go on from an answer"] = sum(len(marks) > 1 for marks in recorded.marks.values())
    found.update(_of_images(recorded))
    return dict(sorted(found.items()))


def never_happened(counted: Mapping[str, int], dialects: Sequence[str]) -> list[str]:
    """Return what should have happened and did not."""
    formats = [f"{dialect}, format: {name}" for dialect in dialects for name in FORMATS[dialect]]
    ways = [f"{dialect}, {way}" for dialect in dialects for way in ("streamed", "in one piece")]
    return [
        what for what in (*ALWAYS, *ways, *formats, "calls", "engine's calls", "tokens drawn") if not counted.get(what)
    ]


def _of_plans(recorded: Recorded) -> Iterator[str]:
    for call in recorded.plans.values():
        yield f"calls by {call.agent}"
        yield f"calls with {call.library}"
        yield f"tools: {call.tools}"
        yield from (f"with {name}" for name in call.shaping)
        yield from (f"calls with a picture: {picture.kind}" for picture in call.pictures)
        if call.format != "none":
            yield f"{call.dialect}, format: {call.format}"


def _of_images(recorded: Recorded) -> Iterator[str]:
    spans = [span for spans in recorded.evidence.spans.values() for span in spans if is_image(span)]
    yield from ("image files recorded" for _ in spans)
    attempts = Counter(digest for _, digest in recorded.files)
    yield from ("images that several attempts recorded" for count in attempts.values() if count > 1)
    for span in recorded.encoded:
        marks = recorded.marks[span.span_id]
        own = len(recorded.plans[marks[-1]].pictures) if marks and marks[-1] in recorded.plans else 0
        if len(named_images(span)) > own:
            yield "prompts with images of earlier calls"
        if "tool" in [role for role, _ in message_images(span)]:
            yield "calls with a picture in the result of a tool"


def _of_outcomes(recorded: Recorded) -> Iterator[str]:
    inside = {
        call.mark for plan in recorded.evidence.plans for ts in plan.agents.values() for t in ts for call in t.inside
    }
    answers = recorded.answers()
    for mark, outcome in recorded.outcomes.items():
        call, answer = recorded.plans[mark], outcome.answer
        yield outcome.result
        if outcome.result == "refused":
            yield f"refused: {call.refusal}"
        if answer is None:
            continue
        yield f"answered after: {call.fault}"
        yield f"{call.dialect}, {'streamed' if call.stream else 'in one piece'}"
        if call.pictures:
            yield f"{call.dialect}, new images: {len(call.pictures)}"
        yield from _of_answer(answer)
        if call.format != "none" and not may_stop_anywhere(call):
            yield from ("answers of a required format" for choice in answer.choices if choice.finish != "length")
        if mark in inside:
            yield "answers to an agent inside another's turn"
        asked_again = call.fault in ("lost", "half", "unread") or outcome.tries > 1
        if asked_again and list(answers.get(mark, {})) == [answer.id]:
            yield "answers given again from the record"


def _of_answer(answer: Answer) -> Iterator[str]:
    if any(choice.calls for choice in answer.choices):
        yield "answers with tool calls"
    if len(answer.choices) > 1:
        yield "answers with several choices"
    if any(choice.logprobs for choice in answer.choices):
        yield "answers with log-probabilities"
    if any(choice.ids for choice in answer.choices):
        yield "answers with token ids"
