"""A conversation in Chat Completions."""

from collections.abc import Mapping, Sequence
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
    only_id,
    openai_choice_of_tool,
    question,
    refused_picture,
    too_long,
)
from campaign.formats import chat_format, named_schema
from campaign.plan import CallPlan


class Chat:
    """Chat Completions."""

    path = "/chat/completions"

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._called: list[str] = []
        """Ids of the tool calls of the last answer."""
        self._exchanges = 0

    def body(self, call: CallPlan) -> dict[str, Any]:
        """Return the request that makes `call`."""
        opening = {"role": "system", "content": f"You are {call.agent}."}
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [opening, *self._messages, *self._new_messages(call)],
            "max_tokens": call.max_tokens,
            "metadata": {"fault": call.fault},
            **given(temperature=call.temperature, top_p=call.top_p, seed=call.seed, stop=call.stop),
            **call.shaping,
            **chat_format(call.format),
        }
        if call.choices > 1:
            body["n"] = call.choices
        if call.logprobs:
            body |= {"logprobs": True, "top_logprobs": call.top_logprobs}
        if call.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if call.tools != "none":
            named = {"type": "function", "function": {"name": "calculator"}}
            strict = {"strict": True} if call.tools == "strict" else {}
            tools = [{"type": "function", "function": function | strict} for function in FUNCTIONS]
            body |= {"tools": tools, **openai_choice_of_tool(call, named)}
        return body | (_impossible(call, body) if call.fault == "refused" else {})

    def read(self, documents: Sequence[Document]) -> Answer | None:
        """Return the answer; None while some of it is missing. Raises BadAnswer."""
        check_errors(documents)
        if not documents:
            return None
        if documents[0].get("object") == "chat.completion":
            choices = [_plain_choice(choice) for choice in documents[0]["choices"]]
        else:
            choices = _streamed_choices(documents)
        used = documents[-1].get("usage")
        if used is None or not choices or any(choice.finish is None for choice in choices):
            return None
        tokens = (used["prompt_tokens"], used["completion_tokens"])
        prompt_ids = next((one["prompt_token_ids"] for one in documents if one.get("prompt_token_ids")), None)
        return Answer(id=only_id(documents), choices=choices, tokens=tokens, prompt_ids=prompt_ids)

    def continue_from(self, call: CallPlan, answer: Answer, used: int) -> None:
        """Repeat the choice in the next request, with a result for each of its tool calls."""
        self._exchanges += 1
        if self._exchanges == LONGEST:
            self._messages, self._called, self._exchanges = [], [], 0
            return
        choice = answer.choices[used]
        said: dict[str, Any] = {"role": "assistant", "content": choice.text or None}
        if choice.calls:
            said["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, name, arguments in choice.calls
            ]
        elif not choice.text:
            said["content"] = ""
        self._messages += [*self._new_messages(call), said]
        self._called = [id for id, _, _ in choice.calls]

    def _new_messages(self, call: CallPlan) -> list[dict[str, Any]]:
        """Return the results of the last answer's tool calls, and the user's message."""
        shown, asked = divided(call, self._called)
        results: list[dict[str, Any]] = [{"role": "tool", "tool_call_id": id, "content": "42"} for id in self._called]
        if shown:
            results[0]["content"] = _parts("42", [picture.url for picture in shown])
        content = _parts(question(call), [picture.url for picture in asked]) if asked else question(call)
        return [*results, {"role": "user", "content": content}]


def _parts(text: str, urls: Sequence[str]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]


def _impossible(call: CallPlan, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a request one that must be refused."""
    match call.refusal:
        case "too warm":
            return {"temperature": 3.0}
        case "no such tool":
            choice = {"type": "function", "function": {"name": "absent"}}
            return {"tools": body.get("tools", []), "tool_choice": choice}
        case "a schema":
            return {"response_format": named_schema(IMPOSSIBLE, strict=True)}
        case "an unknown field":
            return {"max_tokens_please": 3}
        case "an image":
            content = _parts(question(call), [refused_picture(call)])
            return {"messages": [*body["messages"][:-1], {"role": "user", "content": content}]}
        case _:
            return {"messages": [*body["messages"][:-1], {"role": "user", "content": too_long(call)}]}


def _plain_choice(choice: Document) -> Choice:
    message = choice["message"]
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return Choice(
        text=message["content"] or "",
        calls=calls,
        finish=choice["finish_reason"],
        logprobs=_shown(choice["logprobs"]),
        ids=choice.get("token_ids"),
    )


def _streamed_choices(documents: Sequence[Document]) -> list[Choice]:
    found: dict[int, _Streamed] = {}
    for choice in (choice for document in documents for choice in document["choices"]):
        found.setdefault(choice["index"], _Streamed()).take(choice)
    return [found[index].choice() for index in sorted(found)]


class _Streamed:
    """One choice while its events come in."""

    def __init__(self) -> None:
        self._text = ""
        self._calls: dict[int, list[str]] = {}
        self._finish: str | None = None
        self._logprobs: list[float] = []
        self._ids: list[int] | None = None

    def take(self, choice: Document) -> None:
        delta = choice["delta"]
        self._text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            known = self._calls.setdefault(call["index"], [call.get("id", ""), call["function"].get("name", ""), ""])
            known[2] += call["function"].get("arguments", "")
        self._finish = choice.get("finish_reason") or self._finish
        self._logprobs += _shown(choice.get("logprobs")) or ()
        self._ids = choice.get("token_ids", self._ids)

    def choice(self) -> Choice:
        calls = [(id, name, arguments) for id, name, arguments in self._calls.values()]
        return Choice(text=self._text, calls=calls, finish=self._finish, logprobs=self._logprobs or None, ids=self._ids)


def _shown(logprobs: Mapping[str, Any] | None) -> list[float] | None:
    content = logprobs["content"] if logprobs else None
    return [token["logprob"] for token in content] if content else None
