"""The reward of one answer: token F1 and form, the two dimensions of the paper's 0.9 * F1 + 0.1 * format."""

import json
import re
import string
from collections import Counter
from typing import Any, cast

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
WHOLE = ("yes", "no", "unanswerable")
"""Answers that another answer shares nothing with, whatever its words are."""


def normalised(text: str) -> str:
    """The text as SQuAD's evaluation compares it: lower case, no punctuation, no articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def f1(answer: str, expected: str) -> float:
    """Harmonic mean of precision and recall over the words of two answers."""
    answer, expected = normalised(answer), normalised(expected)
    if answer == expected:
        return 1.0
    if answer in WHOLE or expected in WHOLE:
        return 0.0
    found, wanted = answer.split(), expected.split()
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def read(output: object) -> str | None:
    """The answer in an output that ends with exactly one `<answer>...</answer>`, or None."""
    if not isinstance(output, str) or not output.rstrip().endswith("</answer>"):
        return None
    found = ANSWER.findall(output)
    if len(found) != 1 or output.count("<answer>") != 1 or not found[0].strip():
        return None
    return found[0].strip()


def aliases_of(task: dict[str, Any]) -> list[str]:
    """The task's aliases: a list, maybe as JSON in a text, which is all that a CSV file can hold; or none."""
    given = task.get("answer_aliases")
    found: object = given
    if isinstance(given, str):
        try:
            found = json.loads(given) if given.strip() else None
        except (ValueError, RecursionError):
            found = given
    found = [] if found is None else found
    if not isinstance(found, list) or not all(isinstance(alias, str) for alias in cast("list[object]", found)):
        raise ValueError(f'`answer_aliases` must be a list of texts, as ["one", "two"], and is {given!r:.60}')
    return cast("list[str]", found)


def score(task: dict[str, Any], result: object) -> dict[str, float]:
    """Compare the agent's output with the task's answer and its aliases, of which the nearest counts."""
    answer = read(result)
    if answer is None:
        return {"f1": 0.0, "format": 0.0}
    expected = [task["answer"], *aliases_of(task)]
    return {"f1": max(f1(answer, each) for each in expected), "format": 1.0}
