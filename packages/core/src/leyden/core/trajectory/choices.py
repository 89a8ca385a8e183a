"""Choices: finds out which of a response's several choices the agent continued with.

A choice was used if a later call of the same attempt repeats it: its text as an assistant's message, or the id of one
of its tool calls. In the Completions API, a later prompt repeats its prompt and its text. A choice was also used if the
agent's result contains its text. The only choice of a response always counts as used.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.trajectory.messages import objects, read_messages, text_of

COMPLETIONS = "completions"
"""Value of `semconv.DIALECT` in the calls of the Completions API."""
HEAD = 200
"""Number of leading characters by which a long text is recognised in a result that was recorded shortened."""


class _AssistantMessages(NamedTuple):
    """Texts and tool call ids of the assistant's messages among some messages."""

    texts: Counter[str]
    call_ids: frozenset[str]


class _Exchange(NamedTuple):
    """What a call read and wrote."""

    answer: str
    read: _AssistantMessages
    wrote: _AssistantMessages
    prompt: str | None
    """The text of a call of the Completions API; None for a conversation."""

    def goes_on_from(self, earlier: "_Exchange") -> int:
        """Return the length of the text that `earlier` wrote, if this call's prompt goes on from it; else 0."""
        if self.prompt is None or earlier.prompt is None or not self.prompt.startswith(earlier.prompt):
            return 0
        rest = self.prompt[len(earlier.prompt) :].lstrip()
        return max((len(text) for text in earlier.wrote.texts if rest.startswith(text)), default=0)


def unused_choices(calls: Sequence[Span], spans: Sequence[Span]) -> frozenset[str]:
    """Return the span ids of the choices that were not used.

    `calls` are the recorded calls of one attempt in order of their start, `spans` all spans of it. Messages are read
    only if a response has several choices.
    """
    answers: defaultdict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        answers[_answer(call)].append(index)
    several = [indexes for indexes in answers.values() if _has_several([calls[index] for index in indexes])]
    if not several:
        return frozenset()
    exchanges = [_exchange(call) for call in calls]
    results = [str(span.attributes[semconv.RESULT]) for span in spans if semconv.RESULT in span.attributes]
    unused: set[str] = set()
    for indexes in several:
        used = _repeated(indexes, exchanges)
        used |= {n for n in indexes for text in exchanges[n].wrote.texts if any(_contains(r, text) for r in results)}
        unused.update(calls[index].span_id for index in indexes if index not in used)
    return frozenset(unused)


def _answer(call: Span) -> str:
    """Return the id that the choices of one response share; answers to several prompts are no choices."""
    response_id = str(call.attributes.get(semconv.RESPONSE_ID, call.span_id))
    return f"{response_id}/{call.attributes.get(semconv.PROMPT_INDEX, 0)}"


def _has_several(choices: Sequence[Span]) -> bool:
    return len({str(choice.attributes.get(semconv.CHOICE_INDEX)) for choice in choices}) > 1


def _repeated(indexes: Sequence[int], exchanges: Sequence["_Exchange"]) -> set[int]:
    """Return those `indexes`, the choices of one response, that a later call repeats.

    A text must occur more often than the response's own call had read it and other responses since can have written it.
    A prompt goes on from the choice with the longest text that fits.
    """
    repeated: set[int] = set()
    others: Counter[str] = Counter()
    counted: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for later in (exchanges[n] for n in range(indexes[0], len(exchanges)) if n not in indexes):
        longest = max(later.goes_on_from(exchanges[index]) for index in indexes)
        repeated.update(index for index in indexes if longest and later.goes_on_from(exchanges[index]) == longest)
        for index in indexes:
            choice, before = exchanges[index].wrote, exchanges[index].read
            by_id = not later.read.call_ids.isdisjoint(choice.call_ids)
            if by_id or any(later.read.texts[text] > before.texts[text] + others[text] for text in choice.texts):
                repeated.add(index)
        others.update(later.wrote.texts - counted[later.answer])
        counted[later.answer] |= later.wrote.texts
    return repeated


def _contains(result: str, text: str) -> bool:
    """Return whether `result` contains `text` as whole words, either plain or as Python or JSON writes it."""
    forms = {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    if any(re.search(_whole(form), result) for form in forms):
        return True
    shortened = result.endswith("…") or "..." in result
    return shortened and len(text) > HEAD and any(form[:HEAD] in result for form in forms)


def _whole(form: str) -> str:
    """Return a pattern for `form` as whole words; the letter of an escaped line break is not part of a word."""
    before = r"(?:(?<!\w)|(?<=\\[nrt]))" if re.match(r"\w", form) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", form) else ""
    return before + re.escape(form) + after


def _exchange(call: Span) -> _Exchange:
    read, wrote = (
        _assistant_messages(call.attributes.get(key)) for key in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES)
    )
    return _Exchange(_answer(call), read, wrote, _prompt(call))


def _prompt(call: Span) -> str | None:
    if call.attributes.get(semconv.DIALECT) != COMPLETIONS:
        return None
    messages = list(read_messages(call.attributes.get(semconv.INPUT_MESSAGES)))
    return text_of(messages[0].get("content")) if len(messages) == 1 else None


def _assistant_messages(messages: object) -> _AssistantMessages:
    """Return the texts and call ids in messages or response items; empty for anything else."""
    texts: Counter[str] = Counter()
    call_ids: set[object] = set()
    for message in read_messages(messages):
        calls = objects(message.get("tool_calls"))
        call_ids.update([message.get("tool_call_id"), message.get("call_id"), *(call.get("id") for call in calls)])
        text = text_of(message.get("content")).strip() if message.get("role") == "assistant" else ""
        if text:
            texts[text] += 1
    return _AssistantMessages(texts, frozenset(value for value in call_ids if isinstance(value, str)))
