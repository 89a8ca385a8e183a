"""A conversation in the Responses API: each request continues from the stored answer before it."""

from collections.abc import Mapping, Sequence
from typing import Any

from campaign.dialects.conversation import (
    FUNCTIONS,
    IMPOSSIBLE,
    LONGEST,
    MODEL,
    Answer,
    BadAnswer,
    Choice,
    Document,
    check_errors,
    divided,
    given,
    openai_choice_of_tool,
    question,
    refused_picture,
    too_long,
)
from campaign.formats import named_schema, text_format
from campaign.plan import CallPlan


class Responses:
    """Responses, each request going on from the stored answer before it."""

    path = "/responses"

    def __init__(self) -> None:
        self._previous: str | None = None
        self._called: list[str] = []
        """Ids of the tool calls of the last answer."""
        self._exchanges = 0

    def body(self, call: CallPlan) -> dict[str, Any]:
        """Return the request that makes `call`."""
        body: dict[str, Any] = {
            "model": MODEL,
            "instructions": f"You are {call.agent}.",
            "input": self._new_items(call),
            "max_output_tokens": call.max_tokens,
            "metadata": {"fault": call.fault},
            **given(temperature=call.temperature, top_p=call.top_p, previous_response_id=self._previous),
            **text_format(call.format),
        }
        if call.logprobs:
            body |= {"include": ["message.output_text.logprobs"], "top_logprobs": call.top_logprobs}
        if call.stream:
            body["stream"] = True
        if call.tools != "none":
            tools = [{"type": "function", "strict": call.tools == "strict", **function} for function in FUNCTIONS]
            body |= {"tools": tools, **openai_choice_of_tool(call, {"type": "function", "name": "calculator"})}
        return body | (_impossible(call, body) if call.fault == "refused" else {})

    def read(self, documents: Sequence[Document]) -> Answer | None:
        """Return the answer; None while some of it is missing. Raises BadAnswer."""
        check_errors(documents)
        last = documents[-1] if documents else {}
        whole: dict[str, Any] = last.get("response", last)
        if whole.get("status") not in ("completed", "incomplete"):
            return None
        texts = [part for item in whole["output"] if item["type"] == "message" for part in item["content"]]
        text = "".join(part["text"] for part in texts)
        deltas = [event["delta"] for event in documents if event.get("type") == "response.output_text.delta"]
        if "response" in last and "".join(deltas) != text:
            raise BadAnswer(f"the events say {''.join(deltas)!r}, the whole answer {text!r}")
        calls = [(i["call_id"], i["name"], i["arguments"]) for i in whole["output"] if i["type"] == "function_call"]
        shown = [token["logprob"] for part in texts for token in part.get("logprobs") or ()]
        tokens = (whole["usage"]["input_tokens"], whole["usage"]["output_tokens"])
        finish = "length" if whole["status"] == "incomplete" else None
        choice = Choice(text=text, calls=calls, finish=finish, logprobs=shown or None)
        return Answer(id=whole["id"], choices=[choice], tokens=tokens)

    def continue_from(self, call: CallPlan, answer: Answer, used: int) -> None:
        """Name the answer in the next request, with a result for each of its tool calls."""
        self._exchanges += 1
        if self._exchanges == LONGEST:
            self._previous, self._called, self._exchanges = None, [], 0
            return
        self._previous = answer.id
        self._called = [id for id, _, _ in answer.choices[used].calls]

    def _new_items(self, call: CallPlan) -> list[dict[str, Any]]:
        """Return the results of the last answer's tool calls, and the user's message."""
        shown, asked = divided(call, self._called)
        results: list[dict[str, Any]] = [
            {"type": "function_call_output", "call_id": id, "output": "42"} for id in self._called
        ]
        if shown:
            results[0]["output"] = _parts("42", [picture.url for picture in shown])
        content = _parts(question(call), [picture.url for picture in asked]) if asked else question(call)
        return [*results, {"role": "user", "content": content}]


def _parts(text: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    images = [{"type": "input_image", "image_url": url, "detail": "auto"} for url in urls]
    return [{"type": "input_text", "text": text}, *images]


def _impossible(call: CallPlan, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a request one that must be refused."""
    match call.refusal:
        case "too warm":
            return {"temperature": 3.0}
        case "no such tool":
            return {"tools": body.get("tools", []), "tool_choice": {"type": "function", "name": "absent"}}
        case "a schema":
            named = named_schema(IMPOSSIBLE, strict=True)
            return {"text": {"format": {"type": "json_schema", **named["json_schema"]}}}
        case "an unknown field":
            return {"max_tokens_please": 3}
        case "an image":
            content = _parts(question(call), [refused_picture(call)])
            return {"input": [*body["input"][:-1], {"role": "user", "content": content}]}
        case _:
            return {"input": [*body["input"][:-1], {"role": "user", "content": too_long(call)}]}
