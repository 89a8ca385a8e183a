"""`Selector`: chooses which calls of an agent are trained."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.errors import UsageError

Predicate = Callable[[Span, Sequence[Span]], bool]
"""Function of the gateway's `chat` span of a call and of the framework's spans above it, nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Chooses calls by agent, by containing spans, and by a function for everything else.

    A call must fit all given options; without options every call is selected. Raises UsageError for an invalid regular
    expression.
    """

    agent_match: str | None = None
    """Regular expression, searched for in the names of the agent and of the node that made the call."""
    span_match: str | None = None
    """Regular expression, searched for in the names of the call's span and of the spans above it."""
    attribute_match: Mapping[str, str] = field(default_factory=dict[str, str])
    """Attribute name to a regular expression, searched for in its value on the call's span or on one above it."""
    predicate: Predicate | None = None
    """Called last, for calls that fit all other options."""
    _agent: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)
    _span: re.Pattern[str] | None = field(init=False, repr=False, compare=False, default=None)
    _attributes: tuple[tuple[str, re.Pattern[str]], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        attributes = [(key, _pattern(f"attribute_match {key}", text)) for key, text in self.attribute_match.items()]
        object.__setattr__(self, "_attributes", tuple(attributes))
        for name, text in (("agent", self.agent_match), ("span", self.span_match)):
            if text is not None:
                object.__setattr__(self, f"_{name}", _pattern(f"{name}_match", text))

    def selects(self, span: Span, by_id: Mapping[str, Span]) -> bool:
        """Return whether the call recorded by `span` is trained; `by_id` has the spans of its attempt."""
        if self._agent is not None:
            names = (span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.NODE))
            if not any(isinstance(name, str) and self._agent.search(name) for name in names):
                return False
        if self._span is None and not self._attributes and self.predicate is None:
            return True
        above = spans_above(span, by_id)
        return self._fits([span, *above]) and (self.predicate is None or bool(self.predicate(span, above)))

    def _fits(self, line: Sequence[Span]) -> bool:
        if self._span is not None and not any(self._span.search(span.name) for span in line):
            return False
        return all(
            any(pattern.search(text) for span in line for text in _texts(span.attributes.get(key)))
            for key, pattern in self._attributes
        )


def spans_above(span: Span, by_id: Mapping[str, Span]) -> list[Span]:
    """Return the known spans above `span`, nearest first."""
    found: list[Span] = []
    met = {span.span_id}
    parent = by_id.get(span.parent_id or "")
    while parent is not None and parent.span_id not in met:
        met.add(parent.span_id)
        found.append(parent)
        parent = by_id.get(parent.parent_id or "")
    return found


def _pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{name} {text!r} is not a regular expression: {error}") from None


def _texts(value: object) -> Iterable[str]:
    """Yield an attribute's value as text; of a list, each member's; nothing for bytes and None."""
    if isinstance(value, list):
        return [text for member in cast("list[object]", value) for text in _texts(member)]
    return () if value is None or isinstance(value, bytes) else (str(value),)
