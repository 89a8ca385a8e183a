"""Discovery: the prompt components in the recorded calls of several rollouts."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptComponent, PromptEdits, PromptPlace
from leyden.core.data.prompts.matching import ReplacedText
from leyden.core.data.prompts.places import (
    PromptText,
    format_texts,
    joined_lines,
    joined_without_images,
    message_texts,
    prompt_texts,
    system_texts,
    tool_texts,
)
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import objects, read_messages, text_of
from leyden.core.trajectory.prompts.templates import (
    FEWEST_LETTERS,
    FoundTemplate,
    SeenText,
    find_templates,
    without_imitations,
)
from leyden.core.trajectory.prompts.varying import SHORTEST_VALUE, task_values, varying_values

_Caller = tuple[str | None, str | None]
_JSON_ERRORS = (msgspec.DecodeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCalls:
    """The spans of one rollout, with its task."""

    task: Any
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPrompts:
    """Prompt components that were found, and what to know of them."""

    edits: PromptEdits
    calls: int
    """Number of model calls that were read."""
    notes: tuple[str, ...]
    """What the calls could not show, one sentence each."""


def find_prompts(rollouts: Sequence[RecordedCalls]) -> FoundPrompts:
    """Return the prompt components in the calls of rollouts, by their agents, nodes and places.

    A text that varies between the calls becomes a variable. A user's message is a component only if it has text of its
    own around its variables.
    """
    seen, calls = _seen_texts(rollouts)
    left_out: list[str] = []
    components: list[PromptComponent] = []
    names: set[str] = set()
    for (caller, place), texts in sorted(seen.items(), key=lambda item: _order(*item[0])):
        for found in find_templates(texts):
            if _is_component(place, found):
                components.append(_component(_unused(_name(caller, place), names), caller, place, found))
            else:
                left_out.append(f"the {place} of {_shown(caller)}")
    edits = PromptEdits(components=tuple(components))
    return FoundPrompts(edits=edits, calls=calls, notes=tuple(_notes(rollouts, calls, components, left_out)))


def _seen_texts(rollouts: Sequence[RecordedCalls]) -> tuple[dict[tuple[_Caller, PromptPlace], list[SeenText]], int]:
    """Return the texts of all calls by their callers and places, and the number of calls."""
    seen: dict[tuple[_Caller, PromptPlace], list[SeenText]] = {}
    calls = [list(_calls(rollout.spans)) for rollout in rollouts]
    of_tasks = task_values([one.task for one in rollouts])
    of_answers = task_values([[_answer(span) for span in of_rollout] for of_rollout in calls])
    for of_rollout, of_task, answers in zip(calls, of_tasks, of_answers, strict=True):
        known = list(of_task)
        for span in of_rollout:
            for place, text in _texts_of(span):
                is_user = place.role in ("user", "prompt")
                values = varying_values(text, known, span.start_time, is_user=is_user)
                seen_text = SeenText(text, span.rollout_id, tuple(values))
                seen.setdefault((_caller(span), place), []).append(seen_text)
            if (answer := _answer(span)) in answers and len(answer) >= SHORTEST_VALUE:
                known.append(answer)
    return {key: without_imitations(texts) for key, texts in seen.items()}, sum(map(len, calls))


def _answer(span: Span) -> str:
    """Return the text that the model wrote in a call, which a later call may have in a prompt."""
    written = (
        text_of(message.get("content")) for message in read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
    )
    return "\n".join(filter(None, written)).strip()


def _component(name: str, caller: _Caller, place: PromptPlace, found: FoundTemplate) -> PromptComponent:
    return PromptComponent(
        name=name,
        agent=caller[0],
        node=caller[1],
        calls=len(found.texts),
        text=found.template().text,
        **msgspec.structs.asdict(place),
    )


def _notes(
    rollouts: Sequence[RecordedCalls], calls: int, components: Sequence[PromptComponent], left_out: Sequence[str]
) -> Iterator[str]:
    if not calls:
        yield "The agent made no model call that was recorded, so no prompt could be found."
        return
    if len(rollouts) == 1:
        yield (
            "Only one task was run, so only its own texts, the date and identifiers are known to vary. Run several "
            "different tasks to find the other variables."
        )
    if left_out:
        unique = list(dict.fromkeys(left_out))
        more = f" and {len(unique) - 3} more" if len(unique) > 3 else ""
        yield f"Left out, because no fixed text is known in them: {', '.join(unique[:3])}{more}."
    if components and all(one.agent is None and one.node is None for one in components):
        yield (
            "The calls name no agent: all parts of the agent are one. An adapter for its framework would tell them "
            "apart."
        )


def _calls(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the first choice of each model call that the gateway recorded, for each of its prompts.

    Some endpoints give all their answers one id, or none, so a choice of the same number begins another call.
    """
    first: dict[tuple[object, object], object] = {}
    for span in spans:
        values = span.attributes
        if semconv.CALL_ID not in values or semconv.INPUT_MESSAGES not in values:
            continue
        key, choice = (
            (values.get(semconv.RESPONSE_ID), values.get(semconv.PROMPT_INDEX)),
            values.get(semconv.CHOICE_INDEX),
        )
        if first.setdefault(key, choice) == choice:
            yield span


def _texts_of(span: Span) -> Iterator[tuple[PromptPlace, str]]:
    """Yield the prompt texts of a call as the agent sent them, with their places."""
    own = {one.place: one.own for one in _replaced(span)}
    for found in _recorded_texts(span):
        text = own.get(found.place, found.text)
        if text.strip():
            yield found.place, text


def _recorded_texts(span: Span) -> Iterator[PromptText]:
    values = span.attributes
    given = _decoded(values.get(semconv.INPUT_MESSAGES))
    dialect, is_upstream = values.get(semconv.DIALECT), semconv.SAMPLING_USED not in values
    if dialect == "completions":
        index = int(str(values.get(semconv.PROMPT_INDEX, 0)))
        prompts: list[Any] = [message.get("content") for message in objects(given)]
        yield from prompt_texts([None] * index + prompts)
        return
    asked = objects([_decoded(values.get(semconv.SAMPLING_ASKED))])
    fields = asked[0] if asked else dict[str, Any]()
    if dialect == "responses" and is_upstream:
        yield from _items(given, fields)
    elif dialect == "messages" and "system" in fields:  # a request with blocks that have no format of chat messages
        yield from system_texts(fields, "system", joined_lines)
        yield from message_texts(objects(given), joined_lines, first_system=int(bool(fields["system"])))
    else:
        yield from message_texts(objects(given))
    yield from tool_texts(objects(_decoded(values.get(semconv.TOOL_DEFINITIONS))))
    if is_upstream:  # a policy reads the schema of a format, and not its description
        yield from format_texts(fields)


def _items(given: Any, fields: Mapping[str, Any]) -> Iterator[PromptText]:
    """Yield the texts of a request of the Responses API in its own form."""
    instructions = fields.get("instructions")
    yield from system_texts({"instructions": instructions}, "instructions", joined_without_images)
    if fields.get("previous_response_id") is None and fields.get("conversation") is None:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else objects(given)
        yield from message_texts(items, joined_without_images, first_system=int(instructions is not None))


def _replaced(span: Span) -> list[ReplacedText]:
    recorded = span.attributes.get(semconv.PROMPT_EDITS)
    try:
        return msgspec.json.decode(str(recorded), type=list[ReplacedText]) if recorded else []
    except _JSON_ERRORS:
        return []


def _decoded(recorded: object) -> Any:
    try:
        return msgspec.json.decode(recorded) if isinstance(recorded, str | bytes) else None
    except _JSON_ERRORS:
        return None


def _is_component(place: PromptPlace, found: FoundTemplate) -> bool:
    if place.role not in ("user", "prompt"):
        return found.letters > 0
    is_proven = len(found.rollouts) > 1 or found.template().names
    return bool(is_proven) and found.letters >= FEWEST_LETTERS


def _caller(span: Span) -> _Caller:
    agent, node = span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.NODE)
    return None if agent is None else str(agent), None if node is None else str(node)


def _order(caller: _Caller, place: PromptPlace) -> tuple[object, ...]:
    roles = ("system", "developer", "user", "prompt", "tool", "output")
    return caller[0] or "", caller[1] or "", roles.index(place.role), place.position, place.part, place.tool


def _shown(caller: _Caller) -> str:
    return "/".join(part for part in caller if part) or "the agent"


def _name(caller: _Caller, place: PromptPlace) -> str:
    number = f"{place.position + 1}" if place.position else ""
    number += f"-{place.part + 1}" if place.part else ""
    parts = [*(part for part in caller if part), f"{place.role}{number}", place.tool]
    slugs = [re.sub(r"[^\w-]+", "_", part).strip("_") for part in parts]
    return ".".join(slug for slug in slugs if slug)


def _unused(name: str, names: set[str]) -> str:
    """Return the name, with a number if another component has it, and add it to `names`."""
    number, unused = 1, name
    while unused in names:
        number += 1
        unused = f"{name}.{number}"
    names.add(unused)
    return unused
