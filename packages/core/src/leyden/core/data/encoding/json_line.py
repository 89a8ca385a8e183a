"""`json_line`: a value as a line of JSON, for whoever reads the output: a script, or a person at a terminal."""

import msgspec

from leyden.core.masking import visible_in_json


def json_line(value: object) -> str:
    """Return `value` as JSON and a line's end, with no character in it that a terminal would obey."""
    return visible_in_json(msgspec.json.encode(value).decode()) + "\n"
