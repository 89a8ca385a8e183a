"""What text a store takes, whichever it is, so that what one takes every other does.

What a user gives is refused where it is no Unicode; so are ids and names with a NUL, which PostgreSQL's text has no
room for. What spans say comes from outside and has been said already: it is kept, as well as it can be.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from leyden.core.data.encoding.text import REPLACEMENT, is_well_formed, well_formed
from leyden.core.data.plain.spans import marked
from leyden.core.data.span import Span
from leyden.core.errors import UsageError

_NUL = "\0"
MOST_BYTES_OF_AN_ID = 800
"""Three of them must fit into a row of an index of PostgreSQL's."""
_LONG = MOST_BYTES_OF_AN_ID // 4
"""Characters of a span's name and ids, at whose least some id may have too many bytes."""
NO_CHARACTER = "it has half of a surrogate pair, which is no character"
"""Why text cannot be stored that is not well-formed."""


def can_rest(text: str) -> bool:
    """Whether an id or a name can be stored."""
    return _NUL not in text and is_well_formed(text)


def check_text(**given: object) -> None:
    """Raise UsageError for an id or a name, by what it is, that cannot be stored; what is no text is not looked at."""
    for what, text in given.items():
        if isinstance(text, str) and not can_rest(text):
            raise _unstorable(what, text)


def check_ids(**given: object) -> None:
    """`check_text` for ids that become keys: raises UsageError, too, for one of more than `MOST_BYTES_OF_AN_ID`."""
    check_text(**given)
    for what, text in given.items():
        if isinstance(text, str) and len(text.encode()) > MOST_BYTES_OF_AN_ID:
            size = len(text.encode())
            said = f"{what} {text[:40]!a}… cannot be stored: it has {size} bytes"
            raise UsageError(f"{said}; an id may have {MOST_BYTES_OF_AN_ID}")


def check_texts(what: str, texts: Sequence[str]) -> None:
    """`check_text` for several of a kind."""
    for text in texts:
        check_text(**{what: text})


def storable(spans: Sequence[Span]) -> Sequence[Span]:
    """Return spans whose names can be stored, with `REPLACEMENT` for what cannot; raises UsageError for such an id.

    A parent's id that cannot be stored is left out: the span is one without it, too.
    """
    for span in spans:
        text = f"{span.name}{span.trace_id}{span.span_id}{span.parent_id}{span.rollout_id}{span.attempt_id}"
        if (
            len(text) > _LONG or not text.isascii() or _NUL in text
        ):  # `can_rest`, for nearly all, in a third of the time
            return [_storable(each) for each in spans]
    return spans


def _storable(span: Span) -> Span:
    ids = ("trace_id", "span_id", "rollout_id", "attempt_id")
    check_text(**{name: getattr(span, name) for name in ids})
    check_ids(span_id=span.span_id)
    if span.parent_id is not None and not can_rest(span.parent_id):
        span = marked(replace(span, parent_id=None), [f"parent_id: {span.parent_id[:200]!a} is no id, and left out"])
    return span if can_rest(span.name) else replace(span, name=well_formed(span.name).replace(_NUL, REPLACEMENT))


def _unstorable(what: str, text: str) -> UsageError:
    why = "it has a NUL character" if _NUL in text else NO_CHARACTER
    return UsageError(f"{what} {text[:200]!a} cannot be stored: {why}")
