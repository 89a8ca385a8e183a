"""Reflection models for tests: functions of a conversation that follow a rule or a script.

`--set reflection.function=leyden.core.testing.prompts.reflection:add_demanded` uses one in a run.
"""

import re
from collections.abc import Sequence

from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.apo_templates import EDIT_TEMPLATE, GRADIENT, GRADIENT_TEMPLATE, PROMPT, ROLLOUTS
from leyden.core.testing.prompts.hints import SENTENCES

ADD = "Add the sentence: "
NOTHING = "Nothing is missing."
_VARIABLE = re.compile(r"\{\w+\}")


class ScriptedReflection:
    """Returns the answers of a script in order, and records the conversations; the last answer is repeated."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.seen: list[Sequence[Message]] = []

    def __call__(self, messages: Sequence[Message]) -> str:
        """Return the next answer."""
        self.seen.append(messages)
        return self._answers[min(len(self.seen), len(self._answers)) - 1]


def add_demanded(messages: Sequence[Message]) -> str:
    """Add to the text the first sentence that the feedback demands by a hint.

    It understands the default requests of APO (a textual gradient, and an edit) and of GEPA.
    """
    request = messages[0]["content"]
    if (parts := _parts(GRADIENT_TEMPLATE, request, PROMPT, ROLLOUTS)) is not None:
        sentence = _demanded(parts[PROMPT], parts[ROLLOUTS])
        return NOTHING if sentence is None else f"{ADD}{sentence}"
    if (parts := _parts(EDIT_TEMPLATE, request, PROMPT, GRADIENT)) is not None:
        return f"<new_prompt>\n{_with(parts[PROMPT], parts[GRADIENT].partition(ADD)[2] or None)}\n</new_prompt>"
    text, _, feedback = request.partition("```\n")[2].partition("\n```")
    return f"```\n{_with(text, _demanded(text, feedback))}\n```"


def forget_variables(messages: Sequence[Message]) -> str:
    """Answer as `add_demanded` does, without the variables of the text, and with them once that is criticised."""
    answer = add_demanded(messages)
    return answer if len(messages) > 1 else _VARIABLE.sub("", answer)


def _demanded(text: str, feedback: str) -> str | None:
    return next((sentence for hint, sentence in SENTENCES.items() if hint in feedback and sentence not in text), None)


def _with(text: str, sentence: str | None) -> str:
    return text if sentence is None else f"{text} {sentence}"


def _parts(template: str, request: str, *places: str) -> dict[str, str] | None:
    """Return what fills each place of a template in a request that was made of it; None for another request."""
    pattern = re.escape(template)
    for number, place in enumerate(places):
        pattern = pattern.replace(re.escape(place), f"(?P<p{number}>.*?)", 1)
    found = re.match(pattern, request, re.DOTALL)
    return None if found is None else {place: found[f"p{number}"] for number, place in enumerate(places)}
