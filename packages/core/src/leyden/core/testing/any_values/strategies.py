"""`any_values` and `any_spans`: Hypothesis strategies for recipes of nested values, and of spans that hold them.

Hypothesis shows and shrinks the recipe instead of the value, since many values cannot be shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from hypothesis import strategies as st

from leyden.core.data.span import Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.testing.any_values.leaves import HEAVY, leaves
from leyden.core.testing.any_values.records import makers


@dataclass(frozen=True)
class AnyValue:
    """Recipe of a value: a named value, a holder of others, or a plain value."""

    kind: str
    parts: tuple[Any, ...] = field(default=())
    """For `plain`, the value itself; otherwise recipes; for a dict, its keys and values alternately."""

    def made(self) -> Any:
        """Return a new value."""
        if self.kind == "plain":
            return self.parts[0]
        if self.kind in _HOLDERS:
            return _HOLDERS[self.kind]([part.made() for part in self.parts])
        if self.kind.startswith("record "):
            return makers()[int(self.kind.removeprefix("record "))](self.parts[0].made())
        return leaves(blocking=True)[self.kind]()


def _dict(parts: list[Any]) -> Any:
    """Return a dict; a key that cannot be used is replaced by a number."""
    made: dict[Any, Any] = {}
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        try:
            made[key] = value
        except Exception:  # the key is hostile, or cannot be hashed
            made[len(made)] = value
    return made


_HOLDERS: Mapping[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "dict": _dict}

_LIGHT = 10
"""Weight of a light value in comparison with a heavy one."""
Recipes = st.SearchStrategy[AnyValue]


def _plain(values: st.SearchStrategy[Any]) -> Recipes:
    return values.map(lambda value: AnyValue("plain", (value,)))


@cache
def any_values(*, blocking: bool = False, max_leaves: int = 12) -> Recipes:
    """Return a strategy for recipes of nested values of every kind.

    With `blocking`, some values have methods that do not return before `hostile.RELEASE` is set.
    """
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
    names = sorted(leaves(blocking=blocking))
    light = [name for name in names if name not in HEAVY]
    named = st.sampled_from([*light * _LIGHT, *(name for name in names if name in HEAVY)]).map(AnyValue)
    count = len(makers())

    def held(inner: Recipes) -> Recipes:
        several = st.lists(inner, max_size=4).map(tuple)
        holders = st.builds(AnyValue, st.sampled_from(sorted(_HOLDERS)), several)
        record = st.integers(0, count - 1).map(lambda index: f"record {index}")
        return holders | st.builds(AnyValue, record, st.tuples(inner))

    return st.recursive(named | named | _plain(scalars), held, max_leaves=max_leaves)


@dataclass(frozen=True)
class AnySpan:
    """Recipe of a span."""

    fields: Mapping[str, Any]

    def made(self, **identity: Any) -> Span:
        """Return a new span; `identity` replaces the fields that identify it."""
        return Span(**{**{name: _made(value) for name, value in self.fields.items()}, **identity})


@dataclass(frozen=True)
class Part:
    """Recipe of an event, a link or a status."""

    kind: Callable[..., Any]
    fields: Mapping[str, Any]


def _made(recipe: Any) -> Any:
    if isinstance(recipe, AnyValue):
        return recipe.made()
    if isinstance(recipe, Part):
        return recipe.kind(**{name: _made(value) for name, value in recipe.fields.items()})
    if isinstance(recipe, list):
        return [_made(part) for part in recipe]  # type: ignore[reportUnknownVariableType] of a list of recipes
    if isinstance(recipe, dict):
        return {name: _made(part) for name, part in recipe.items()}  # type: ignore[reportUnknownVariableType] likewise
    return recipe


def _parts(kind: Callable[..., Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(lambda found: Part(kind, found))


@cache
def any_spans(*, blocking: bool = False) -> st.SearchStrategy[AnySpan]:
    """Return a strategy for recipes of spans with arbitrary or expected values in every field except their identity.

    Their status is a `SpanStatus`, since any other is refused.
    """
    values = any_values(blocking=blocking)
    attributes = st.dictionaries(st.text(max_size=8), values, max_size=4) | values
    times = st.floats(0, 2e9) | values
    event = _parts(SpanEvent, name=values, time=times, attributes=attributes) | values
    link = _parts(SpanLink, trace_id=st.text(max_size=4) | values, span_id=values, attributes=attributes) | values
    fields: dict[str, st.SearchStrategy[Any]] = {
        "sequence_id": st.just(0),
        "trace_id": st.just("0" * 31 + "1"),
        "parent_id": st.none() | st.just("b" * 16) | values,
        "name": st.text(max_size=8) | values,
        "status": _parts(SpanStatus, code=st.sampled_from(["unset", "ok", "error"]), description=values),
        "attributes": st.builds(_beside, attributes, st.sampled_from([0, 0, 40])),
        "events": st.lists(event, max_size=3) | values,
        "links": st.lists(link, max_size=2) | values,
        "start_time": times,
        "end_time": st.none() | times,
        "resource": attributes,
    }
    return st.fixed_dictionaries(fields).map(AnySpan)


def _beside(attributes: Any, count: int) -> Any:
    """Add plain attributes to a dict; a store must keep them, whatever the other attributes are."""
    if not isinstance(attributes, dict):
        return attributes
    return {**cast("dict[str, Any]", attributes), **{f"beside {n}": n for n in range(count)}}
