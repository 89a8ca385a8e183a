"""Drives `anthropic`: sync, async, its stream manager, and its raw responses."""

import functools
from typing import Any

import anthropic
import driver
from driver import Call


@functools.cache
def _sync(setting: str) -> Any:
    return anthropic.Anthropic(max_retries=0)


@functools.cache
def _async(setting: str) -> Any:
    return anthropic.AsyncAnthropic(max_retries=0)


def _messages(client: Any, call: Call) -> Any:
    return client.with_options(max_retries=call.retries).messages


def sync(call: Call) -> Any:
    """`create`."""
    return driver.create(call, _messages(_sync(call.setting), call))


async def asynchronous(call: Call) -> Any:
    """`await create`."""
    return await driver.create_async(call, _messages(_async(call.setting), call))


def managed(call: Call) -> Any:
    """`stream`, which puts the pieces together and names what they add."""
    if not call.streams or call.turns_away:
        return None
    arguments = {name: value for name, value in driver.arguments(call).items() if name != "stream"}
    with _messages(_sync(call.setting), call).stream(**arguments) as stream:
        events = [event.type for event in stream]
        return {"types": events, "final": driver.shown(stream.get_final_message())}


def raw(call: Call) -> Any:
    """`with_raw_response`, which shows status and headers."""
    if call.streams:
        return None
    answer = _messages(_sync(call.setting), call).with_raw_response.create(**driver.arguments(call))
    return {"status": answer.status_code, "type": answer.headers["content-type"], "body": answer.http_response.json()}


if __name__ == "__main__":
    driver.run({"sync": sync, "async": asynchronous, "managed": managed, "raw": raw})
