"""`json_line`: writes a value as one line of JSON, for a script or a person at a terminal."""

import msgspec

from leyden.core.masking import visible_in_json


def json_line(value: object) -> str:
    """Return `value` as JSON with a final newline, with every control character escaped."""
    return visible_in_json(msgspec.json.encode(value).decode()) + "\n"
