"""The path of a request in the one form that decisions are made on. Knows nothing of what a path means."""

from functools import lru_cache
from urllib.parse import unquote

ROUNDS = 8
"""So often is a path percent-decoded: servers and proxies in a row may each decode it once."""


@lru_cache(maxsize=4096)
def normalized(path: str) -> str:
    r"""Return `path` as a lenient server reads it, its letters' case kept: ids are told apart by it.

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
