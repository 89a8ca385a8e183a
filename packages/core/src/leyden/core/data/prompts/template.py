"""`TextTemplate`: a text with variables, `{v1}`, which can be matched with a whole text and filled with values.

Literal braces are doubled, as in Python's `str.format`. A variable stands for any text, also for an empty one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from leyden.core.errors import PromptError

_MARK = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}|[{}]", re.ASCII)
"""A doubled brace, a variable, or a brace that is neither."""
_SHOWN = 20


@dataclass(frozen=True)
class TextTemplate:
    """A parsed template: fixed texts, and a variable between each two of them."""

    fixed: tuple[str, ...]
    """Fixed texts, without escapes; one more than `names`. The first and the last may be empty."""
    names: tuple[str, ...] = ()
    """Names of the variables in order. A name may occur more than once."""

    @classmethod
    def parse(cls, text: str) -> "TextTemplate":
        """Parse a text with variables; raises PromptError for a brace that is neither doubled nor a variable's."""
        fixed, names, end = [""], list[str](), 0
        for mark in _MARK.finditer(text):
            fixed[-1] += text[end : mark.start()]
            end = mark.end()
            if mark[1]:
                names.append(mark[1])
                fixed.append("")
            elif len(mark[0]) == 2:
                fixed[-1] += mark[0][0]
            else:
                line, column = _place(text, mark.start())
                shown = text[mark.start() : mark.start() + _SHOWN].splitlines()[0]
                raise PromptError(
                    f"line {line}, column {column}: {shown!r} begins with a brace that is no variable's; write "
                    f"{mark[0] * 2} for the character {mark[0]}"
                )
        fixed[-1] += text[end:]
        return cls(tuple(fixed), tuple(names))

    @cached_property
    def text(self) -> str:
        """The template as text, with its braces doubled."""
        rest = "".join(f"{{{name}}}{escaped(fixed)}" for name, fixed in zip(self.names, self.fixed[1:], strict=True))
        return escaped(self.fixed[0]) + rest

    @property
    def variables(self) -> frozenset[str]:
        """Names of the variables."""
        return frozenset(self.names)

    @cached_property
    def size(self) -> int:
        """Number of fixed characters."""
        return sum(map(len, self.fixed))

    def match(self, text: str) -> dict[str, str] | None:
        """Return the values of the variables with which the template is the whole of `text`; None if there are none.

        Each fixed text is taken at its first possible place, so the time is linear in the length of the text.
        """
        if not self.names:
            return {} if text == self.fixed[0] else None
        first, *inner, last = self.fixed
        if len(text) < self.size or not text.startswith(first) or not text.endswith(last):
            return None
        values: dict[str, str] = {}
        start, limit = len(first), len(text) - len(last)
        for name, fixed in zip(self.names, [*inner, None], strict=True):
            at = limit if fixed is None else text.find(fixed, start, limit)
            if at < start or values.setdefault(name, text[start:at]) != text[start:at]:
                return None
            start = at + len(fixed or "")
        return values

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with these values; raises KeyError for a variable without a value."""
        if not self.names:
            return self.fixed[0]
        rest = [values[name] + fixed for name, fixed in zip(self.names, self.fixed[1:], strict=True)]
        return "".join([self.fixed[0], *rest])


def escaped(text: str) -> str:
    """Return a literal text as it stands in a template."""
    return text.replace("{", "{{").replace("}", "}}")


def check_variables(own: TextTemplate, new: TextTemplate) -> None:
    """Raise PromptError if a new text lacks a variable of the agent's own text, or has one that this has not."""
    lost, invented = own.variables - new.variables, new.variables - own.variables
    if lost:
        raise PromptError(f"the new text lacks {_named(lost)}: what the agent puts there would be lost")
    if invented:
        known = f"it has {_named(own.variables)}" if own.names else "it has none; write {{ and }} for literal braces"
        raise PromptError(f"the new text has {_named(invented)}, which the agent's own text does not have: {known}")


def _named(names: Iterable[str]) -> str:
    shown = [f"{{{name}}}" for name in sorted(names)]
    return f"the variable{'s' if len(shown) > 1 else ''} {', '.join(shown)}"


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
