"""Drives `langchain-openai`: invoke, ainvoke, stream and astream of `ChatOpenAI`."""

import functools
from typing import Any

import driver
from driver import Call
from langchain_openai import ChatOpenAI

NOT_ITS_OWN = ("model", "messages", "input", "stream", "stream_options")


@functools.cache
def _model(setting: str, model: str, timeout: float, stream_usage: bool, use_responses_api: bool, retries: int) -> Any:
    return ChatOpenAI(
        model=model,
        max_retries=retries,
        timeout=timeout,
        stream_usage=stream_usage,
        use_responses_api=use_responses_api,
    )


def _bound(call: Call) -> Any:
    own = {name: value for name, value in call.request.items() if name not in NOT_ITS_OWN}
    counted = bool(call.request.get("stream_options", {}).get("include_usage"))
    model = _model(
        call.setting, call.request["model"], call.timeout, counted, call.endpoint == "/responses", call.retries
    )
    return model.bind(**own, **({"extra_body": call.extra} if call.extra else {}))


def _asked(call: Call) -> Any:
    return call.request.get("messages") or call.request["input"]


def _shown(message: Any) -> dict[str, Any]:
    return {"class": type(message).__name__, **message.model_dump(exclude_unset=True)}


def sync(call: Call) -> Any:
    """`invoke` and `stream`."""
    if "n" in call.request:
        return None
    if not call.streams:
        return _shown(_bound(call).invoke(_asked(call)))
    answer = _bound(call).stream(_asked(call))
    return driver.events(call, answer, _shown, answer.close)


async def asynchronous(call: Call) -> Any:
    """`ainvoke` and `astream`."""
    if "n" in call.request:
        return None
    if not call.streams:
        return _shown(await _bound(call).ainvoke(_asked(call)))
    answer = _bound(call).astream(_asked(call))
    return await driver.events_async(call, answer, _shown, answer.aclose)


if __name__ == "__main__":
    driver.run({"sync": sync, "async": asynchronous})
