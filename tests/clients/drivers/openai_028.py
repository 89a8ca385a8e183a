"""Drives `openai` 0.28: over `requests`, and over `aiohttp`."""

import importlib
import os
from typing import Any

import driver
from driver import Call

openai: Any = importlib.import_module("openai")  # another version is what the workspace knows the types of


def _arguments(call: Call) -> dict[str, Any]:
    key, base = os.environ["OPENAI_API_KEY"], os.environ.get("OPENAI_API_BASE") or "https://api.openai.com/v1"
    return {**call.request, **call.extra, "api_key": key, "api_base": base, "request_timeout": call.timeout}


def _shown(event: Any) -> Any:
    return event.to_dict_recursive()


def sync(call: Call) -> Any:
    """`create`."""
    if call.endpoint != "/chat/completions":
        return None
    answer = openai.ChatCompletion.create(**_arguments(call))
    if not call.streams:
        return _shown(answer)
    return driver.events(call, answer, _shown, answer.close)


async def asynchronous(call: Call) -> Any:
    """`acreate`."""
    if call.endpoint != "/chat/completions":
        return None
    answer = await openai.ChatCompletion.acreate(**_arguments(call))
    if not call.streams:
        return _shown(answer)
    return await driver.events_async(call, answer, _shown, answer.aclose)


if __name__ == "__main__":
    driver.run({"sync": sync, "async": asynchronous})
