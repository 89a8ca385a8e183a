"""Importing this has OpenAI's SDK build, once for all forks, what it builds at its first calls: half a second each."""

import json
from typing import Any

import httpx
from openai import OpenAI

from zoo_harness.script import Answer, ToolCall
from zoo_harness.wire import chat_answer, chat_events, response_answer, response_events

ANSWERS = (Answer(text="a text"), Answer(calls=(ToolCall(name="a_tool", arguments={"a": 1}),)))


def _answered(request: httpx.Request) -> httpx.Response:
    body: dict[str, Any] = json.loads(request.content)
    answer: Answer = ANSWERS[int(body["metadata"]["answer"] == "tool")]
    is_chat = request.url.path.endswith("/chat/completions")
    if body.get("stream"):
        events = chat_events(body, answer, 0) if is_chat else response_events(body, answer, 0)
        return httpx.Response(200, content=b"".join(events), headers={"content-type": "text/event-stream"})
    return httpx.Response(200, json=chat_answer(body, answer, 0) if is_chat else response_answer(body, answer, 0))


def _rehearse() -> None:
    client = OpenAI(
        api_key="none", base_url="http://localhost", http_client=httpx.Client(transport=httpx.MockTransport(_answered))
    )
    for kind in ("text", "tool"):
        for stream in (False, True):
            said: Any = {"model": "none", "metadata": {"answer": kind}, "stream": stream}
            answers: list[Any] = [
                client.chat.completions.create(messages=[{"role": "user", "content": "a"}], **said),
                client.responses.create(input="a", **said),
            ]
            for answered in answers if stream else ():
                list(answered)


_rehearse()
