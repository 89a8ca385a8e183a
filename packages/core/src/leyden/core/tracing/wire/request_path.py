"""Normalization of request paths. All routing decisions use the normalized form."""

from functools import lru_cache
from urllib.parse import unquote

ROUNDS = 8
"""Number of times that a path is percent-decoded. Several servers and proxies in a row may each decode it once."""


@lru_cache(maxsize=4096)
def normalized(path: str) -> str:
    r"""Return `path` as a lenient server interprets it. Letters keep their case, because ids depend on it.

    These are resolved or removed: percent encoding, `\`, double slashes, `.` and `..` segments, `;params`, and a
    trailing slash. Spaces and control characters at the ends of a segment are removed too.
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
