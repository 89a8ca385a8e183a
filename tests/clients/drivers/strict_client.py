"""Drives `httpx` with a strict reader of the Responses API, as agents in typed languages read it."""

import json
import os
from collections.abc import Iterator
from typing import Any

import driver
import httpx
from driver import STOP_AFTER, Call
from strict_responses import read_response, read_stream

PROVIDER = "https://api.openai.com/v1"


class Failed(Exception):
    """A status other than 200."""

    def __init__(self, status: int, sent: Any) -> None:
        super().__init__(f"status {status}")
        self.status, self.sent = status, sent


def strict(call: Call) -> Any:
    """`POST`, and a strict reading of what comes back; a failed server is tried once more where the plan says so."""
    for remaining in range(call.retries, -1, -1):
        try:
            return _once(call, call.retries - remaining)
        except Failed as failure:
            if not remaining or failure.status < 500:
                raise
    raise AssertionError("the last try returns or raises")


def _once(call: Call, tries: int) -> Any:
    url = os.environ.get("OPENAI_BASE_URL", PROVIDER) + call.endpoint
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "x-stainless-retry-count": str(tries)}
    body = {**call.request, **call.extra}
    with (
        httpx.Client(timeout=call.timeout) as client,
        client.stream("POST", url, json=body, headers=key) as response,
    ):
        if response.status_code != 200:
            raise Failed(response.status_code, json.loads(response.read()))
        if not call.streams:
            return read_response(json.loads(response.read()))
        events = _events(response)
        if call.turns_away:
            return {"begun": [event["type"] for event, _ in zip(events, range(STOP_AFTER), strict=False)]}
        seen = list(events)
        return {"events": seen, "final": read_stream(seen)}


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Events whose names are their types, two lines each."""
    lines = response.iter_lines()
    for name in lines:
        data, end = next(lines), next(lines)
        event = json.loads(data.removeprefix("data: "))
        assert (name, end) == (f"event: {event['type']}", ""), (name, end)
        yield event


if __name__ == "__main__":
    driver.run({"strict": strict})
