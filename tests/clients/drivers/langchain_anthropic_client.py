"""Drives `langchain-anthropic`: invoke, ainvoke, stream and astream of `ChatAnthropic`."""

import functools
import importlib
from typing import Any

import driver
from driver import Call

ChatAnthropic: Any = importlib.import_module("langchain_anthropic").ChatAnthropic  # not in the workspace

NOT_ITS_OWN = ("model", "messages", "system", "stream")


@functools.cache
def _model(setting: str, model: str, timeout: float, retries: int) -> Any:
    return ChatAnthropic(model_name=model, max_retries=retries, timeout=timeout, stop=None)


def _bound(call: Call) -> Any:
    own = {name: value for name, value in call.request.items() if name not in NOT_ITS_OWN}
    return _model(call.setting, call.request["model"], call.timeout, call.retries).bind(**own, **call.extra)


def _asked(call: Call) -> Any:
    system = call.request.get("system")
    return [*([{"role": "system", "content": system}] if system else []), *call.request["messages"]]


def _shown(message: Any) -> dict[str, Any]:
    return {"class": type(message).__name__, **message.model_dump(exclude_unset=True)}


def sync(call: Call) -> Any:
    """`invoke` and `stream`."""
    if not call.streams:
        return _shown(_bound(call).invoke(_asked(call)))
    answer = _bound(call).stream(_asked(call))
    return driver.events(call, answer, _shown, answer.close)


async def asynchronous(call: Call) -> Any:
    """`ainvoke` and `astream`."""
    if not call.streams:
        return _shown(await _bound(call).ainvoke(_asked(call)))
    answer = _bound(call).astream(_asked(call))
    return await driver.events_async(call, answer, _shown, answer.aclose)


if __name__ == "__main__":
    driver.run({"sync": sync, "async": asynchronous})
