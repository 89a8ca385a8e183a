"""Normalizes the path of a request: decisions are made on this form alone."""

from functools import lru_cache
from urllib.parse import unquote

ROUNDS = 8
"""So often is a path percent-decoded: servers and proxies in a row may each decode it once."""


@lru_cache(maxsize=4096)
def normalized(path: str) -> str:
    r"""Return `path` as a lenient server reads it, its letters' case kept: ids depend on it.

    Percent encoding, `\`, double slashes, `.` and `..` segments, `;params`, spaces and control characters at a
    segment's ends and a trailing slash are resolved or left out.
    """
    for _ in range(ROUNDS):
        decoded = unquote(path)
        if decoded == path:
            break
        path = decoded
    segments: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        segment = "".join(letter for letter in part.split(";")[0] if letter.isprintable()).strip()
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)
