"""Terminal output: escapes control characters, so that a terminal shows them and does not execute them."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return `text` with control characters escaped, such as `\x1b`, except tabs and line ends.

    Line ends of Windows become `\n`.
    """
    return _CONTROL.sub(_escaped, text.replace("\r\n", "\n"))


def visible_in_json(encoded: str) -> str:
    r"""Return equivalent JSON with the control characters that JSON allows in strings escaped, such as `\u009b`."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def _escaped(found: "re.Match[str]") -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
