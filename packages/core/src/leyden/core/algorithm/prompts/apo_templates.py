"""Requests of APO: the templates of the textual gradient and of the edit, and the text in an answer."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from leyden.core.errors import UsageError

PROMPT, ROLLOUTS, GRADIENT = "<prompt>", "<rollouts>", "<gradient>"
"""Places of the current text, of the rollouts and of the textual gradient in a template."""
FORM = "between the lines <new_prompt> and </new_prompt>"
"""Where an answer has the new text."""
GRADIENT_TEMPLATE = f"""\
An agent that uses a language model runs with the text below. You find out what is wrong with the text.

## The text

{PROMPT}

## Rollouts of the agent with this text

{ROLLOUTS}

## Your answer

Compare the rollouts that scored low with those that scored high. Name the causes in the text: a rule that it lacks, a
rule that is wrong or can be misread, or an output format that it leaves open. Give a reason for each cause from the
rollouts, and describe the change that would remove it. Describe general changes, which also help with other tasks, and
do not repeat the tasks themselves. Do not write the new text."""
"""Default request for a textual gradient."""
EDIT_TEMPLATE = f"""\
An agent that uses a language model runs with the text below. A reviewer has read what the agent did, and criticises the
text. You change the text so that the criticism no longer applies. Keep what works.

## The text

{PROMPT}

## The criticism

{GRADIENT}

## Your answer

Write the whole new text {FORM}."""
"""Default request for an edit."""
_ANSWER = re.compile(r"<new_prompt>\n?(.*?)\n?</new_prompt>", re.DOTALL)
_FENCED = re.compile(r"```[^\n`]*\n(.*)\n```", re.DOTALL)
_LONGEST_PATH = 1000


def read_templates(option: str, given: str | list[str] | None, default: str, places: Sequence[str]) -> list[str]:
    """Return the templates of an option, each a text or the path of a text file; the default if there are none.

    Raises UsageError for a template that lacks one of `places`, and for a file in POML.
    """
    values = given if isinstance(given, list) else [given]
    return [default if one is None else _read(option, one, places) for one in values or [None]]


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each place replaced by its value. Values are not searched for places."""
    pattern = "|".join(re.escape(place) for place in values)
    return re.sub(pattern, lambda match: values[match[0]], template)


def extracted(answer: str) -> str:
    """Return the new text in an answer: in its last `<new_prompt>`, in a block that is the whole answer, or all of it.

    The second and third are answers to templates that request the text alone.
    """
    if found := _ANSWER.findall(answer):
        return found[-1]
    whole = answer.strip()
    fenced = _FENCED.fullmatch(whole)
    return whole if fenced is None else fenced[1]


def _read(option: str, given: str, places: Sequence[str]) -> str:
    wanted = " and ".join(places)
    text = given
    if given.endswith(".poml") and "\n" not in given:
        raise UsageError(
            f"{option} {given}: POML is not supported, because its library needs Node.js and is not maintained; write "
            f"the request as a text with {wanted}"
        )
    if not any(place in given for place in places) and len(given) < _LONGEST_PATH and "\n" not in given:
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(
                f"{option} {given!r} is neither a text with {wanted} nor a file that can be read: {why}"
            ) from None
    if missing := [place for place in places if place not in text]:
        raise UsageError(f"{option} lacks {' and '.join(missing)}; it needs {wanted}")
    return text
