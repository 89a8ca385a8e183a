"""Anthropic's Messages as an agent speaks it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from campaign.formats import messages_format
from campaign.plan import CallPlan
from campaign.talk import (
    FUNCTIONS,
    IMPOSSIBLE,
    LONGEST,
    MODEL,
    Answer,
    Choice,
    Document,
    check_errors,
    given,
    question,
    too_long,
)

FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
"""A call has no entry: whether Chat Completions calls it `stop` depends on whether it was forced."""


class MessagesTalk:
    """Messages."""

    path = "/messages"

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._results: list[dict[str, Any]] = []
        self._exchanges = 0

    def body(self, call: CallPlan) -> dict[str, Any]:
        """Return the request that makes `call`."""
        stop = None if call.stop is None or not call.stop.strip() else [call.stop]
        body: dict[str, Any] = {
            "model": MODEL,
            "system": f"You are {call.agent}.",
            "messages": [*self._messages, self._asked(question(call)["content"])],
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

    def went_on(self, call: CallPlan, answer: Answer, used: int) -> None:
        """Repeat the answer in the next request, with a result for each of its calls."""
        self._exchanges += 1
        asked = self._asked(question(call)["content"])
        if self._exchanges == LONGEST:
            self._messages, self._results, self._exchanges = [], [], 0
            return
        choice = answer.choices[used]
        said: list[dict[str, Any]] = [{"type": "text", "text": choice.text}] if choice.text.strip() else []
        said += [
            {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
            for id, name, arguments in choice.calls
        ]
        self._messages += [asked, {"role": "assistant", "content": said or [{"type": "text", "text": "Well."}]}]
        self._results = [{"type": "tool_result", "tool_use_id": id, "content": "42"} for id, _, _ in choice.calls]

    def _asked(self, text: str) -> dict[str, Any]:
        return {"role": "user", "content": [*self._results, {"type": "text", "text": text}]}

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
            case _:
                return {"messages": [*body["messages"][:-1], self._asked(too_long(call))]}


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
