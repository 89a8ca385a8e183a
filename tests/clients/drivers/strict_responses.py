"""A strict reader of the Responses API: it refuses every event, field, order and counter that the API does not promise.

Agents written in typed languages read answers so, and stop at the first surprise. It does not depend on the server.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Fields = Mapping[str, Any]

MESSAGE = {"id", "type", "status", "content", "role"}
ITEMS: Mapping[str, set[str]] = {
    "message": MESSAGE,
    "reasoning": {"id", "type", "summary", "content", "status"},
    "function_call": {"id", "type", "status", "arguments", "call_id", "name"},
}
OPTIONAL = {"reasoning": {"encrypted_content"}}
PARTS = {"output_text": {"type", "annotations", "logprobs", "text"}, "reasoning_text": {"type", "text"}}
PART_OF = {"message": "output_text", "reasoning": "reasoning_text"}
PLACE = {"item_id", "output_index"}
PART_PLACE = PLACE | {"content_index"}
EVENTS: Mapping[str, set[str]] = {
    "response.created": {"response"},
    "response.in_progress": {"response"},
    "response.output_item.added": {"item", "output_index"},
    "response.output_item.done": {"item", "output_index"},
    "response.content_part.added": PART_PLACE | {"part"},
    "response.content_part.done": PART_PLACE | {"part"},
    "response.output_text.delta": PART_PLACE | {"delta", "logprobs"},
    "response.output_text.done": PART_PLACE | {"text", "logprobs"},
    "response.reasoning_text.delta": PART_PLACE | {"delta"},
    "response.reasoning_text.done": PART_PLACE | {"text"},
    "response.function_call_arguments.delta": PLACE | {"delta"},
    "response.function_call_arguments.done": PLACE | {"arguments"},
    "response.completed": {"response"},
    "response.incomplete": {"response"},
}
LAST = {"response.completed": "completed", "response.incomplete": "incomplete"}
RESPONSE = {
    "id", "object", "created_at", "status", "background", "completed_at", "error", "frequency_penalty",
    "incomplete_details", "instructions", "max_output_tokens", "max_tool_calls", "model", "moderation", "output",
    "parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key", "prompt_cache_retention",
    "reasoning", "safety_identifier", "service_tier", "store", "temperature", "text", "tool_choice", "tools",
    "top_logprobs", "top_p", "truncation", "usage", "user", "metadata",
}  # fmt: skip
COUNTERS = {
    "input_tokens": None,
    "input_tokens_details": ("cached_tokens", "cache_write_tokens"),
    "output_tokens": None,
    "output_tokens_details": ("reasoning_tokens",),
    "total_tokens": None,
}


class Surprise(Exception):
    """What the API does not promise."""


def read_response(answer: Fields) -> dict[str, Any]:
    """Return a whole response; raises Surprise for one that the API does not promise."""
    _whole(answer, {"billing"})
    return dict(answer)


def read_stream(events: Iterable[Fields]) -> dict[str, Any]:
    """Return the response at the end of a stream; raises Surprise at the first event that the API does not promise."""
    reader = _Stream()
    for number, event in enumerate(events):
        _exact(event, EVENTS.get(event["type"]), {"type", "sequence_number"}, {"obfuscation"}, event["type"])
        if event["sequence_number"] != number:
            raise Surprise(f"event {number} has the number {event['sequence_number']}")
        reader.take(event)
    if reader.response is None:
        raise Surprise("the stream has no end")
    return dict(reader.response)


class _Stream:
    def __init__(self) -> None:
        self.response: Fields | None = None
        self._started = 0
        self._id = ""
        self._items: list[Fields] = []
        self._open: Fields | None = None
        self._pieces: list[str] = []
        self._stage = ""
        """The last event of the open item."""

    def take(self, event: Fields) -> None:
        kind: str = event["type"]
        _require(self.response is None, f"{kind} after the end")
        if self._started < 2:
            self._start(kind, event.get("response", {}))
        elif kind in LAST:
            self._end(kind, event["response"])
        elif kind == "response.output_item.added":
            self._add(event)
        else:
            _require(self._open is not None, f"{kind} without an open item")
            self._go_on(kind, event)

    def _start(self, kind: str, response: Fields) -> None:
        expected = ("response.created", "response.in_progress")[self._started]
        _require(kind == expected, f"{kind} in place of {expected}")
        _exact(response, RESPONSE, set(), set(), kind)
        _require((response["status"], response["output"], response["usage"]) == ("in_progress", [], None), kind)
        _require(not self._id or self._id == response["id"], "another id")
        self._id, self._started = response["id"], self._started + 1

    def _add(self, event: Fields) -> None:
        item = event["item"]
        _require(self._open is None, "an item within another")
        _require(event["output_index"] == len(self._items), f"an item at {event['output_index']}")
        _item(item)
        empty = item["arguments"] == "" if item["type"] == "function_call" else item["content"] == []
        _require(item["status"] == "in_progress" and empty, "an item that begins with content")
        self._open, self._pieces, self._stage = item, [], "added"

    def _go_on(self, kind: str, event: Fields) -> None:
        item = self._open
        assert item is not None
        if kind == "response.output_item.done":
            return self._close(event)
        place = (event["item_id"], event["output_index"], event.get("content_index", 0))
        _require(place == (item["id"], len(self._items), 0), f"{kind} at {place}")
        calls = item["type"] == "function_call"
        text = "function_call_arguments" if calls else PART_OF[item["type"]]
        step = kind.removeprefix("response.")
        before, after = {
            "content_part.added": (("added",), "part"),
            f"{text}.delta": (("added",) if calls else ("part", "delta"), "delta"),
            f"{text}.done": (("delta",) if calls else ("part", "delta"), "text"),
            "content_part.done": (("text",), "part done"),
        }.get(step, ((), ""))
        _require(self._stage in before, f"{kind} after {self._stage!r} of a {item['type']}")
        self._stage = after
        if "delta" in event:
            _require(bool(event["delta"]), f"{kind} that adds nothing")
            self._pieces.append(event["delta"])
        elif "part" in event:
            _part(event["part"], text)
            whole = "" if step.endswith("added") else "".join(self._pieces)
            _require(event["part"]["text"] == whole, f"{kind} with another text")
        else:
            _require(event["arguments" if calls else "text"] == "".join(self._pieces), f"{kind} with another text")

    def _close(self, event: Fields) -> None:
        item, opened = event["item"], self._open
        assert opened is not None
        calls = opened["type"] == "function_call"
        _require(self._stage == ("text" if calls else "part done"), f"an item that ends after {self._stage!r}")
        _item(item)
        _require((item["id"], event["output_index"]) == (opened["id"], len(self._items)), "another item's end")
        text = item["arguments"] if calls else "".join(part["text"] for part in item["content"])
        _require(text == "".join(self._pieces), "an item that ends with another text")
        self._items.append(item)
        self._open = None

    def _end(self, kind: str, response: Fields) -> None:
        _require(self._open is None, "an open item at the end")
        _whole(response)
        _require(response["id"] == self._id, "another id at the end")
        _require(response["status"] == LAST[kind], f"the status {response['status']} at the end")
        _require(response["output"] == self._items, "another output at the end")
        self.response = response


def _whole(response: Fields, more: Iterable[str] = ()) -> None:
    _exact(response, RESPONSE, set(more), set(), "response")
    _require(response["status"] in LAST.values(), f"the status {response['status']}")
    cut = response["status"] == "incomplete"
    _require((response["completed_at"] is None) == cut, "completed_at")
    _require((response["incomplete_details"] is not None) == cut, "incomplete_details")
    _require(response["error"] is None, "an error in an answer")
    _require(bool(response["output"]), "no output")
    for item in response["output"]:
        _item(item)
    _counters(response["usage"])


def _counters(usage: Fields | None) -> None:
    _require(usage is not None, "no counters at the end")
    assert usage is not None
    _exact(usage, set(COUNTERS), set(), set(), "usage")
    for name, details in COUNTERS.items():
        values = [usage[name]] if details is None else [usage[name][one] for one in details]
        _require(all(type(value) is int and value >= 0 for value in values), f"the counter {name}: {usage[name]}")
    _require(usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "a wrong total")
    _require(usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"], "more reasoning than tokens")


def _item(item: Fields) -> None:
    kind = item["type"]
    _exact(item, ITEMS.get(kind), set(), OPTIONAL.get(kind, set()), f"item {kind}")
    for part in item.get("content", ()):
        _part(part, PART_OF[kind])


def _part(part: Fields, kind: str) -> None:
    _require(part["type"] == kind, f"a part {part['type']}")
    _exact(part, PARTS[kind], set(), set(), f"part {kind}")


def _exact(given: Fields, fields: set[str] | None, more: set[str], optional: set[str], where: str) -> None:
    if fields is None:
        raise Surprise(f"{where} is not known")
    missing, unknown = (fields | more) - given.keys(), given.keys() - fields - more - optional
    _require(not missing, f"{where} lacks {sorted(missing)}")
    _require(not unknown, f"{where} has {sorted(unknown)}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Surprise(otherwise)
