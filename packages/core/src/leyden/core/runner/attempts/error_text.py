"""Text for an exception of the user's code: one line with the message, the user's line that raised it, and advice."""

import re
import sys
import sysconfig
import traceback
from typing import cast

from leyden.core.data.plain.own_methods import short_name
from leyden.core.masking import mask_text
from leyden.core.tracing.patching.hidden_frames import HIDDEN
from leyden.core.tracing.wire.routing_decision import RequestStopped

LONGEST_TEXT = 600
"""Longest text of one error, in characters."""
MOST_ERRORS = 3
"""Number of errors of an exception group that the text names. It counts the rest."""
_NOISE = re.compile(r"\s*For further information visit \S+")
"""Pydantic ends each problem with this sentence, which is removed."""
_WANTS_KEY = re.compile(r"api[ _-]?key|credential|access[ _-]?token", re.IGNORECASE)
_MISSING = re.compile(r"missing|must|\bset\b|required|not found|did not find|\bno\b|KeyError", re.IGNORECASE)
_KEY_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN|SECRET)\b")
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(.+)", line \d+')
_OURS = (*sys.modules["leyden"].__path__, HIDDEN)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def described(error: BaseException) -> str:
    """Return the type and message of `error` on one line, with secrets masked.

    The errors inside an exception group take the place of the group. Never raises.
    """
    if isinstance(error, BaseExceptionGroup):
        found = _leaves(cast("BaseExceptionGroup[BaseException]", error))
        named = "; ".join(described(leaf) for leaf in found[:MOST_ERRORS])
        return f"{named}; and {len(found) - MOST_ERRORS} more" if len(found) > MOST_ERRORS else named
    name = short_name(error)
    try:
        text = _NOISE.sub("", error.msg if isinstance(error, SyntaxError) else str(error))
        notes = [str(note) for note in getattr(error, "__notes__", ())]
        text = " ".join(" ".join([text, *notes]).split())
    except BaseException as broken:  # the exception's own __str__ raised
        text = f"(its text cannot be read: {type(broken).__name__})"
    text = mask_text(text)  # masked before it is cut: half a secret no longer matches a pattern
    text = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    return f"{name}: {text}" if text else name


def raised(error: BaseException) -> str:
    """Return `described`, followed by the file and line that raised the error.

    It is the innermost line of the user's own code. Where there is none, it is the innermost line outside Leyden.
    """
    location = _location(error)
    return f"{described(error)} ({location[0]}, line {location[1]})" if location else described(error)


def user_place(error: BaseException) -> str:
    """Return the file and line of the innermost line of the user's own code in the traceback of `error`.

    The first error inside an exception group takes the place of the group. Empty where the traceback has no such line.
    """
    if isinstance(error, BaseExceptionGroup):
        error = _leaves(cast("BaseExceptionGroup[BaseException]", error))[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def user_stack(stack: str) -> str:
    """Return a traceback's text from the first line of the user's own code on; empty where it has none.

    The frames before it are those of Leyden and of libraries that call the agent. Frames of Leyden are left out
    everywhere.
    """
    kept: list[str] = []
    is_before, is_left_out, found = False, False, False
    for line in stack.splitlines():
        if line == _TRACEBACK:
            is_before, is_left_out = True, False
        elif (frame := _FRAME.match(line)) is not None:
            is_before = is_before and is_library(frame[1])
            is_left_out = is_before or frame[1].startswith(_OURS)
            found = found or not is_library(frame[1])
        elif not line.startswith(" "):
            is_before = is_left_out = False
        if not is_left_out:
            kept.append(line)
    return "\n".join(kept) if found else ""


def key_advice(text: str) -> str:
    """Return advice, as the end of a sentence, where `text` reports that a provider's key is missing.

    Empty otherwise.
    """
    variable = _KEY_VARIABLE.search(text)
    if not _MISSING.search(text) or (variable is None and not _WANTS_KEY.search(text)):
        return ""
    name = variable.group() if variable else "OPENAI_API_KEY"
    return (
        f"; if Leyden answers the agent's calls, any value works, such as {name}=unused: it is not sent to a provider"
    )


def with_key_advice(text: str) -> str:
    """Return `text` without its final full stop, followed by `key_advice`."""
    text = text.rstrip(".")
    return text + key_advice(text)


def import_advice(error: BaseException) -> str:
    """Return advice, as the end of a sentence, on an import that fails because of code it runs.

    Empty where there is no advice.
    """
    if isinstance(error, EOFError):
        return (
            "; it reads standard input while it is imported, and there is no input: read an environment variable "
            "instead"
        )
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, RequestStopped):
            return "; it calls its model while it is imported: call the model in the agent's function"
        cause = cause.__cause__ or cause.__context__
    return ""


def _leaves(group: "BaseExceptionGroup[BaseException]") -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])  # pyright: ignore[reportUnknownArgumentType]  # the type of a nested group's errors
    return found


def _location(error: BaseException) -> tuple[str, int | None] | None:
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    if isinstance(error, BaseExceptionGroup):
        return _location(_leaves(cast("BaseExceptionGroup[BaseException]", error))[0])
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not is_library(frame.filename)]
    foreign_frames = [frame for frame in frames if not frame.filename.startswith((*_OURS, "<frozen importlib"))]
    last = (user_frames or foreign_frames or [None])[-1]
    return None if last is None else (last.filename, last.lineno)


def is_library(filename: str) -> bool:
    """Return whether a file belongs to Python, an installed library or Leyden, rather than to the user."""
    return filename.startswith(("<frozen", *_OURS, *_INSTALLED))
