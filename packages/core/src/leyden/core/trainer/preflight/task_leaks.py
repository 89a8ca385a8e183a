"""Isolation check: finds text of another task in a rollout's prompts or result."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from leyden.core.data import semconv
from leyden.core.runner.isolation.choice import ALL_SHARE, NOTHING_SHARED
from leyden.core.trainer.preflight.evidence import Evidence
from leyden.core.trainer.preflight.report import CheckResult, failure, ok, unchecked, warning
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trajectory.messages import read_messages, text_of

WORD = re.compile(r"[^\W_]{4,}")
"""Shorter words, and numbers of fewer digits, occur by chance."""
PHRASE_WORDS, PHRASE_CHARACTERS = 5, 40
"""Minimum number of words or characters of a text; a text below both limits may occur in a prompt by chance."""
ENOUGH = 3
"""Minimum number of rollouts of other tasks that distinguishes a constant part of the prompt from another task's
text."""
MOST_WORDS = 0.8
"""Share of a task's unique words; a rollout with this share, and at least three words, holds the task's text in another
form."""
_PROCESS = "give --isolation process, or create the shared object inside the agent's function"


@dataclass(frozen=True, slots=True)
class TaskLeak:
    """Rollout that holds words of another task."""

    rollout_id: str
    words: tuple[str, ...]
    is_certain: bool
    """Whether neither common words nor documents that several tasks share can explain it."""


@dataclass(frozen=True, slots=True)
class _RolloutText:
    task: str
    task_text: str
    """The task's own texts, on one line and case-folded."""
    rollout_id: str
    text: str
    """Text of its prompts, except for model responses, and of its result, on one line and case-folded."""
    written: str
    """Text of its model responses; agents show a model what it, or another agent, wrote before."""
    words: frozenset[str]


def check_isolation(evidence: Evidence) -> CheckResult:
    """Check that no rollout contains text of another task."""
    rollouts = evidence.rollouts
    if not rollouts:
        return unchecked("isolation", "no rollout was read, see rollouts")
    own, phrases = own_words(rollouts), _phrases(rollouts)
    shares = any(line.startswith(ALL_SHARE) for line in evidence.isolation)
    note = f"; {'; '.join(evidence.isolation)}" if evidence.isolation else ""
    if len(own) < 2:
        return ok("isolation", f"there is only one task, so no other task can be seen{note}")
    if not phrases and not any(own.values()):
        seen = f"no task has a word or a sentence that no other task has{note}"
        return (
            warning("isolation", seen, f"so the check cannot find a leak: {_PROCESS}")
            if shares
            else ok("isolation", seen)
        )
    found = leaks(rollouts)
    if not found:
        count = sum(map(len, own.values())) + len(phrases)
        return ok("isolation", f"none of {count} words and texts of single tasks is in another's rollouts{note}")
    first = next((one for one in found if one.is_certain), found[0])
    words = ", ".join(repr(word) for word in first.words[:3])
    summary = f"{len(found)} of {len(rollouts)} rollouts hold words of another task"
    seen = f"{summary}: {first.rollout_id} has {words}{note}"
    if first.is_certain or shares:
        return failure("isolation", seen, f"{_PROCESS}; give --no-check if a rollout is meant to see other tasks")
    if set(evidence.isolation) == {NOTHING_SHARED}:
        return ok("isolation", seen)  # single words of documents, tables or files that several tasks read
    return warning(
        "isolation",
        seen,
        "check whether the agent looks it up in something that tasks have in common; if not, " + _PROCESS,
    )


def own_words(rollouts: Sequence[RecordedRollout]) -> dict[str, frozenset[str]]:
    """Return by task the words that no other task has."""
    words = {_task_key(one): frozenset(WORD.findall(_task_text(one))) for one in rollouts}
    tasks_of: defaultdict[str, set[str]] = defaultdict(set)
    for task, found in words.items():
        for word in found:
            tasks_of[word].add(task)
    return {task: frozenset(word for word in found if len(tasks_of[word]) == 1) for task, found in words.items()}


def leaks(rollouts: Sequence[RecordedRollout]) -> list[TaskLeak]:
    """Return the rollouts that hold words or texts of another task.

    A word that occurs in all rollouts of the other tasks belongs to the prompt, if there are at least three of these
    rollouts.
    """
    texts = [_rollout_text(one) for one in rollouts]
    own = {task: words - _everywhere(task, words, texts) for task, words in own_words(rollouts).items()}
    phrases = {phrase: task for phrase, task in _phrases(rollouts).items() if not _is_everywhere(task, phrase, texts)}
    return list(filter(None, (_leak(one, own, phrases) for one in texts)))


def _leak(rollout: _RolloutText, own: Mapping[str, frozenset[str]], phrases: Mapping[str, str]) -> TaskLeak | None:
    for phrase, task in phrases.items():
        of_its_own = phrase in rollout.task_text or phrase in rollout.written
        if task != rollout.task and phrase in rollout.text and not of_its_own:
            return TaskLeak(rollout.rollout_id, (phrase,), True)
    foreign = {task: words & rollout.words for task, words in own.items() if task != rollout.task}
    task, words = max(foreign.items(), key=lambda item: len(item[1]))
    if not words:
        return None
    certain = len(words) >= max(3, MOST_WORDS * len(own[task]))
    return TaskLeak(rollout.rollout_id, tuple(sorted(words)), certain)


def _everywhere(task: str, words: frozenset[str], texts: Iterable[_RolloutText]) -> frozenset[str]:
    others = [one.words for one in texts if one.task != task]
    return words.intersection(*others) if len(others) >= ENOUGH else frozenset()


def _is_everywhere(task: str, phrase: str, texts: Iterable[_RolloutText]) -> bool:
    others = [one.text for one in texts if one.task != task]
    return len(others) >= ENOUGH and all(phrase in text for text in others)


def _phrases(rollouts: Sequence[RecordedRollout]) -> dict[str, str]:
    """Return texts of tasks that are long enough and belong to one task only, each with its task."""
    found: dict[str, set[str]] = defaultdict(set)
    for one in rollouts:
        for text in _texts(one.rollout.input):
            phrase = _one_line(text)
            if len(phrase) >= PHRASE_CHARACTERS or len(phrase.split()) >= PHRASE_WORDS:
                found[phrase].add(_task_key(one))
    return {phrase: tasks.pop() for phrase, tasks in found.items() if len(tasks) == 1}


def _rollout_text(recorded: RecordedRollout) -> _RolloutText:
    read: list[str] = []
    wrote: list[str] = []
    for _, spans in recorded.attempts:
        for span in spans:
            read.append(str(span.attributes.get(semconv.RESULT, "")))
            for message in read_messages(span.attributes.get(semconv.INPUT_MESSAGES)):
                if message.get("role") != "assistant" and message.get("type") != "function_call":
                    read.append(text_of(message.get("content")) + str(message.get("output") or ""))
            wrote.extend(
                text_of(one.get("content")) for one in read_messages(span.attributes.get(semconv.OUTPUT_MESSAGES))
            )
    text, written = _one_line(" ".join(read)), _one_line(" ".join(wrote))
    words = frozenset(WORD.findall(text)) - frozenset(WORD.findall(written))
    return _RolloutText(_task_key(recorded), _task_text(recorded), recorded.rollout.rollout_id, text, written, words)


def _task_key(recorded: RecordedRollout) -> str:
    return msgspec.json.encode(recorded.rollout.input, order="deterministic").decode()


def _task_text(recorded: RecordedRollout) -> str:
    return _one_line(" ".join(_texts(recorded.rollout.input)))


def _texts(value: Any) -> Iterator[str]:
    """Yield texts and numbers in a task, at any depth."""
    if isinstance(value, Mapping):
        for item in cast("Mapping[Any, Any]", value).values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in cast("Iterable[Any]", value):
            yield from _texts(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _one_line(text: str) -> str:
    return " ".join(text.casefold().split())
