"""Drives `openai` 2.x and 3.x: sync, async, its stream managers, and its raw responses."""

import functools
from typing import Any

import driver
import openai
from driver import Call


@functools.cache
def _sync(setting: str) -> Any:
    return openai.OpenAI(max_retries=0)


@functools.cache
def _async(setting: str) -> Any:
    return openai.AsyncOpenAI(max_retries=0)


def _resource(client: Any, call: Call) -> Any:
    client = client.with_options(max_retries=call.retries)
    return client.responses if call.endpoint == "/responses" else client.chat.completions


def sync(call: Call) -> Any:
    """`create`."""
    return driver.create(call, _resource(_sync(call.setting), call))


async def asynchronous(call: Call) -> Any:
    """`await create`."""
    return await driver.create_async(call, _resource(_async(call.setting), call))


def managed(call: Call) -> Any:
    """`stream`, which puts the pieces together and names what they add."""
    if not call.streams or call.turns_away:
        return None
    arguments = {name: value for name, value in driver.arguments(call).items() if name != "stream"}
    with _resource(_sync(call.setting), call).stream(**arguments) as stream:
        events = [event.type for event in stream]
        if events[-1] == "response.incomplete":  # it has no final response then
            return {"types": events}
        final = stream.get_final_response() if call.endpoint == "/responses" else stream.get_final_completion()
    return {"types": events, "final": driver.shown(final)}


def raw(call: Call) -> Any:
    """`with_raw_response`, which shows status and headers."""
    if call.streams or call.name.startswith("cancel"):
        return None
    answer = _resource(_sync(call.setting), call).with_raw_response.create(**driver.arguments(call))
    return {"status": answer.status_code, "type": answer.headers["content-type"], "body": answer.http_response.json()}


if __name__ == "__main__":
    driver.run({"sync": sync, "async": asynchronous, "managed": managed, "raw": raw})
