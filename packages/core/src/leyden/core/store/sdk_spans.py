"""`span_from_otel`: converts a span of the OpenTelemetry SDK. Imports the SDK only for type checking."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leyden.core.data.plain.own_methods import short_name
from leyden.core.data.plain.reading import WITHOUT_METHODS, Reading
from leyden.core.data.plain.spans import marked
from leyden.core.data.plain.values import reading, shown
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus, StatusCode
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

T = TypeVar("T")

_NANOSECONDS = 1e9
_CODES: dict[int, StatusCode] = {0: "unset", 1: "ok", 2: "error"}


def span_from_otel(readable: "ReadableSpan", rollout_id: str, attempt_id: str, sequence_id: int = 0) -> Span:
    """Return `readable` as a span of an attempt; with a `sequence_id` of 0, the store numbers it.

    Unreadable parts are left out, with the reason in `semconv.REDUCED`. Fields of unusual types are left for the store,
    which reads them as those of any span. Raises UsageError for a span without a span context, since it has no id.
    """
    context: Any = readable.context
    if context is None:
        raise UsageError(f"span {shown(readable.name)} has no span context, and so no id")
    trace_id, span_id = _id(context.trace_id, 32), _id(context.span_id, 16)
    if trace_id is None or span_id is None:
        raise UsageError(f"span {shown(readable.name)} has a span context without ids: {shown(context)}")
    part = _Parts(reading(WITHOUT_METHODS))
    span = Span(
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        sequence_id=sequence_id,
        trace_id=trace_id,
        span_id=span_id,
        parent_id=part.read_part("parent", lambda: _parent(readable.parent), None),
        name=readable.name,
        status=part.read_part("status", lambda: _status(readable.status), SpanStatus()),
        attributes=part.read_part("attributes", lambda: part.attributes(readable.attributes, "attributes"), {}),
        events=part.each("events", lambda: readable.events, part.event),
        links=part.each("links", lambda: readable.links, part.link),
        start_time=_seconds(readable.start_time),
        end_time=_seconds(readable.end_time),
        resource=part.read_part("resource", lambda: part.attributes(readable.resource.attributes, "resource"), {}),
    )
    return marked(span, part.read.all_reasons())


class _Parts:
    """Reads parts of a span, each of which may be unreadable."""

    def __init__(self, read: Reading) -> None:
        self.read = read

    def read_part(self, path: str, part: Callable[[], T], default: T) -> T:
        """Return the result of `part`, or `default` where it raises."""
        try:
            return part()
        except Exception as error:
            self.read.reduce(path, f"it cannot be read ({short_name(error)}), and is left out")
            return default

    def each(self, path: str, parts: Callable[[], Iterable[Any]], convert: Callable[[Any, str], T]) -> list[T]:
        """Return the result of `convert` for each part that can be read."""
        none: tuple[Any, ...] = ()
        found = self.read_part(path, lambda: tuple(parts()), none)
        kept = (
            self.read_part(member_path, lambda: [convert(part, member_path)], [])  # noqa: B023 -- called at once
            for member_path, part in _with_paths(path, found)
        )
        return [result for results in kept for result in results]

    def attributes(self, given: Mapping[str, Any] | None, path: str) -> Attributes:
        """Return attributes as plain values; most are plain already."""
        kept: Attributes = {}
        for name, value in cast("Mapping[str, object]", given or {}).items():
            kind = type(value)
            if kind is str or kind is int or kind is float or kind is bool or kind is bytes:
                kept[name] = cast("Any", value)
            elif (plain := self.read.attribute(self.read.read(value, path), f"{path}.{name}")) is not None:
                kept[name] = plain
        return kept

    def event(self, event: Any, path: str) -> SpanEvent:
        """Return an event in Leyden's form."""
        time = _seconds(event.timestamp)
        return SpanEvent(name=event.name, time=time, attributes=self.attributes(event.attributes, path))

    def link(self, link: Any, path: str) -> SpanLink:
        """Return a link in Leyden's form."""
        trace_id, span_id = f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}"
        return SpanLink(trace_id=trace_id, span_id=span_id, attributes=self.attributes(link.attributes, path))


def _with_paths(path: str, parts: tuple[Any, ...]) -> Iterable[tuple[str, Any]]:
    return ((f"{path}[{number}]", part) for number, part in enumerate(parts))


def _id(number: Any, digits: int) -> str | None:
    return f"{int.__int__(number):0{digits}x}" if issubclass(type(number), int) else None


def _parent(parent: Any) -> str | None:
    return None if parent is None else f"{parent.span_id:016x}"


def _status(status: Any) -> SpanStatus:
    return SpanStatus(code=_CODES[status.status_code.value], description=status.description)


def _seconds(nanoseconds: Any) -> Any:
    """Return nanoseconds as seconds; any other type unchanged, for the store to reject."""
    return nanoseconds / _NANOSECONDS if type(nanoseconds) is int else nanoseconds
