"""Text that stores accept: the same rules for every backend.

Ids and names from users are refused where they are not well-formed Unicode, or have a NUL, which PostgreSQL cannot
store. Span names come from running agents and cannot be corrected by the caller, so they are repaired instead.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from leyden.core.data.encoding.text import REPLACEMENT, is_well_formed, well_formed
from leyden.core.data.plain.spans import marked
from leyden.core.data.span import Span
from leyden.core.errors import UsageError

_NUL = "\0"
MOST_BYTES_OF_AN_ID = 800
"""Largest size of an id in bytes; three of them must fit into an index row of PostgreSQL."""
_ESCAPED = {"/": "%2F", "?": "%3F", "#": "%23", "@": "%40"}
"""Characters that end a URI's user name and password, and how they are written in it."""
_LONG = MOST_BYTES_OF_AN_ID // 4
"""Characters of a span's name and ids in all, above which an id may have too many bytes."""
_QUEUE = re.compile("[A-Za-z0-9._-]*")
NO_CHARACTER = "it has half of a surrogate pair, which is not a character"
"""Reason why text that is not well-formed cannot be stored."""


def can_be_stored(text: str) -> bool:
    """Whether an id or a name can be stored."""
    return _NUL not in text and is_well_formed(text)


def without_login(uri: str) -> str:
    """Return a URI without user name, password or token."""
    before, separator, rest = uri.rpartition("://")
    authority, slash, path = rest.partition("/")
    return before + separator + authority.rpartition("@")[2] + slash + path


def check_login(uri: str) -> None:
    """Raise UsageError for a URI whose user name or password has a character that must be escaped.

    Such a URI would be read as another host, database or option, and a message about that would show the password.
    """
    rest = uri.partition("://")[2]
    before = rest.partition("?")[0]
    login = before.rpartition("@")[0]
    if not login and "/" not in before:  # a ? within the password
        login = rest.rpartition("@")[0]
    if found := sorted({character for character in login if character in _ESCAPED}):
        shown = " and ".join(f"{character} as {_ESCAPED[character]}" for character in found)
        raise UsageError(f"the user name or the password in the store's URI must be escaped: write {shown}")


def check_text(**given: object) -> None:
    """Raise UsageError for an id or a name that cannot be stored; values that are no text are ignored.

    Each keyword is the name of a value in the message.
    """
    for what, text in given.items():
        if isinstance(text, str) and not can_be_stored(text):
            raise _unstorable(what, text)


def check_ids(**given: object) -> None:
    """Do `check_text` for ids that become keys; also raise UsageError above `MOST_BYTES_OF_AN_ID` bytes."""
    check_text(**given)
    for what, text in given.items():
        if isinstance(text, str) and len(text.encode()) > MOST_BYTES_OF_AN_ID:
            size = len(text.encode())
            message = f"{what} {text[:40]!a}… cannot be stored: it has {size} bytes"
            raise UsageError(f"{message}; an id may have at most {MOST_BYTES_OF_AN_ID}")


def check_texts(what: str, texts: Sequence[str]) -> None:
    """Do `check_text` for several texts of one kind."""
    for text in texts:
        check_text(**{what: text})


def check_queue(name: str) -> None:
    """Raise UsageError for an invalid name of a queue; the empty name is the usual queue."""
    if not name:
        return
    check_ids(queue=name)
    if not _QUEUE.fullmatch(name):
        raise UsageError(f"queue {name[:200]!a} is not a name; use only letters, digits, '.', '_' and '-'")


def storable(spans: Sequence[Span]) -> Sequence[Span]:
    """Return spans with storable names; other characters become `REPLACEMENT`. Raises UsageError for such an id.

    A parent id that cannot be stored is left out, since a span without a parent is complete.
    """
    for span in spans:
        text = f"{span.name}{span.trace_id}{span.span_id}{span.parent_id}{span.rollout_id}{span.attempt_id}"
        if (
            len(text) > _LONG or not text.isascii() or _NUL in text
        ):  # for nearly all spans, the result of `can_be_stored` in a third of the time
            return [_storable(each) for each in spans]
    return spans


def _storable(span: Span) -> Span:
    ids = ("trace_id", "span_id", "rollout_id", "attempt_id")
    check_text(**{name: getattr(span, name) for name in ids})
    check_ids(span_id=span.span_id)
    if span.parent_id is not None and not can_be_stored(span.parent_id):
        span = marked(
            replace(span, parent_id=None), [f"parent_id: {span.parent_id[:200]!a} is not an id and is left out"]
        )
    return span if can_be_stored(span.name) else replace(span, name=well_formed(span.name).replace(_NUL, REPLACEMENT))


def _unstorable(what: str, text: str) -> UsageError:
    why = "it has a NUL character" if _NUL in text else NO_CHARACTER
    return UsageError(f"{what} {text[:200]!a} cannot be stored: {why}")
