"""Chat with a version of a run: a page's messages are sent to the version's server, and its answer is streamed."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal, cast

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from leyden.console.actions.jobs import Jobs
from leyden.console.actions.served_versions import Place, Served, ServedVersions
from leyden.console.http.answers import as_json, body_of, error_answer
from leyden.console.plain import one_line
from leyden.console.runs.run import Run
from leyden.core.data.route import POLICY
from leyden.core.errors import LeydenError, RunError

DIGITS = 4
"""Decimal places of log-probabilities, which a page keeps for each token."""
LINE_BYTES = 1 << 20
"""Longest event of the version's server."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation that ends with a message of the user, and how the answer is sampled."""

    version: int
    policy: str | None = None
    """Name of one policy of a run that has several."""
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class Chat:
    """The requests of the chat page."""

    def __init__(self, jobs: Jobs, find_run: Callable[[str], Awaitable[Run]], is_stopping: Callable[[], bool]) -> None:
        self._find_run, self._is_stopping = find_run, is_stopping
        self._served = ServedVersions(jobs)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        path = "/api/runs/{key}/chat"
        return [Route(path, as_json(self._about)), Route(path, self._send, methods=["POST"])]

    async def _about(self, request: Request) -> dict[str, Any]:
        """Return the names of the run's policies, and which of its versions are served now."""
        run = await self._of(request)
        assert run.path is not None
        return {
            "policies": policies_of(await run.config()),
            "served": [
                {"version": one.place.version, "policy": one.place.policy, "job": one.job.id}
                for one in self._served.of_run(run.path)
            ],
        }

    async def _send(self, request: Request) -> Response:
        try:
            run = await self._of(request)
            given = await body_of(request, ChatRequest)
            place = Place(run=cast("Any", run.path), version=given.version, policy=given.policy)
            served = await self._served.find(place, request.path_params["key"])
        except RunError as error:
            return error_answer(404, error)
        except ValueError as error:
            return error_answer(422, error)
        except (LeydenError, OSError) as error:
            return error_answer(409, error)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._lines(served, given), media_type="application/x-ndjson", headers=headers)

    async def _lines(self, served: Served, given: ChatRequest) -> AsyncGenerator[bytes]:
        """Yield the answer as JSON lines: what is under way, text with its tokens, and the end or an error."""
        try:
            yield _line({"state": "loading", "job": served.job.id})
            url = await self._served.url(served)
            yield _line({"state": "answering", "job": served.job.id})
            async for part in self._answer(url, served, given):
                yield _line(part)
        except aiohttp.ClientError as error:
            why = self._served.reason(served) if served.job.ended is not None else one_line(error)
            yield _line({"error": f"the answer broke off: {why}"})
        except (LeydenError, OSError, ValueError) as error:
            yield _line({"error": one_line(error)})

    async def _answer(self, url: str, served: Served, given: ChatRequest) -> AsyncGenerator[dict[str, Any]]:
        body = {
            "model": served.place.run.name,
            "messages": msgspec.to_builtins(given.messages),
            "temperature": given.temperature,
            "top_p": given.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            **({} if given.max_tokens is None else {"max_completion_tokens": given.max_tokens}),
        }
        began, first = time.monotonic(), None
        finish, usage = "", dict[str, Any]()
        headers = {"authorization": f"Bearer {served.key}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with (
            aiohttp.ClientSession(timeout=timeout, read_bufsize=LINE_BYTES) as session,
            session.post(f"{url}/chat/completions", json=body, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise LeydenError(_refusal(await answer.read(), answer.status))
            async for line in answer.content:
                if self._is_stopping():
                    raise LeydenError("the console ends")
                event = _event(line)
                if "error" in event:
                    raise LeydenError(str(event["error"].get("message")))
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    finish = choice.get("finish_reason") or finish
                    part = _part(choice)
                    if part["text"] or part["reasoning"] or part["tokens"]:
                        first = first or time.monotonic() - began
                        yield part
        yield {
            "end": {
                "finish": finish,
                "prompt_tokens": usage.get("prompt_tokens"),
                "tokens": usage.get("completion_tokens"),
                "first_seconds": first,
                "seconds": time.monotonic() - began,
            }
        }

    async def _of(self, request: Request) -> Run:
        run = await self._find_run(request.path_params["key"])
        if run.path is None:
            raise RunError("the folder of this run is not on this machine, so none of its versions can be served here")
        return run


def policies_of(config: Mapping[str, Any]) -> list[str]:
    """Return the names of a run's policies; empty for a run that trained none."""
    policy: str | dict[str, str] | None = config.get("policy")
    if isinstance(policy, str):
        return [*(config.get("sides") or (POLICY,))]
    return [*(policy or {})]


def _part(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of a piece of the answer, with its tokens and their log-probabilities."""
    delta: Mapping[str, Any] = choice.get("delta") or {}
    logprobs: Mapping[str, Any] = choice.get("logprobs") or {}
    tokens: list[dict[str, Any]] = logprobs.get("content") or []
    return {
        "text": delta.get("content") or "",
        "reasoning": delta.get("reasoning_content") or "",
        "tokens": [[one["token"], round(one["logprob"], DIGITS)] for one in tokens],
    }


def _event(line: bytes) -> dict[str, Any]:
    """Return the data of a line of an event stream; empty for any other line."""
    if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
        return {}
    return msgspec.json.decode(line[5:], type=dict[str, Any])


def _refusal(body: bytes, status: int) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return f"the version's server answered with status {status}"


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"
