"""Echoes of replaced texts: an answer of the Responses API repeats the instructions and tools of its request.

The agent gets its own texts back. The other APIs repeat nothing of a request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.prompts.request import Replacement

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EchoFilter:
    """Filter that puts the agent's own texts back into one answer; it returns each line of a stream once complete."""

    def __init__(self, replaced: Sequence[Replacement]) -> None:
        self._own = {
            role: {one.new: one.record.own for one in replaced if one.record.role == role}
            for role in ("system", "tool", "output")
        }
        self._part = b""

    def whole(self, body: bytes) -> bytes:
        """Return a complete answer, or the data of an event, with the agent's own texts."""
        try:
            fields = _decode(body)
            changed = self._restored(fields)
            if "response" in fields:
                answer = _decode(fields["response"])
                if of_answer := self._restored(answer):
                    changed = {**changed, "response": {**answer, **of_answer}}
        except UNREADABLE:
            return body
        return msgspec.json.encode({**fields, **changed}) if changed else body

    def push(self, data: bytes) -> bytes:
        """Add data of a stream; return its complete lines with the agent's own texts."""
        lines = (self._part + data).split(b"\n")
        self._part = lines.pop()
        return b"".join(self._line(line) + b"\n" for line in lines)

    def rest(self) -> bytes:
        """End the stream; return the remaining incomplete line."""
        part, self._part = self._part, b""
        return self._line(part)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:") or b'"response"' not in line:
            return line
        text = line[5:].strip()
        own = self.whole(text)
        return line if own is text else b"data: " + own + (b"\r" if line.endswith(b"\r") else b"")

    def _restored(self, answer: Mapping[str, msgspec.Raw]) -> dict[str, object]:
        """Return the fields of an answer that repeat a replaced text, with the agent's own."""
        found: dict[str, object] = {}
        for name, role in (("instructions", "system"), ("tools", "tool"), ("text", "output")):
            if name in answer and self._own[role]:
                value, changed = _with_own(msgspec.json.decode(answer[name]), self._own[role], top=True)
                if changed:
                    found[name] = value
        return found


def _with_own(value: Any, own: Mapping[str, str], *, top: bool = False) -> tuple[Any, bool]:
    """Return a value with the own texts for `description` in its objects, or for itself at the top."""
    if isinstance(value, str):
        return (own[value], True) if top and value in own else (value, False)
    if isinstance(value, list):
        pairs = [_with_own(member, own) for member in cast("list[Any]", value)]
        return [member for member, _ in pairs], any(changed for _, changed in pairs)
    if not isinstance(value, dict):
        return value, False
    fields = cast("dict[str, Any]", value)
    given = fields.get("description")
    described = given in own if isinstance(given, str) else False
    inner = _with_own(fields["format"], own) if "format" in fields else (None, False)
    new = {**fields, **({"format": inner[0]} if inner[1] else {})}
    return ({**new, "description": own[str(given)]} if described else new), described or inner[1]
