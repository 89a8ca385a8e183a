"""Echoes of replaced texts: an answer of the Responses API repeats the instructions and tools of its request.

The agent gets its own texts back. The other APIs repeat nothing of a request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from leyden.core.data.prompts.places import PromptText, format_texts, joined_without_images, system_texts, tool_texts
from leyden.core.gateway.model_request import UNREADABLE
from leyden.core.gateway.prompts.request import Replacement

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EchoFilter:
    """Filter that puts the agent's own texts back into one answer; it returns each line of a stream once complete."""

    def __init__(self, replaced: Sequence[Replacement]) -> None:
        self._own = {(one.record.place, one.new): one.record.own for one in replaced}
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
        """Return the fields of an answer that repeat a replaced text, with the agent's own.

        Two places may have the same new text, so a text is the echo of the one at its own place.
        """
        found: dict[str, object] = {}
        for name, texts_of in _ECHOED.items():
            if name in answer:
                holder: dict[str, Any] = {name: msgspec.json.decode(answer[name])}
                own = [(text, self._own.get((text.place, text.text))) for text in texts_of(holder)]
                for text, put_back in own:
                    if put_back is not None:
                        text.put(put_back)
                        found[name] = holder[name]
        return found


def _instructions(holder: dict[str, Any]) -> Iterable[PromptText]:
    return system_texts(holder, "instructions", joined_without_images)


def _tools(holder: dict[str, Any]) -> Iterable[PromptText]:
    tools = holder["tools"]
    return tool_texts(cast("list[Any]", tools)) if isinstance(tools, list) else ()


_ECHOED: Mapping[str, Callable[[dict[str, Any]], Iterable[PromptText]]] = {
    "instructions": _instructions,
    "tools": _tools,
    "text": format_texts,
}
"""Functions for the fields of an answer that repeat texts of its request."""
