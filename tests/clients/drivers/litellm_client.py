"""Drives `litellm`: sync, async over `aiohttp` (its default), and async over `httpx`."""

import importlib
import json
import os
from typing import Any

import driver
from driver import Call

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm: Any = importlib.import_module("litellm")  # not among what the workspace installs
litellm.suppress_debug_info = True
litellm.telemetry = False


def _arguments(call: Call) -> dict[str, Any]:
    model = f"openai/{call.request['model']}"
    more: dict[str, Any] = {"extra_body": call.extra} if call.extra else {}
    if call.streams and call.endpoint == "/chat/completions":
        # Left to itself it counts tokens where no base URL is set, and does not where one is.
        more["stream_options"] = call.request.get("stream_options", {"include_usage": False})
    return {**call.request, "model": model, "timeout": call.timeout, "max_retries": call.retries, **more}


def _shown(value: Any) -> dict[str, Any]:
    return {"class": type(value).__name__, **value.model_dump(exclude_unset=True)}


def sync(call: Call) -> Any:
    """`completion` and `responses`."""
    if call.endpoint == "/messages":
        return None
    ask = litellm.responses if call.endpoint == "/responses" else litellm.completion
    answer = ask(**_arguments(call))
    if not call.streams:
        return _shown(answer)
    return driver.events(
        call,
        answer,
        _shown,
        lambda: (answer.response if call.endpoint == "/responses" else answer.completion_stream).close(),
    )


async def _messages(call: Call) -> Any:
    """`anthropic_messages`, which passes the events of a stream on as bytes."""
    model = f"anthropic/{call.request['model']}"
    more = {"extra_body": call.extra} if call.extra else {}
    request = {**call.request, "model": model, "timeout": call.timeout, "num_retries": call.retries, **more}
    answer = await litellm.anthropic_messages(**request)
    if not call.streams:
        return dict(answer)
    pieces: list[bytes] = []
    async for piece in answer:
        pieces.append(piece)
        if call.turns_away and len(pieces) == driver.STOP_AFTER:
            await answer.aclose()
            break
    data = [line for line in b"".join(pieces).decode().split("\n") if line.startswith("data: ")]
    return {"events": [json.loads(line.removeprefix("data: ")) for line in data]}


async def _asynchronous(call: Call) -> Any:
    if call.endpoint == "/messages":
        return await _messages(call)
    ask = litellm.aresponses if call.endpoint == "/responses" else litellm.acompletion
    answer = await ask(**_arguments(call))
    if not call.streams:
        return _shown(answer)
    return await driver.events_async(
        call,
        answer,
        _shown,
        lambda: answer.response.aclose() if call.endpoint == "/responses" else answer.completion_stream.close(),
    )


async def over_aiohttp(call: Call) -> Any:
    """`acompletion` and `aresponses`, as they are."""
    _use_aiohttp(True)
    return await _asynchronous(call)


async def over_httpx(call: Call) -> Any:
    """`acompletion` and `aresponses`, without `aiohttp`."""
    _use_aiohttp(False)
    return await _asynchronous(call)


def _use_aiohttp(use: bool) -> None:
    if litellm.disable_aiohttp_transport is use:
        litellm.disable_aiohttp_transport = not use
        litellm.in_memory_llm_clients_cache.flush_cache()


if __name__ == "__main__":
    driver.run({"sync": sync, "aiohttp": over_aiohttp, "httpx": over_httpx})
