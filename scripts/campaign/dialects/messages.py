"""A conversation in Anthropic's Messages API."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from campaign.dialects.conversation import (
    FUNCTIONS,
    IMPOSSIBLE,
    LONGEST,
    MODEL,
    Answer,
    Choice,
    Document,
    check_errors,
    divided,
    given,
    question,
    refused_picture,
    too_long,
)
from campaign.formats import messages_format
from campaign.pictures import Picture
from campaign.plan import CallPlan

FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
"""A call has no entry: whether Chat Completions calls it `stop` depends on whether it was forced."""


class Messages:
    """Messages."""

    path = "/messages"

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._called: list[str] = []
        """Ids of the tool calls of the last answer."""
        self._exchanges = 0

    def body(self, call: CallPlan) -> dict[str, Any]:
        """Return the request that makes `call`."""
        stop = None if call.stop is None or not call.stop.strip() else [call.stop]
        body: dict[str, Any] = {
            "model": MODEL,
            "system": f"You are {call.agent}.",
            "messages": [*self._messages, self._new_message(call)],
            "max_tokens": call.max_tokens,
            "metadata": {"fault": call.fault},
            **given(temperature=call.temperature, top_p=call.top_p, stop_sequences=stop),
            **call.shaping,
            **messages_format(call.format),
        }
        if call.stream:
            body["stream"] = True
        if call.tools != "none":
            body |= {"tools": [_tool(function, call) for function in FUNCTIONS], **_choice_of_tool(call)}
        return body | (self._impossible(call, body) if call.fault == "refused" else {})

    def read(self, documents: Sequence[Document]) -> Answer | None:
        """Return the answer; None while some of it is missing. Raises BadAnswer."""
        check_errors(documents)
        if not documents:
            return None
        whole = documents[0] if documents[0]["type"] == "message" else _merged(documents)
        if whole is None:
            return None
        blocks: list[Document] = whole["content"]
        calls = [
            (block["id"], block["name"], canonical(json.dumps(block["input"])))
            for block in blocks
            if block["type"] == "tool_use"
        ]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        used = whole["usage"]
        choice = Choice(text=text, calls=calls, finish=FINISH.get(whole["stop_reason"]))
        return Answer(id=whole["id"], choices=[choice], tokens=(used["input_tokens"], used["output_tokens"]))

    def continue_from(self, call: CallPlan, answer: Answer, used: int) -> None:
        """Repeat the answer in the next request, with a result for each of its tool calls."""
        self._exchanges += 1
        asked = self._new_message(call)
        if self._exchanges == LONGEST:
            self._messages, self._called, self._exchanges = [], [], 0
            return
        choice = answer.choices[used]
        said: list[dict[str, Any]] = [{"type": "text", "text": choice.text}] if choice.text.strip() else []
        said += [
            {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
            for id, name, arguments in choice.calls
        ]
        self._messages += [asked, {"role": "assistant", "content": said or [{"type": "text", "text": "Well."}]}]
        self._called = [id for id, _, _ in choice.calls]

    def _new_message(self, call: CallPlan) -> dict[str, Any]:
        shown, asked = divided(call, self._called)
        return self._user_message(question(call), map(_image, shown), map(_image, asked))

    def _user_message(
        self, text: str, shown: Iterable[dict[str, Any]] = (), asked: Iterable[dict[str, Any]] = ()
    ) -> dict[str, Any]:
        """Return the results of the last answer's tool calls, the first with images, and what the user sends."""
        results: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": id, "content": "42"} for id in self._called
        ]
        if images := list(shown):
            results[0]["content"] = [{"type": "text", "text": "42"}, *images]
        return {"role": "user", "content": [*results, {"type": "text", "text": text}, *asked]}

    def _impossible(self, call: CallPlan, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what makes a request one that must be refused."""
        match call.refusal:
            case "too warm":
                return {"temperature": 3.0}
            case "no such tool":
                return {"tools": body.get("tools", []), "tool_choice": {"type": "tool", "name": "absent"}}
            case "a schema":
                return {"output_config": {"format": {"type": "json_schema", "schema": IMPOSSIBLE}}}
            case "an unknown field":
                return {"max_tokens_please": 3}
            case "an image":
                source = {"type": "url", "url": refused_picture(call)}
                message = self._user_message(question(call), asked=[{"type": "image", "source": source}])
                return {"messages": [*body["messages"][:-1], message]}
            case _:
                return {"messages": [*body["messages"][:-1], self._user_message(too_long(call))]}


def _image(picture: Picture) -> dict[str, Any]:
    source = {"type": "base64", "media_type": picture.media_type, "data": picture.base64}
    return {"type": "image", "source": source}


def canonical(arguments: str) -> str:
    """Return the arguments of a call as this dialect has them: always an object, in one way of writing."""
    try:
        found: object = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        found = None
    return json.dumps(found if isinstance(found, dict) else {"INVALID_JSON": arguments}, sort_keys=True)


def _merged(events: Sequence[Document]) -> Document | None:
    """Return the message that the events of a stream are about; None before its end."""
    if events[-1]["type"] != "message_stop":
        return None
    whole: Document = {}
    blocks: dict[int, Document] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                whole = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = {"json": "", **event["content_block"]}
            case "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                block["json"] += delta.get("partial_json", "")
                if "text" in delta:
                    block["text"] += delta["text"]
            case "message_delta":
                whole |= {"stop_reason": event["delta"]["stop_reason"], "usage": whole["usage"] | event["usage"]}
            case _:
                pass
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return whole | {"content": [blocks[index] for index in sorted(blocks)]}


def _tool(function: Mapping[str, Any], call: CallPlan) -> dict[str, Any]:
    fields = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
    return fields | ({"strict": True} if call.tools == "strict" else {})


def _choice_of_tool(call: CallPlan) -> dict[str, Any]:
    match call.tools:
        case "required" | "strict":
            return {"tool_choice": {"type": "any"}}
        case "named":
            return {"tool_choice": {"type": "tool", "name": "calculator"}}
        case "one at a time":
            return {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
        case _:
            return {}
