"""`differences`: where two answers are not the same to a program that reads them, field by field.

What is new in every answer (ids, times, token counts, log-probabilities, the words of an error) is compared by its kind
alone, and by whether equal ids stand in equal places. Knows nothing of any client.
"""

from collections.abc import Callable
from typing import Any, cast

Problem = str | None

IDS = frozenset({
    "id", "call_id", "item_id", "tool_call_id", "previous_response_id", "request_id", "_request_id", "requestId",
    "requestID", "responseId", "toolCallId", "tool_use_id", "itemId",
})  # fmt: skip
"""Strings whose beginning tells what they name."""
NOISE = frozenset({
    "system_fingerprint", "obfuscation", "message", "api_message", "detail", "encrypted_content", "signature",
    "reasoningEncryptedContent",
})  # fmt: skip
"""Strings that are anything but empty."""
TIMES = frozenset({"created", "created_at", "completed_at"})
COUNTS = frozenset({"cost", "total", "noCache", "cacheRead", "cacheWrite", "text", "reasoning"})
"""Further names of token counts, where their values are numbers."""
HEADERS = "headers"
"""Names of headers: those of a provider's that no client heeds may be absent."""
HEEDED = frozenset({"content-type", "retry-after", "x-request-id"})
LIKELIEST = "top_logprobs"
"""The model's own tokens: only their form is compared."""


def differences(seen: Any, expected: Any) -> list[str]:
    """One line for each place where `seen` is not what `expected` is; empty when no program could tell them apart."""
    return _Comparison().compare(seen, expected, "answer")


class _Comparison:
    """One comparison, which remembers the ids it met."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def compare(self, seen: Any, expected: Any, place: str, key: str = "", *, loose: bool = False) -> list[str]:
        """Compare two values that stand at `place`, under `key`; `loose` compares no strings."""
        if type(seen) is not type(expected):
            return [f"{place} is {_kind(seen)}, not {_kind(expected)}"]
        if isinstance(expected, dict):
            return self._fields(seen, cast("dict[str, Any]", expected), place, loose=loose)
        if key == HEADERS:
            found = [f"{place} names {name}" for name in sorted(set(seen) - set(expected))]
            return found + [f"{place} lacks {name}" for name in sorted((set(expected) & HEEDED) - set(seen))]
        if isinstance(expected, list):
            return self._items(seen, cast("list[Any]", expected), place, loose=loose or key == LIKELIEST)
        problem = self._rule(key, loose)(seen, expected)
        return [f"{place} {problem}"] if problem else []

    def _fields(self, seen: dict[str, Any], expected: dict[str, Any], place: str, *, loose: bool) -> list[str]:
        found = [f"{place}.{key} is missing" for key in expected.keys() - seen.keys()]
        found += [f"{place}.{key} is too much: {_kind(seen[key])}" for key in seen.keys() - expected.keys()]
        for key in expected:
            if key in seen:
                found += self.compare(seen[key], expected[key], f"{place}.{key}", key, loose=loose)
        return found

    def _items(self, seen: list[Any], expected: list[Any], place: str, *, loose: bool) -> list[str]:
        if loose and all(isinstance(item, int) for item in expected):  # the bytes of a token
            return [] if all(isinstance(item, int) for item in seen) else [f"{place} holds more than bytes"]
        found = [] if len(seen) == len(expected) else [f"{place} has {len(seen)} items, not {len(expected)}"]
        for number, (one, other) in enumerate(zip(seen, expected, strict=False)):
            found += self.compare(one, other, f"{place}[{number}]", loose=loose)
        return found

    def _rule(self, key: str, loose: bool) -> Callable[[Any, Any], Problem]:
        if key in IDS:
            return self._same_name
        if key in TIMES:
            return _both_times
        if key == "logprob":
            return _both_logprobs
        if key.endswith(("_tokens", "Tokens")) or key in COUNTS:
            return _both_counts
        return _both_said if loose or key in NOISE else _equal

    def _same_name(self, seen: Any, expected: Any) -> Problem:
        if not isinstance(seen, str):
            return _equal(seen, expected)
        if _beginning(seen) != _beginning(expected):
            return f"is {seen!r}, which does not begin as {expected!r} does"
        if self._names.setdefault(f"theirs {expected}", seen) != seen:
            return f"is {seen!r}, where it was {self._names[f'theirs {expected}']!r} before"
        if self._names.setdefault(f"ours {seen}", expected) != expected:
            return f"is {seen!r} again"
        return None


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if type(value) in (dict, list) else repr(value)[:80]


def _beginning(name: str) -> str:
    return name.replace("-", "_").partition("_")[0]


def _equal(seen: Any, expected: Any) -> Problem:
    return None if seen == expected else f"is {seen!r:.200}, not {expected!r:.200}"


def _both_said(seen: Any, expected: Any) -> Problem:
    if not isinstance(seen, str):
        return _equal(seen, expected)
    return None if bool(seen) == bool(expected) else f"is {seen!r}"


def _both_times(seen: Any, expected: Any) -> Problem:
    if not isinstance(seen, (int, float)):
        return _equal(seen, expected)
    return None if seen > 1e9 else f"is {seen!r}, which is no time like {expected!r}"


def _both_logprobs(seen: Any, expected: Any) -> Problem:
    return None if isinstance(seen, float) and seen <= 0 else f"is {seen!r}, which is no log-probability"


def _both_counts(seen: Any, expected: Any) -> Problem:
    if not isinstance(seen, (int, float)):
        return _equal(seen, expected)
    return None if (seen > 0) == (expected > 0) else f"is {seen!r}, where {expected!r} was counted"
