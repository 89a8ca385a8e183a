"""Alignment: the template that several texts have in common, with a variable where they differ.

Texts are compared word by word, long ones line by line first. A few equal words between two differences are not taken
for a part of the template: any two documents have some words in common.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import Enum
from itertools import groupby
from typing import TypeAlias, TypeVar

from leyden.core.data.prompts.template import TextTemplate

T = TypeVar("T")


class Variable(Enum):
    """A variable among the tokens of a text."""

    KNOWN = "known"
    """Its value is known to vary, such as a text of the task, so its bounds are certain."""
    FOUND = "found"
    """The compared texts differ here, so its bounds are not certain."""


Token: TypeAlias = str | Variable
Tokens: TypeAlias = list[Token]

_TOKEN = re.compile(r"\n+|[^\S\n]*\w+|[^\S\n]*[^\w\s]|[^\S\n]+")
_TAG = re.compile(r"</?\w{2,}[^<>]*>")
_WORD = re.compile(r"\w{2}")
_LABEL_ENDS = tuple(":>)]=#*`-")
MOST_PRODUCT = 250_000
"""Two sequences with a product of lengths above this are not compared token by token."""
SOLID_LETTERS, EDGE_LETTERS = 8, 7
"""Fewest letters and digits of a fixed text beside a variable whose bounds are not certain, unless it is a label.

The second holds for the beginning and the end of a text.
"""


def tokens_of(text: str, values: Sequence[str] = ()) -> Tokens:
    """Split a text into words, marks and line breaks; occurrences of `values` that are whole words are variables."""
    found: Tokens = []
    end = 0
    if values:
        for match in words_pattern(values).finditer(text):
            found += _TOKEN.findall(text[end : match.start()])
            found.append(Variable.KNOWN)
            end = match.end()
    return [*found, *_TOKEN.findall(text[end:])]


def words_pattern(values: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of the texts `values` where they are whole words; of several at one place, the longest."""
    longest_first = sorted(set(values), key=lambda value: (-len(value), value))
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")


def merged(one: Tokens, other: Tokens) -> Tokens:
    """Return what two sequences of tokens have in common, with a variable where they differ."""
    start = _common(one, other)
    end = _common(one[start:][::-1], other[start:][::-1])
    inner = _aligned(one[start : len(one) - end], other[start : len(other) - end])
    return _joined([*one[:start], *inner, *one[len(one) - end :]])


def letters(tokens: Iterable[Token]) -> int:
    """Return the number of letters and digits of the fixed text."""
    return sum(sum(map(str.isalnum, token)) for token in tokens if isinstance(token, str))


def template_of(tokens: Tokens, texts: Sequence[str]) -> TextTemplate:
    """Return the template that the sequence of tokens and all `texts` have in common.

    Its variables are `v1`, `v2` and so on. White space that all values of a variable begin or end with is fixed text.
    """
    fixed, names = [""], list[str]()
    for token in _joined(tokens):
        if isinstance(token, str):
            fixed[-1] += token
        else:
            names.append(f"v{len(names) + 1}")
            fixed.append("")
    values = [TextTemplate(tuple(fixed), tuple(names)).match(text) or {} for text in texts]
    for index, name in enumerate(names):
        of_name = [one.get(name, "") for one in values]
        if all(map(str.strip, of_name)):
            fixed[index] += _common_blank(of_name)
            fixed[index + 1] = _common_blank([value[::-1] for value in of_name])[::-1] + fixed[index + 1]
    return TextTemplate(tuple(fixed), tuple(names))


def _common_blank(texts: Sequence[str]) -> str:
    """Return the white space that all texts begin with."""
    blanks = [text[: len(text) - len(text.lstrip())] for text in texts]
    shared = blanks[0] if blanks else ""
    for blank in blanks:
        shared = shared[: _common(shared, blank)]
    return shared


def _aligned(one: Tokens, other: Tokens) -> Tokens:
    if not one and not other:
        return []
    if not one or not other:
        return [Variable.FOUND]
    if len(one) * len(other) <= MOST_PRODUCT:
        return _matched(one, other)
    lines, others = _lines(one), _lines(other)
    if len(lines) * len(others) > MOST_PRODUCT:
        return [Variable.FOUND]
    found: Tokens = []
    matcher = SequenceMatcher(None, lines, others, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        first = [token for line in lines[a:b] for token in line]
        second = [token for line in others[c:d] for token in line]
        if kind == "equal":
            found += first
        elif first and second and len(first) * len(second) <= MOST_PRODUCT:
            found += _matched(first, second)
        else:
            found.append(Variable.FOUND)
    return found


def _matched(one: Tokens, other: Tokens) -> Tokens:
    found: Tokens = []
    for kind, start, end, _, _ in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        found += one[start:end] if kind == "equal" else [Variable.FOUND]
    return found


def _joined(tokens: Tokens) -> Tokens:
    """Return the tokens with one variable for adjacent ones and for the fixed texts that are too short beside them."""
    runs: list[Tokens] = [list(run) for _, run in groupby(tokens, lambda token: isinstance(token, Variable))]
    kept: Tokens = []
    for index, run in enumerate(runs):
        if isinstance(run[0], Variable):
            variable = Variable.FOUND if Variable.FOUND in run else run[0]
            kept = _with_variable(kept, variable)
        elif not _beside(runs, index) or _is_solid(
            "".join(str(token) for token in run), is_edge=index in (0, len(runs) - 1)
        ):
            kept += run
        else:
            kept = _with_variable(kept, Variable.FOUND)
    return kept


def _with_variable(kept: Tokens, variable: Variable) -> Tokens:
    if kept and isinstance(kept[-1], Variable):
        both = {kept[-1], variable}
        return [*kept[:-1], Variable.FOUND if Variable.FOUND in both else Variable.KNOWN]
    return [*kept, variable]


def _beside(runs: Sequence[Tokens], index: int) -> bool:
    """Return whether a run of fixed text is beside a variable whose bounds are not certain."""
    around = [*runs[max(index - 1, 0) : index], *runs[index + 1 : index + 2]]
    return any(Variable.FOUND in run for run in around)


def _is_solid(text: str, *, is_edge: bool) -> bool:
    least = EDGE_LETTERS if is_edge else SOLID_LETTERS
    return sum(map(str.isalnum, text)) >= least or _is_label(text)


def _is_label(text: str) -> bool:
    """Return whether a fixed text is a label: on a line of its own, at a line's beginning before a mark, or a tag."""
    if _TAG.search(text):
        return True
    start = text.find("\n")
    word = _WORD.search(text, start) if start >= 0 else None
    if word is None:
        return False
    return word.end() <= text.rfind("\n") or text.rstrip().endswith(_LABEL_ENDS, word.end())


def _common(one: Sequence[T], other: Sequence[T]) -> int:
    """Return the number of equal members at the beginning."""
    count = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        count += 1
    return count


def _lines(tokens: Tokens) -> list[tuple[Token, ...]]:
    lines: list[list[Token]] = [[]]
    for token in tokens:
        lines[-1].append(token)
        if isinstance(token, str) and token.startswith("\n"):
            lines.append([])
    return [tuple(line) for line in lines if line]
