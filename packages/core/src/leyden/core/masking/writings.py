"""Escaped forms of a text: builds patterns that match a text in URLs, JSON, Python's `repr`, HTML and base64."""

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Sequence
from typing import NamedTuple

_AS_IS = re.compile(r"[A-Za-z0-9_.-]")
"""Characters that no form escapes."""
_MAX_BACKSLASHES = 8
"""Most backslashes before one character; each further level of quoting has twice as many plus one."""
_IN_HTML = {
    "&": ("amp", "#38"),
    "<": ("lt", "#60"),
    ">": ("gt", "#62"),
    '"': ("quot", "#34"),
    "'": ("apos", "#39", "#x27"),
}
_FIRST = "\\\\%&+\\r"
"""First characters of escaped characters, for a character class."""
_LETTERS = {"\n": "n", "\r": "r", "\t": "t"}


class Form(NamedTuple):
    """Pattern of one form of a text."""

    pattern: str
    first: str
    """Characters with which the form can begin, for a character class."""


def any_of(forms: Sequence[Form]) -> "re.Pattern[str] | None":
    """Return a pattern that matches the first form that fits; None without forms.

    At most positions, the pattern reads only one character, because no form can begin with it.
    """
    if not forms:
        return None
    first = "".join(sorted({form.first for form in forms}))
    return re.compile(f"(?=[{first}])(?:{'|'.join(form.pattern for form in forms)})")


def as_written(text: str) -> Form:
    """Return the form in which each character of `text` is literal or escaped as in URLs, JSON, `repr` or HTML."""
    runs = re.findall(r"\\+|[^\\]", text, re.DOTALL)
    pattern = "".join(re.escape(run) if _AS_IS.fullmatch(run) else _character(run) for run in runs)
    return Form(pattern, re.escape(text[0]) + ("" if _AS_IS.fullmatch(text[0]) else _FIRST))


def as_base64(text: str) -> Form:
    """Return the base64 form of `text`, also where other text after it was encoded together with it."""
    data = text.encode(errors="surrogatepass")
    whole = data[: len(data) // 3 * 3]
    forms = {re.escape(encode(whole).decode()) for encode in (b64encode, urlsafe_b64encode)}
    rest = "[A-Za-z0-9+/_-]{2,3}=?=?" if len(data) % 3 else ""
    return Form(f"(?:{'|'.join(sorted(forms))}){rest}", "".join(re.escape(form.lstrip("\\")[0]) for form in forms))


def _character(run: str) -> str:
    """Return the pattern of one character, or of several backslashes in a row."""
    if run[0] == "\\":
        return rf"(?:\\{{{len(run)},{len(run) * _MAX_BACKSLASHES}}}|(?:{_percent(run[0])}){{{len(run)}}})"
    forms = [
        rf"\\{{0,{_MAX_BACKSLASHES}}}{re.escape(run)}" if run in "\"'/" else re.escape(run),
        _percent(run),
        *_numbers(run),
    ]
    forms += [f"&{name};" for name in _IN_HTML.get(run, ())]
    if run in _LETTERS:
        forms.append(rf"\\{{1,{_MAX_BACKSLASHES}}}{_LETTERS[run]}")
    if run == "\n":
        forms += ["\r\n", rf"\\{{1,{_MAX_BACKSLASHES}}}r\\{{1,{_MAX_BACKSLASHES}}}n"]
    if run == " ":
        forms.append(re.escape("+"))
    return f"(?:{'|'.join(forms)})"


def _percent(character: str) -> str:
    """Return the pattern of a character in a URL, percent-encoded once or several times."""
    return "".join(rf"%(?:25){{0,3}}{_hex(byte, 2)}" for byte in character.encode(errors="surrogatepass"))


def _numbers(character: str) -> list[str]:
    """Return the patterns of a character's numeric escapes, in JSON and in `repr` of text and of bytes."""
    units = character.encode("utf-16-be", errors="surrogatepass")
    in_json = "".join(
        rf"\\{{1,{_MAX_BACKSLASHES}}}u{_hex(int.from_bytes(units[at : at + 2]), 4)}" for at in range(0, len(units), 2)
    )
    in_bytes = "".join(
        rf"\\{{1,{_MAX_BACKSLASHES}}}x{_hex(byte, 2)}" for byte in character.encode(errors="surrogatepass")
    )
    in_text = [rf"\\{{1,{_MAX_BACKSLASHES}}}x{_hex(ord(character), 2)}"] if 0x80 <= ord(character) <= 0xFF else []
    in_text += [rf"\\{{1,{_MAX_BACKSLASHES}}}U{_hex(ord(character), 8)}"] if ord(character) > 0xFFFF else []
    return [in_json, in_bytes, *in_text]


def _hex(number: int, digits: int) -> str:
    """Return the pattern of a hexadecimal number with `digits` digits, in lower or upper case."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{number:0{digits}x}")
