"""What must hold for a finished campaign. Each check returns one line for each thing that does not hold."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from campaign.dialects.conversation import FUNCTIONS, Answer, Choice
from campaign.dialects.messages import canonical
from campaign.formats import fits, is_valid
from campaign.image_checks import wrong_images
from campaign.plan import CallPlan, policy_of, span_of
from campaign.recorded import (
    Recorded,
    agent_of,
    can_be_trained,
    drew_the_end,
    has_siblings,
    is_whole,
    message_text,
    packed,
    response_ids,
    text,
)
from check_record import Record, calls_recorded_wrongly
from leyden.core.data import reasons, semconv
from leyden.core.data.encoding.tokens import log_probs, unpack_ids, unpack_log_probs
from leyden.core.data.reasons import CHOICE_NOT_USED
from leyden.core.data.span import Span
from leyden.core.trajectory.calls import is_recorded_call


def all_wrong(recorded: Recorded) -> dict[str, list[str]]:
    """Return what each check finds."""
    checks: dict[str, Callable[[Recorded], Iterator[str]]] = {
        "engines' logs": against_engine,
        "callers": misattributed,
        "answers": misanswered,
        "formats": unfit,
        "training": wrongly_trained,
        "images": wrong_images,
    }
    return {name: list(check(recorded)) for name, check in checks.items()}


# --- The engines' logs


def against_engine(recorded: Recorded) -> Iterator[str]:
    """Every call in an engine's log is recorded once, the same to the last bit, and nothing else is."""
    logged = Counter(record.request_id for log in recorded.evidence.log.values() for record in log)
    yield from (f"{call}: twice in the engines' logs" for call, count in logged.items() if count > 1)
    rows: dict[str, Any] = {name: msgspec.to_builtins(record) for name, record in recorded.log.items()}
    wrong = dict.fromkeys(calls_recorded_wrongly(Record(calls=recorded.drawn), rows))
    yield from (f"{call}: missing, doubled, or not with the ids and versions that the engine drew" for call in wrong)
    for span in recorded.drawn:
        call = text(span, semconv.CALL_ID)
        if call in wrong:
            continue
        record = recorded.log[call]
        if (policy := span.attributes.get(semconv.POLICY)) != recorded.drawn_by[call]:
            yield f"{call}: drawn by {recorded.drawn_by[call]}, recorded as of {policy}"
        pairs = ((semconv.RESPONSE_LOGPROBS, record.logprobs), (semconv.SAMPLING_LOGPROBS, record.sampling_logprobs))
        for key, values in pairs:
            if unpack_log_probs(packed(span, key)) != log_probs(values):
                yield f"{call}: {key} differs from the engine's log"
    drawn = {id(span) for span in recorded.drawn}
    for span in recorded.calls:
        if id(span) not in drawn and semconv.NOT_TRAINED not in span.attributes:
            yield f"{text(span, semconv.CALL_ID)}: recorded, but never drawn"


# --- Callers


def misattributed(recorded: Recorded) -> Iterator[str]:
    """The mark in the prompt names rollout, attempt, agent and span of the record; refusals are counted by agent."""
    rollouts = recorded.evidence.rollouts
    for span in recorded.encoded:
        call, marks = text(span, semconv.CALL_ID), recorded.marks[span.span_id]
        if not marks or marks[-1] not in recorded.plans:
            yield f"{call}: its prompt has no mark of this campaign"
            continue
        mark = marks[-1]
        if {rollout for rollout, _, _ in marks} != {mark[0]}:
            yield f"{call}: its prompt holds calls of several rollouts"
        true = rollouts[mark[0]]
        plan = recorded.plans[mark]
        expected = (true.rollout_id, true.attempt.attempt_id, mark[1], f"{mark[1]}/{plan.dialect}", span_of(mark))
        found = (span.rollout_id, span.attempt_id, agent_of(span), span.attributes.get(semconv.NODE), span.parent_id)
        if found != expected or span.trace_id != f"{mark[0] + 1:032x}":
            yield f"{call}: of {expected}, recorded as of {found} in trace {span.trace_id}"
        if (policy := span.attributes.get(semconv.POLICY)) != policy_of(mark[1]):
            yield f"{call}: of {policy_of(mark[1])}, answered by {policy}"
        if span.attributes.get(semconv.DIALECT) != plan.dialect:
            yield f"{call}: spoken in {plan.dialect}, recorded as {span.attributes.get(semconv.DIALECT)}"
    numbers = {rollout.rollout_id: number for number, rollout in rollouts.items()}
    refused = [span for span in recorded.calls if span.attributes.get(semconv.NOT_TRAINED) == reasons.REFUSED]
    by_record = Counter((numbers.get(span.rollout_id), agent_of(span)) for span in refused)
    outcomes = recorded.evidence.outcomes
    by_agent = Counter[tuple[int | None, str | None]](one.mark[:2] for one in outcomes if one.result == "refused")
    yield from (
        f"{who}: refusals recorded and met differ" for who in {*by_record, *by_agent} if by_record[who] != by_agent[who]
    )


# --- Answers


def misanswered(recorded: Recorded) -> Iterator[str]:
    """Every call ended as it may, with one answer at most, and what its agent received is what is recorded."""
    for mark, count in Counter(outcome.mark for outcome in recorded.evidence.outcomes).items():
        if count > 1:
            yield f"{mark}: ended {count} times"
    answers = recorded.answers()
    for mark, plan in recorded.plans.items():
        outcome = recorded.outcomes.get(mark)
        if outcome is None or outcome.result == "failed":
            yield f"{mark} ({plan.fault}): {outcome.error if outcome else 'nothing is known of it'}"
            continue
        whole = {name: spans for name, spans in answers.get(mark, {}).items() if is_whole(spans)}
        if len(whole) > 1:
            yield f"{mark} ({plan.fault}): {len(whole)} whole answers to one call: {', '.join(whole)}"
        if outcome.answer is not None:
            yield from (f"{mark} ({plan.fault}): {wrong}" for wrong in _differences(outcome.answer, whole))
        if outcome.result == "refused" and (outcome.status != 400 or whole):
            yield f"{mark}: refused with {outcome.status}, and yet recorded as answered"


def _differences(answer: Answer, whole: dict[str, list[Span]]) -> Iterator[str]:
    if answer.id not in whole:
        yield f"answer {answer.id} was received and is not recorded as whole"
        return
    spans = sorted(whole[answer.id], key=lambda span: int(str(span.attributes[semconv.CHOICE_INDEX])))
    if len(spans) != len(answer.choices):
        yield f"answer {answer.id} had {len(answer.choices)} choices, {len(spans)} are recorded"
        return
    yield from (
        f"choice {n} of answer {answer.id} was received as {choice}, recorded as {recorded}"
        for n, (choice, recorded) in enumerate(zip(answer.choices, map(_choice, spans), strict=True))
        if not _same(choice, recorded)
    )
    prompt_ids = list(unpack_ids(packed(spans[0], semconv.PROMPT_IDS)))
    if answer.prompt_ids not in (None, prompt_ids):
        yield f"answer {answer.id} was received with another prompt than the recorded one"
    if answer.tokens is not None:
        counted = len(prompt_ids), sum(len(response_ids(span)) for span in spans)
        if answer.tokens != counted:
            yield f"answer {answer.id} was received with {answer.tokens} tokens, and has {counted}"


def _same(received: Choice, recorded: Choice) -> bool:
    shown = [] if received.logprobs is None else list(log_probs(received.logprobs))
    same_logprobs = shown == list(log_probs(recorded.logprobs or ()))[: len(shown)]
    same_finish = received.finish in (None, recorded.finish)
    same_ids = received.ids in (None, recorded.ids)
    same_text = (received.text, received.calls) == (recorded.text, recorded.calls)
    return same_text and same_finish and same_logprobs and same_ids


def _choice(span: Span) -> Choice:
    """Return the choice that a span records, with the log-probabilities of all its tokens."""
    (message,) = msgspec.json.decode(text(span, semconv.OUTPUT_MESSAGES))
    finish: Any = span.attributes.get(semconv.FINISH_REASONS)
    write = canonical if span.attributes.get(semconv.DIALECT) == "messages" else str
    functions = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
    return Choice(
        text=message["content"] or "",
        calls=[(id, function["name"], write(function["arguments"])) for id, function in functions],
        finish=finish[0] if finish else None,
        logprobs=list(unpack_log_probs(packed(span, semconv.RESPONSE_LOGPROBS))),
        ids=list(response_ids(span)),
    )


# --- Formats


def unfit(recorded: Recorded) -> Iterator[str]:
    """Every answer that ended by itself has the format that was required of it, and the calls that were forced."""
    answers = recorded.answers()
    for mark, outcome in recorded.outcomes.items():
        plan, answer = recorded.plans[mark], outcome.answer
        if answer is None or may_stop_anywhere(plan):
            continue
        finishes = {
            int(str(span.attributes[semconv.CHOICE_INDEX])): _choice(span).finish
            for span in answers.get(mark, {}).get(answer.id, ())
        }
        for n, choice in enumerate(answer.choices):
            if finishes.get(n) != "length" and (wrong := _unfit(plan, choice)):
                yield f"{mark} ({plan.dialect}, {plan.format}, tools {plan.tools}): {wrong}: {choice}"


def may_stop_anywhere(plan: CallPlan) -> bool:
    """Whether the request has stop texts or stop tokens, which may end an answer within its format."""
    return plan.stop is not None or "stop_token_ids" in plan.shaping


def _unfit(plan: CallPlan, choice: Choice) -> str | None:
    """Return what a whole answer should be and is not; None if all is right."""
    schemas = {function["name"]: function["parameters"] for function in FUNCTIONS}
    if plan.tools in ("required", "strict", "named") and not choice.calls:
        return "no call, though one was forced"
    if plan.tools == "named" and [name for _, name, _ in choice.calls] != ["calculator"]:
        return "another call than the named one"
    if plan.tools in ("required", "strict", "named") or plan.format != "none":
        for _, name, arguments in choice.calls:
            if name not in schemas or not is_valid(schemas[name], arguments):
                return "a call that does not fit its tool"
    if plan.format != "none" and not choice.calls and not fits(plan.format, choice.text):
        return "not of its format"
    return None


# --- Training


def wrongly_trained(recorded: Recorded) -> Iterator[str]:
    """Partial answers never train; every trainable call is in one trajectory, once, with every choice accounted for."""
    for answers in recorded.answers().values():
        for name, spans in answers.items():
            left_out = [semconv.NOT_TRAINED in span.attributes for span in spans]
            if any(left_out) != all(left_out):
                yield f"{name}: only some of its choices are left out of training"
            if not is_whole(spans) and not all(left_out):
                yield f"{name}: a partial answer is not marked as one that never trains"
            if all(left_out) and all(drew_the_end(span, recorded) for span in spans) and name in recorded.received:
                yield f"{name}: reached its agent, and is left out of training"
    for number in recorded.evidence.rollouts:
        spans = recorded.evidence.spans[number]
        trajectory = recorded.trajectories[number]
        trained = Counter(transition.call_id for transition in trajectory.transitions)
        calls = [span for span in spans if is_recorded_call(span)]
        if trained.total() + sum(trajectory.excluded.values()) != len(calls):
            yield f"rollout {number}: of {len(calls)} calls {trained.total()} are trained, {trajectory.excluded} not"
        yield from (f"{call}: {count} transitions" for call, count in trained.items() if count > 1)
        yield from _untrained(recorded, calls, trained)
        several = sum(1 for span in calls if has_siblings(span, calls) and semconv.NOT_TRAINED not in span.attributes)
        if trajectory.excluded.get(CHOICE_NOT_USED, 0) > several:
            yield f"rollout {number}: more choices are called unused than there are"


def _untrained(recorded: Recorded, calls: Sequence[Span], trained: Counter[str]) -> Iterator[str]:
    """Yield the calls that should be transitions and are not, and those that are and should not be."""
    for span in calls:
        call, why_not = text(span, semconv.CALL_ID), span.attributes.get(semconv.NOT_TRAINED)
        fit = why_not is None and bool(response_ids(span)) and can_be_trained(span)
        if not fit and trained[call]:
            yield f"{call}: trained, though {why_not or 'its sampling cannot be replayed'}"
        if fit and not trained[call] and (not has_siblings(span, calls) or _must_be_used(recorded, span, calls)):
            yield f"{call}: never trained"


def _must_be_used(recorded: Recorded, span: Span, calls: Sequence[Span]) -> bool:
    """Whether a later prompt goes on from this choice, and no other answer of the attempt says the same."""
    mark = recorded.marks[span.span_id][-1]
    outcome = recorded.outcomes.get(mark)
    gone_on_from = any(
        mark in recorded.marks.get(other.span_id, [])[:-1] and semconv.INPUT_MESSAGES in other.attributes
        for other in calls  # the record of a refused request may have no messages
    )
    if outcome is None or outcome.used != span.attributes[semconv.CHOICE_INDEX] or not gone_on_from:
        return False
    said = [message_text(other) for other in calls]
    mine = message_text(span)
    return bool(mine) and said.count(mine) == 1
