"""Runs a plan of calls with one client library, in that library's own environment, and prints what it saw.

A plan comes in as JSON: `settings` (where the calls go) and `exchanges` (what to ask). Each line that goes out is one
call as the client saw it. Knows nothing of any client; a driver beside this file says how its client calls.
"""

import asyncio
import contextvars
import inspect
import json
import os
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STOP_AFTER = 3
"""Events that a client reads of a stream before it turns away."""
TIMEOUT = 1.0
"""Seconds that a client waits for an answer that takes longer."""
NOT_SEEN = ("args", "request", "response", "headers", "http_body", "litellm_response_headers")
"""What an exception holds besides what it says: whole objects, and the body that is shown read."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call to make."""

    setting: str
    """What a client can be kept for: calls of one setting go to one place, with one key."""
    name: str
    endpoint: str
    request: dict[str, Any]
    extra: dict[str, Any]

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream."""
        return bool(self.request.get("stream"))

    @property
    def turns_away(self) -> bool:
        """Whether the client goes away in the middle of the stream."""
        return self.name.endswith("cancel_stream")

    @property
    def retries(self) -> int:
        """How often the client tries again."""
        return 1 if self.name.endswith(("_retry", "_retry_stream")) else 0

    @property
    def timeout(self) -> float:
        """Seconds to wait."""
        return TIMEOUT if self.name.endswith("cancel_timeout") else 20.0


_answered: dict[tuple[str, str, str], Any] = {}
"""What was seen, by setting, variant and exchange."""

Ask = Callable[[Call], Any]
"""Makes a call and returns what the client shows of the answer, or None where it has no such call; async or not."""


def run(variants: Mapping[str, Ask]) -> None:
    """Make every call of the plan on standard input, in each of the client's ways."""
    plan = json.load(sys.stdin)
    with asyncio.Runner() as runner:
        for setting in plan["settings"]:
            with _setting(setting):
                for variant, ask in variants.items():
                    for exchange in plan["exchanges"]:
                        _exchange(setting, exchange, variant, ask, runner)


def events(call: Call, answer: Iterable[Any], shown: Callable[[Any], Any], close: Callable[[], object]) -> Any:
    """What the client shows of each event of a stream, to its end or to where it turns away and closes it."""
    seen: list[Any] = []
    for event in answer:
        seen.append(shown(event))
        if call.turns_away and len(seen) == STOP_AFTER:
            close()
            break
    return {"events": seen}


async def events_async(
    call: Call, answer: AsyncIterable[Any], shown: Callable[[Any], Any], close: Callable[[], Awaitable[object]]
) -> Any:
    """The same of a stream that is waited for."""
    seen: list[Any] = []
    async for event in answer:
        seen.append(shown(event))
        if call.turns_away and len(seen) == STOP_AFTER:
            await close()
            break
    return {"events": seen}


def shown(value: Any) -> dict[str, Any]:
    """A pydantic object of a client library, with what was absent left absent."""
    return {"class": type(value).__name__, **value.model_dump(exclude_unset=True)}


def arguments(call: Call) -> dict[str, Any]:
    """The arguments of `create` in the libraries that `openai` and `anthropic` generate from one template."""
    return {**call.request, "extra_body": call.extra or None, "timeout": call.timeout}


def create(call: Call, resource: Any) -> Any:
    """Call `create` of a synchronous resource of such a library."""
    answer = resource.create(**arguments(call))
    if not call.streams:
        return {**shown(answer), "request_id": answer._request_id}
    return events(call, answer, shown, answer.close)


async def create_async(call: Call, resource: Any) -> Any:
    """Call `create` of an asynchronous resource of such a library."""
    answer = await resource.create(**arguments(call))
    if not call.streams:
        return {**shown(answer), "request_id": answer._request_id}
    return await events_async(call, answer, shown, answer.close)


def _exchange(
    setting: dict[str, Any], exchange: dict[str, Any], variant: str, ask: Ask, runner: asyncio.Runner
) -> None:
    apart = exchange["name"] in setting["apart"]
    if exchange["apart"] and not apart:
        return
    os.environ.update(setting["apart"][exchange["name"]] if apart else setting["environment"])
    request = _continuing(exchange["request"], (setting["name"], variant))
    if request is None:
        return
    fields = {name: exchange[name] for name in ("name", "endpoint", "extra")}
    place = f"{setting['name']} {exchange['name']}" if apart else setting["name"]
    call = Call(setting=place, request=request, **fields)
    seen = _seen(ask, call, runner)
    if seen is not None:
        _answered[setting["name"], variant, call.name] = seen
        line = {"setting": setting["name"], "variant": variant, "exchange": call.name, "seen": seen}
        print(json.dumps(line, default=str), flush=True)  # noqa: T201  standard output is what a driver is for


def _continuing(request: dict[str, Any], way: tuple[str, str]) -> dict[str, Any] | None:
    """Return `request` with the id of the answer that it goes on from; None where this way had no such answer."""
    named = str(request.get("previous_response_id", ""))
    if not named.startswith("$"):
        return request
    earlier = _answered.get((*way, named[1:]), {})
    holder = earlier.get("body") or earlier.get("response_metadata") or earlier
    return {**request, "previous_response_id": holder["id"]} if "id" in holder else None


def _seen(ask: Ask, call: Call, runner: asyncio.Runner) -> Any:
    try:
        answer = ask(call)
        if inspect.iscoroutine(answer):
            answer = runner.run(answer, context=contextvars.copy_context())
    except Exception as error:
        return {"error": _described(error)}
    return answer


def _described(error: Exception) -> dict[str, Any]:
    """What a program can ask an exception of the client's."""
    own = {name: value for name, value in vars(error).items() if not name.startswith("_") and name not in NOT_SEEN}
    named = {"class": type(error).__name__, "bases": [base.__name__ for base in type(error).__mro__[1:]]}
    said = str(getattr(error, "message", "") or error)
    return {**json.loads(json.dumps(own, default=lambda value: type(value).__name__)), **named, "message": said}


@contextmanager
def _setting(setting: dict[str, Any]) -> Generator[None]:
    """Send calls where `setting` says: to a base URL, or, inside an attempt, wherever wire routing takes them."""
    os.environ.update(setting["environment"])
    if setting["attempt"] is None:
        yield
        return
    from leyden.core.tracing.context import OpenAttempt, open_attempt
    from leyden.core.tracing.wire import routing

    routing.install(fail_closed=True)
    try:
        with open_attempt(OpenAttempt(**setting["attempt"])):
            yield
    finally:
        routing.uninstall()
