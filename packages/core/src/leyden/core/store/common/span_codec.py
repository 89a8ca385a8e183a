"""Codec of stored spans: stores the part that a call shares with an earlier call of its attempt only once.

An agent of thirty turns sends its conversation thirty times. A span may begin like an earlier span in its prompt's ids,
its messages or its tools. It is then stored as a reference to that span, with the rest. Tools, or a grammar, that equal
those of another earlier span are stored as a reference to that one. Readers get whole spans. The spans of an attempt
are kept or removed together, so a referenced span always exists.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span, SpanEvent, SpanLink, SpanStatus
from leyden.core.errors import StoreError
from leyden.core.store.common.rows import AttemptKey, SpanKey, SpanRow, encode

LIMIT_BYTES = 64 << 20
"""Largest number of cached bytes.

Above it, the attempts without recent calls are removed from the cache; their next call is stored whole.
"""
ATTEMPT_BYTES, CALL_BYTES, VALUE_BYTES = 600, 600, 80
"""Memory of an attempt, of a call and of an attribute's value, beside the content: Python's objects and tables."""
LATEST = 8
"""Cached calls per attempt, since several agents may take turns, or work at once."""
LEAST = 64
"""Smallest shared length, in bytes or characters, that is stored as a reference."""
REPEATED = (semconv.SAMPLING_GRAMMAR, semconv.TOOL_DEFINITIONS)
"""Attributes that agents which take turns repeat; each agent has its own."""

T = TypeVar("T", bytes, str)


class Link(msgspec.Struct, frozen=True, array_like=True):
    """Reference to an earlier span of the same attempt that has the beginnings of some attributes."""

    span_id: str
    shared: dict[str, int]
    """Number of shared bytes or characters by attribute.

    For the prompt's ids, the shared part is of the earlier span's prompt and response together.
    """


class SpanBody(msgspec.Struct, frozen=True, array_like=True):
    """Fields of a span that no query reads."""

    status: SpanStatus
    attributes: Attributes
    events: list[SpanEvent]
    links: list[SpanLink]
    resource: Attributes
    base: Link | None = None
    twin: bool = False
    """Whether the two kinds of log-probabilities are equal, as with the raw distribution; they are stored once."""
    equal: dict[str, str] = {}
    """Attributes that equal those of an earlier span of the attempt, each with the id of that span."""


_BODY = msgspec.msgpack.Decoder(SpanBody)


class _Known(NamedTuple):
    """A stored call whose beginning later calls may share."""

    span_id: str
    attributes: Attributes
    token_ids: bytes | str | None
    """Ids of its prompt and response together, with which later prompts begin."""
    size: int = 0
    """Approximate bytes of memory, where the call is cached."""

    def part(self, name: str) -> bytes | str | None:
        """Return the value whose beginning an attribute of a later call may share; None where there is none."""
        value = self.token_ids if name == semconv.PROMPT_IDS else self.attributes.get(name)
        return value if isinstance(value, (bytes, str)) else None


def _known(span_id: str, attributes: Attributes) -> _Known:
    prompt, answer = attributes.get(semconv.PROMPT_IDS), attributes.get(semconv.RESPONSE_IDS)
    if isinstance(prompt, bytes) and isinstance(answer, bytes):
        prompt += answer
    return _Known(span_id, attributes, prompt if isinstance(prompt, (bytes, str)) else None)


class _Attempt:
    """The latest calls of one attempt, and their approximate size in bytes."""

    def __init__(self) -> None:
        self.calls: list[_Known] = []
        self.size = ATTEMPT_BYTES

    def add(self, span: Span) -> int:
        """Add a call and return by how many bytes the size has grown."""
        before = self.size
        if len(self.calls) == LATEST:
            self.size -= self.calls.pop(0).size
        known = _known(span.span_id, span.attributes)
        self.calls.append(known._replace(size=_size(known)))
        self.size += self.calls[-1].size
        return self.size - before


class RecentCalls:
    """Cache of recently stored calls by attempt. A removed entry costs space, but no data. Thread-safe."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._size = 0
        self._lock = threading.Lock()
        self._attempts: OrderedDict[AttemptKey, _Attempt] = OrderedDict()

    def note(self, stored: Iterable[Span]) -> None:
        """Cache the calls among spans whose transaction is committed."""
        calls = [span for span in stored if semconv.PROMPT_IDS in span.attributes]
        if not calls:
            return
        with self._lock:
            for span in calls:
                key = (span.rollout_id, span.attempt_id)
                attempt = self._attempts.get(key)
                if attempt is None:
                    attempt = self._attempts[key] = _Attempt()
                    self._size += attempt.size
                self._size += attempt.add(span)
                self._attempts.move_to_end(key)
            while self._size > self._limit:
                _, oldest = self._attempts.popitem(last=False)
                self._size -= oldest.size

    def rows(self, spans: Iterable[tuple[Span, bool]]) -> list[SpanRow]:
        """Return the rows of spans of one transaction, each without the part that an earlier call has.

        The earlier call may be among these spans. The bool beside each span is True where earlier spans of the attempt
        may already be removed; the row then refers to none of them.
        """
        known: dict[AttemptKey, list[_Known]] = {}
        rows: list[SpanRow] = []
        for span, may_be_dropped in spans:
            if semconv.PROMPT_IDS not in span.attributes:
                rows.append(_stored_row(span, span.attributes))
                continue
            key = (span.rollout_id, span.attempt_id)
            if key not in known:
                known[key] = [] if may_be_dropped else self._calls_of(key)
            rows.append(_row(span, known[key]))
            known[key] = [*known[key], _known(span.span_id, span.attributes)][-LATEST:]
        return rows

    def _calls_of(self, key: AttemptKey) -> list[_Known]:
        with self._lock:
            attempt = self._attempts.get(key)
            return [] if attempt is None else list(attempt.calls)


def _row(span: Span, known: Sequence[_Known]) -> SpanRow:
    attributes, base = span.attributes, None
    logprobs = attributes.get(semconv.RESPONSE_LOGPROBS)
    twin = logprobs is not None and attributes.get(semconv.SAMPLING_LOGPROBS) == logprobs
    if twin:
        attributes = {name: value for name, value in attributes.items() if name != semconv.SAMPLING_LOGPROBS}
    equal: dict[str, str] = {}
    if known:
        nearest = _nearest(attributes[semconv.PROMPT_IDS], known)
        shared = {
            name: _common(value, nearest.part(name))
            for name, value in attributes.items()
            if isinstance(value, (bytes, str)) and len(value) >= LEAST
        }
        shared = {name: length for name, length in shared.items() if length >= LEAST}
        equal = _equal(attributes, shared, known)
        if equal:
            attributes = {name: value for name, value in attributes.items() if name not in equal}
            shared = {name: length for name, length in shared.items() if name not in equal}
        if shared:
            base = Link(nearest.span_id, shared)
            attributes = attributes | {
                name: _without_prefix(attributes[name], length) for name, length in shared.items()
            }
    return _stored_row(span, attributes, base, twin=twin, equal=equal)


def _equal(attributes: Attributes, shared: Mapping[str, int], known: Sequence[_Known]) -> dict[str, str]:
    """Return those of `REPEATED` that another call than the nearest has, with the newest such call."""
    found: dict[str, str] = {}
    for name in REPEATED:
        value = attributes.get(name)
        if isinstance(value, str) and len(value) >= LEAST and shared.get(name) != len(value):
            calls = [call.span_id for call in known if call.attributes.get(name) == value]
            found |= {name: calls[-1]} if calls else {}
    return found


def _nearest(prompt: object, known: Sequence[_Known]) -> _Known:
    """Return the newest call that `prompt` continues, response included, or the call with the longest common part."""
    for call in reversed(known):
        if isinstance(prompt, bytes) and isinstance(call.token_ids, bytes) and prompt.startswith(call.token_ids):
            return call
    nearest, longest = known[0], -1
    for call in known:
        common = _common(prompt, call.token_ids)
        if common > longest:
            nearest, longest = call, common
            if isinstance(prompt, bytes) and common == len(prompt):  # the same prompt: none has more in common
                break
    return nearest


def _stored_row(
    span: Span,
    attributes: Attributes,
    base: Link | None = None,
    *,
    twin: bool = False,
    equal: dict[str, str] | None = None,
) -> SpanRow:
    body = SpanBody(span.status, attributes, span.events, span.links, span.resource, base, twin, equal or {})
    return SpanRow(
        rollout_id=span.rollout_id,
        attempt_id=span.attempt_id,
        sequence_id=span.sequence_id,
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        name=span.name,
        start_time=span.start_time,
        end_time=span.end_time,
        body=encode(body, f"span {span.span_id}"),
    )


def whole_spans(rows: Sequence[SpanRow], all_of: Callable[[AttemptKey], Sequence[SpanRow]]) -> list[Span]:
    """Return whole spans; `all_of` returns an attempt's rows, for references to spans that are not among `rows`.

    Raises StoreError when a referenced span is missing: it was removed by other means than the store's.
    """
    bodies = {_key(row): _BODY.decode(row.body) for row in rows}
    references = {reference for key, body in bodies.items() for reference in _references(key, body)}
    for attempt in {key[:2] for key in references - bodies.keys()}:
        bodies |= {_key(row): _BODY.decode(row.body) for row in all_of(attempt)}
    attributes = _Attributes(bodies)
    return [_whole(row, bodies[_key(row)], attributes.of(_key(row))) for row in rows]


def _references(key: SpanKey, body: SpanBody) -> Iterator[SpanKey]:
    """Yield the keys of the earlier spans that a span refers to."""
    if body.base is not None:
        yield (*key[:2], body.base.span_id)
    for span_id in body.equal.values():
        yield (*key[:2], span_id)


class _Attributes:
    """Whole attributes of spans, each assembled once."""

    def __init__(self, bodies: Mapping[SpanKey, SpanBody]) -> None:
        self._bodies = bodies
        self._known: dict[SpanKey, Attributes] = {}

    def of(self, key: SpanKey) -> Attributes:
        """Return a span's assembled attributes; iterative, since a conversation may exceed Python's recursion limit."""
        needed = [key]
        while key not in self._known:
            missing = [one for one in _references(needed[-1], self._body(needed[-1])) if one not in self._known]
            needed += missing
            if not missing:
                last = needed.pop()
                self._known[last] = self._assembled(last)
        return self._known[key]

    def _body(self, key: SpanKey) -> SpanBody:
        body = self._bodies.get(key)
        if body is None:
            raise StoreError(f"span {key[2]} of attempt {key[1]}, on which later ones are based, is not in the store")
        return body

    def _assembled(self, key: SpanKey) -> Attributes:
        body = self._body(key)
        if body.base is None and not body.twin and not body.equal:
            return body.attributes
        attributes = dict(body.attributes)
        if body.base is not None:
            base = _known(body.base.span_id, self._known[*key[:2], body.base.span_id])
            for name, length in body.base.shared.items():
                attributes[name] = _joined(base.part(name), length, attributes[name])
        for name, span_id in body.equal.items():
            attributes[name] = self._known[*key[:2], span_id][name]
        if body.twin:
            attributes[semconv.SAMPLING_LOGPROBS] = attributes[semconv.RESPONSE_LOGPROBS]
        return attributes


def _whole(row: SpanRow, body: SpanBody, attributes: Attributes) -> Span:
    return Span(
        rollout_id=row.rollout_id,
        attempt_id=row.attempt_id,
        sequence_id=row.sequence_id,
        trace_id=row.trace_id,
        span_id=row.span_id,
        parent_id=row.parent_id,
        name=row.name,
        status=body.status,
        attributes=attributes,
        events=body.events,
        links=body.links,
        start_time=row.start_time,
        end_time=row.end_time,
        resource=body.resource,
    )


def _key(row: SpanRow) -> SpanKey:
    return (row.rollout_id, row.attempt_id, row.span_id)


def _without_prefix(value: object, length: int) -> bytes | str:
    assert isinstance(value, (bytes, str))
    return value[length:]


def _joined(begin: object, length: int, rest: object) -> bytes | str:
    if isinstance(begin, bytes) and isinstance(rest, bytes):
        return begin[:length] + rest
    assert isinstance(begin, str)
    assert isinstance(rest, str)
    return begin[:length] + rest


def _common(value: object, begin: object) -> int:
    """Return the length of the common beginning of `value` and `begin`; below `LEAST`, 0."""
    if isinstance(value, bytes) and isinstance(begin, bytes):
        return _common_length(value, begin)
    if isinstance(value, str) and isinstance(begin, str):
        return _common_length(value, begin)
    return 0


def _common_length(one: T, other: T) -> int:
    """Return the length of the common beginning by bisection, since slices compare faster than single characters.

    Below `LEAST`, returns 0.
    """
    if one[:LEAST] != other[:LEAST]:
        return 0
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    # a JSON list of messages that continues where the other one ends with its bracket
    if high and one[: high - 1] == other[: high - 1]:
        return high - 1
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _size(known: _Known) -> int:
    size = CALL_BYTES + len(known.token_ids or b"")
    for value in known.attributes.values():  # executed for every call; a generator takes twice as long
        size += VALUE_BYTES
        if isinstance(value, (bytes, str)):
            size += len(value)
    return size
