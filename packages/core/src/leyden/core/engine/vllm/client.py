"""`VllmClient`: HTTP client of one vLLM server, which exchanges token ids.

It uses streamed completions on token ids. The server must return log-probabilities of the distribution that it samples
from (`--logprobs-mode processed_logprobs`). Raw log-probabilities are then obtained from a prompt's, which vLLM always
returns raw. With raw ones, the others could not be obtained.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import FinishReason, GenerateRequest
from leyden.core.errors import EngineError, UnusableGrammar
from leyden.core.tracing.context import outside_attempt

T = TypeVar("T")
Top = list[tuple[int, float]]
PAUSED = 503
METRICS_SECONDS = 3.0
"""Time limit in seconds for a server's metrics: a scraper waits for all servers, by default for ten seconds."""
LARGEST_EVENT = 1 << 20
"""Maximum bytes of one event of a stream."""
ID_PREFIX = "token_id:"
GRAMMAR = "structured_outputs"
"""Field of a request that has the grammar."""
REFUSES_REQUEST = (400, 422)
"""Statuses with which a server refuses a request for its content."""
STEPS_AT_ONCE = 32
"""Positions of a prompt that are requested at the same time."""
MISSING_LOGPROB = -9999.0
"""The lowest log-probability that a server sends.

On a CPU, vLLM 0.32 returns it for token 0, instead of the likeliest tokens. This happens if another call of the same
step requests one token's log-probability.
"""
MOST_TRIES, TRY_SECONDS = 200, 0.02


class ServerUnreachable(EngineError):
    """The server is unreachable or interrupted its response; the request may be repeated, also on another server."""


class GeneratedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Some tokens of a response, as one server generated them."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each id, under the distribution it was sampled from."""
    raw: list[float] | None = None
    """The same under the raw distribution; None if it is the same distribution, or not known."""
    top: list[Top]
    """The likeliest ids at each position, likeliest first, if requested."""
    finish_reason: FinishReason | None = None


class PromptScores(msgspec.Struct, frozen=True, kw_only=True):
    """Raw log-probabilities of a prompt's ids except the first, and the likeliest ids at each position."""

    logprobs: list[float]
    top: list[Top]


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _TokenLogprob(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[int, _TokenLogprob] | None] | None = None
    finish_reason: str | None = None


class _Failure(msgspec.Struct):
    message: str = ""
    code: int | str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Failure | None = None


class _Refused(msgspec.Struct):
    error: _Failure | str | None = None
    detail: Any = None
    message: str | None = None


class _Served(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Served] = []


class VllmClient:
    """Client of one server, at `url` without a trailing slash.

    `key` is its API key, and is sent only to it. While the server answers that it is paused, requests are repeated for
    `pause_seconds`. A call fails after `silence_seconds` without a byte.
    """

    def __init__(
        self, url: str, *, key: str | None = None, pause_seconds: float = 600.0, silence_seconds: float = 600.0
    ) -> None:
        self.url = url.rstrip("/")
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._pause_seconds = pause_seconds
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def generate(
        self, model: str, request: GenerateRequest, prompt_ids: Sequence[int], limit: int
    ) -> AsyncGenerator[GeneratedTokens]:
        """Yield what `model` generates after `prompt_ids`, at most `limit` tokens; closing it aborts the call.

        Raises ServerUnreachable if the server interrupts the response, and EngineError if it refuses.
        """
        body = {
            **_completion_body(model, list(prompt_ids), request.sampling),
            "max_tokens": limit,
            "stop_token_ids": [*request.stop_ids, *request.sampling.stop_ids],
            "logprobs": request.top_logprobs,
            "stream": True,
        }
        finished, ids = False, list(prompt_ids)
        async with contextlib.aclosing(self._events(body)) as events:
            async for answer in events:
                for choice in answer.choices:
                    generated = await self._with_missing_logprobs(
                        model, ids, _generated_tokens(choice, request.top_logprobs), request
                    )
                    finished, ids = generated.finish_reason is not None, ids + generated.ids
                    yield generated
        if not finished:
            raise ServerUnreachable(f"the vLLM server at {self.url} closed an answer before its end")

    async def score(self, model: str, ids: Sequence[int], top: int = 0) -> PromptScores:
        """Return the raw log-probabilities of `ids[1:]`, computed again: vLLM uses no cached prefix for these.

        Raises EngineError if the server refuses or does not return all of them; ServerUnreachable if it is lost.
        """
        body = {**_completion_body(model, list(ids), Sampling()), "max_tokens": 1, "prompt_logprobs": top}
        positions = (await self._complete(body)).prompt_logprobs or []
        if len(positions) != len(ids) or any(position is None for position in positions[1:]):
            raise EngineError(
                f"the vLLM server at {self.url} returned {len(positions)} log-probabilities for {len(ids)} ids"
            )
        known_positions = [position or {} for position in positions[1:]]
        return PromptScores(
            logprobs=[position[token].logprob for position, token in zip(known_positions, ids[1:], strict=True)],
            top=[
                _likeliest({token: value.logprob for token, value in position.items()}, top)
                for position in known_positions
            ],
        )

    async def score_steps(self, model: str, ids: Sequence[int], first: int, top: int = 0) -> PromptScores:
        """Return the same for `ids[first:]`, each position with its own request, in the same way as responses.

        For servers with adapters: on a CPU, vLLM 0.32 crashes if it scores a prompt at the same time as other calls to
        them.
        """
        positions = range(first, len(ids))
        values = await _gather_limited(
            self.next_log_prob(model, ids[:position], ids[position]) for position in positions
        )
        tops = (
            await _gather_limited(self.next_top(model, ids[:position], 1.0, top) for position in positions)
            if top
            else []
        )
        return PromptScores(logprobs=values, top=tops or [[] for _ in positions])

    async def next_log_prob(self, model: str, prompt_ids: Sequence[int], token: int) -> float:
        """Return the raw log-probability of `token` after a prompt, computed as for responses: with cached prefixes.

        Raises EngineError if the server refuses or does not return it; ServerUnreachable if it is lost.
        """
        body = {
            **_completion_body(model, list(prompt_ids), Sampling()),
            "max_tokens": 1,
            "logprobs": 0,
            "logprob_token_ids": [token],
        }
        logprobs = (await self._complete(body)).logprobs
        for position in (logprobs.top_logprobs or []) if logprobs else []:
            if (value := (position or {}).get(f"{ID_PREFIX}{token}")) is not None:
                return value
        raise EngineError(f"the vLLM server at {self.url} did not return the log-probability of token {token}")

    async def next_top(self, model: str, prompt_ids: Sequence[int], temperature: float, count: int) -> Top:
        """Return the `count` likeliest tokens after a prompt, as the server reports them at `temperature`.

        Raises EngineError if the server does not return them after several tries; ServerUnreachable if it is lost.
        """
        sampling = Sampling(temperature=temperature)
        body = {**_completion_body(model, list(prompt_ids), sampling), "max_tokens": 1, "logprobs": count}
        for _ in range(MOST_TRIES):
            top = _generated_tokens(await self._complete(body), count).top[0]
            if top:
                return top
            await asyncio.sleep(TRY_SECONDS)
        raise EngineError(f"the vLLM server at {self.url} did not return the {count} likeliest tokens")

    async def _with_missing_logprobs(
        self, model: str, ids: list[int], generated: GeneratedTokens, request: GenerateRequest
    ) -> GeneratedTokens:
        """Request the likeliest tokens again for positions without them, which calls of `next_log_prob` can cause."""
        if all(generated.top):
            return generated
        logprobs, top = list(generated.logprobs), list(generated.top)
        for index, token in enumerate(generated.ids):
            before = ids + generated.ids[:index]
            if not top[index]:
                top[index] = await self.next_top(model, before, request.sampling.temperature, request.top_logprobs)
            if logprobs[index] <= MISSING_LOGPROB:  # the placeholder token was sampled
                logprobs[index] = await self.next_log_prob(model, before, token)
        return msgspec.structs.replace(generated, logprobs=logprobs, top=top)

    async def models(self) -> dict[str, int | None]:
        """Return the served models by name, with the maximum length of prompt and response together."""
        found = msgspec.json.decode(await self.request("GET", "/v1/models"), type=_Models)
        return {model.id: model.max_model_len for model in found.data}

    async def is_healthy(self) -> bool:
        """Return whether the server answers and reports that it is healthy."""
        try:
            async with self._request("GET", "/health", None) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def metrics(self) -> bytes | None:
        """Return the server's metrics in Prometheus' text format; None if they do not arrive in time."""
        try:
            async with asyncio.timeout(METRICS_SECONDS), self._request("GET", "/metrics", None) as answer:
                return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, OSError):
            return None

    async def request(self, method: str, path: str, body: object = None) -> bytes:
        """Return the response body; waits while the server is paused.

        Raises ServerUnreachable, or EngineError for a refusal.
        """
        try:
            async with self._checked_response(method, path, body) as answer:
                return await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnreachable(f"the vLLM server at {self.url} is lost: {_describe(error)}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _complete(self, body: dict[str, object]) -> _Choice:
        answer = _read(await self.request("POST", "/v1/completions", body))
        if len(answer.choices) != 1:
            raise EngineError(f"the vLLM server at {self.url} returned {len(answer.choices)} answers to one call")
        return answer.choices[0]

    async def _events(self, body: dict[str, object]) -> AsyncGenerator[_Answer]:
        try:
            async with self._checked_response("POST", "/v1/completions", body) as answer:
                async for line in answer.content:
                    data = line.removeprefix(b"data:").strip()
                    if not data or not line.startswith(b"data:"):
                        continue
                    if data == b"[DONE]":
                        return
                    event = _read(data)
                    if event.error is not None:
                        raise self._failure(event.error)
                    yield event
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ServerUnreachable(f"the vLLM server at {self.url} is lost: {_describe(error)}") from error

    def _failure(self, failure: _Failure) -> EngineError:
        """Return the exception for an error in a stream: the server's engine has died, or cannot do the request."""
        text = f"the vLLM server at {self.url} aborted the answer: {_line(failure.message)}"
        return ServerUnreachable(text) if str(failure.code or 500).startswith("5") else EngineError(text)

    @contextlib.asynccontextmanager
    async def _checked_response(self, method: str, path: str, body: object) -> AsyncGenerator[aiohttp.ClientResponse]:
        deadline = asyncio.get_running_loop().time() + self._pause_seconds
        wait = 0.05
        while True:
            async with self._request(method, path, body) as answer:
                if answer.status != PAUSED or asyncio.get_running_loop().time() >= deadline:
                    await self._check(answer, path, body)
                    yield answer
                    return
            await asyncio.sleep(wait)
            wait = min(2 * wait, 1.0)

    @contextlib.asynccontextmanager
    async def _request(self, method: str, path: str, body: object) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=LARGEST_EVENT
            )
        data = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "content-type": "application/json"} if data else self._headers
        with outside_attempt():
            answer = await self._session.request(
                method, f"{self.url}{path}", data=data, headers=headers, allow_redirects=False
            )
        async with answer:
            yield answer

    async def _check(self, answer: aiohttp.ClientResponse, path: str, body: object) -> None:
        if answer.status < 300:
            return
        reason = _reason(await answer.read())
        text = f"the vLLM server at {self.url} refused {path} ({answer.status}): {reason}"
        if answer.status in REFUSES_REQUEST and isinstance(body, dict) and GRAMMAR in body:
            raise UnusableGrammar(text)
        raise ServerUnreachable(text) if answer.status >= 500 else EngineError(text)


def _completion_body(model: str, prompt_ids: list[int], sampling: Sampling) -> dict[str, object]:
    """Return all settings that affect sampling, so that no default of the server or the model is used."""
    body: dict[str, object] = {
        "model": model,
        "prompt": prompt_ids,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p or 1.0,
        "top_k": sampling.top_k if sampling.top_p else 1,  # vLLM refuses top_p 0, which leaves one token
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    if sampling.grammar:
        body[GRAMMAR] = {"grammar": sampling.grammar}
    return body if sampling.seed is None else {**body, "seed": sampling.seed}


def _generated_tokens(choice: _Choice, top: int) -> GeneratedTokens:
    ids = choice.token_ids or []
    logprob_fields = choice.logprobs or _Logprobs()
    logprobs = [value for value in logprob_fields.token_logprobs if value is not None]
    positions = logprob_fields.top_logprobs or []
    if len(logprobs) != len(ids) or (top and len(positions) != len(ids)):
        raise EngineError(f"the vLLM server returned {len(logprobs)} log-probabilities for {len(ids)} ids")
    return GeneratedTokens(
        ids=ids,
        logprobs=logprobs,
        top=[_likeliest(_by_id(position or {}), top) for position in positions] if top else [],
        finish_reason=_finish(choice.finish_reason),
    )


async def _gather_limited(requests: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results, with at most `STEPS_AT_ONCE` requests at once; the first error cancels the others."""
    limit = asyncio.Semaphore(STEPS_AT_ONCE)

    async def run_limited(request: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await request

    tasks = [asyncio.create_task(run_limited(one)) for one in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _finish(reason: str | None) -> FinishReason | None:
    if reason is None or reason in ("stop", "length", "abort"):
        return reason
    raise EngineError(f"the vLLM server ended an answer with the unknown reason {reason!r}")


def _by_id(position: dict[str, float]) -> dict[int, float]:
    """Return the likeliest tokens of a position; empty if the server did not return them."""
    if any(value <= MISSING_LOGPROB for value in position.values()):
        return {}
    return {int(name.removeprefix(ID_PREFIX)): value for name, value in position.items()}


def _likeliest(logprobs: dict[int, float], count: int) -> Top:
    return sorted(logprobs.items(), key=lambda pair: -pair[1])[:count]


def _read(data: bytes) -> _Answer:
    try:
        return msgspec.json.decode(data, type=_Answer)
    except msgspec.MsgspecError as error:
        raise EngineError(f"the vLLM server sent a response that cannot be read: {_line(str(error))}") from error


def _reason(data: bytes) -> str:
    try:
        answer = msgspec.json.decode(data, type=_Refused)
    except msgspec.MsgspecError:
        return _line(data.decode(errors="replace"))
    error = answer.error.message if isinstance(answer.error, _Failure) else answer.error
    return _line(error or answer.message or str(answer.detail or "no reason was given"))


def _describe(error: Exception) -> str:
    return _line(str(error) or type(error).__name__)


def _line(text: str) -> str:
    """Return the first line of `text`, shortened."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")[:300]
