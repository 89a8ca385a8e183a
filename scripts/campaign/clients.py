"""The HTTP clients that agents have, unchanged: each sends a request once and yields what arrives.

The blocking ones block the thread that iterates over them, as they do in an agent.
"""

import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import requests

from campaign.dialects.conversation import Document

API_KEY = "sk-campaign"
PATIENCE_SECONDS = 120.0
UNKNOWN = frozenset({
    "chat_template_kwargs", "guided_choice", "guided_json", "guided_regex", "max_tokens_please", "min_p",
    "repetition_penalty", "return_token_ids", "stop_token_ids", "structured_outputs", "top_k",
})  # fmt: skip
"""Fields that OpenAI's client sends only in `extra_body`."""
UNKNOWN_TO_ANTHROPIC = frozenset({"max_tokens_please", "temperature", "top_k", "top_p"})
"""Those of Anthropic's client, whose newest models have no sampling parameters."""
HEAD: Document = {}
"""Yielded by the clients that see an answer's head before its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of an agent's."""

    base_url: str
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    timeout: float = PATIENCE_SECONDS
    retries: int = 0
    """How often a client may try again by itself, where it can."""

    @property
    def url(self) -> str:
        """Where it is posted."""
        return self.base_url + self.path

    @property
    def is_messages(self) -> bool:
        """Whether it is one of Anthropic's API."""
        return self.path == "/messages"

    @property
    def stream(self) -> bool:
        """Whether the answer is to be a stream of events."""
        return bool(self.body.get("stream"))

    @property
    def all_headers(self) -> dict[str, str]:
        """Headers as a client that is only an HTTP library sends them."""
        return {"authorization": f"Bearer {API_KEY}", **self.headers}


Send: TypeAlias = Callable[[Request], AsyncGenerator[Document]]
"""Sends a request and yields what arrives of its answer. Raises Lost and Refused."""


class Lost(Exception):
    """No answer arrived, or not all of it."""


class Refused(Exception):
    """The answer was an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:200]}")
        self.status = status


# --- The providers' own clients


async def sdk_blocking(request: Request) -> AsyncGenerator[Document]:
    """Send with `openai.OpenAI` or `anthropic.Anthropic`."""
    with _failures():
        answer = _endpoint(_anthropic_blocking() if request.is_messages else _openai_blocking(), request)()
        if not request.stream:
            yield answer.to_dict()
            return
        with answer:
            for event in answer:
                yield event.to_dict()


async def sdk_async(request: Request) -> AsyncGenerator[Document]:
    """Send with `openai.AsyncOpenAI` or `anthropic.AsyncAnthropic`."""
    with _failures():
        answer = await _endpoint(_anthropic_async() if request.is_messages else _openai_async(), request)()
        if not request.stream:
            yield answer.to_dict()
            return
        async with answer:
            async for event in answer:
                yield event.to_dict()


def _endpoint(client: Any, request: Request) -> Callable[[], Any]:
    """Return the method of a client that sends the request."""
    base_url = request.base_url.removesuffix("/v1") if request.is_messages else request.base_url
    client = client.with_options(base_url=base_url, max_retries=request.retries)
    endpoints = {
        "/messages": lambda: client.messages,
        "/responses": lambda: client.responses,
        "/completions": lambda: client.completions,
        "/chat/completions": lambda: client.chat.completions,
    }
    return partial(endpoints[request.path]().create, **_arguments(request))


def _arguments(request: Request) -> dict[str, Any]:
    """Return a request as keywords, with what the client does not know in `extra_body`."""
    unknown = UNKNOWN_TO_ANTHROPIC if request.is_messages else UNKNOWN
    known = {name: value for name, value in request.body.items() if name not in unknown}
    extra = {name: value for name, value in request.body.items() if name in unknown}
    return {**known, "extra_body": extra, "extra_headers": request.headers, "timeout": request.timeout}


# --- HTTP libraries


async def httpx_blocking(request: Request) -> AsyncGenerator[Document]:
    """Send with `httpx.Client`."""
    options: Mapping[str, Any] = {"headers": request.all_headers, "timeout": request.timeout}
    with _failures(), _httpx_blocking().stream("POST", request.url, json=request.body, **options) as response:
        if response.status_code >= 400:
            raise Refused(response.status_code, response.read().decode())
        yield HEAD
        if not request.stream:
            yield json.loads(response.read())
            return
        for event in filter(None, map(_event, response.iter_lines())):
            yield event


async def httpx_async(request: Request) -> AsyncGenerator[Document]:
    """Send with `httpx.AsyncClient`."""
    options: Mapping[str, Any] = {"headers": request.all_headers, "timeout": request.timeout}
    with _failures():
        async with _httpx_async().stream("POST", request.url, json=request.body, **options) as response:
            if response.status_code >= 400:
                raise Refused(response.status_code, (await response.aread()).decode())
            yield HEAD
            if not request.stream:
                yield json.loads(await response.aread())
                return
            async for line in response.aiter_lines():
                if event := _event(line):
                    yield event


async def requests_blocking(request: Request) -> AsyncGenerator[Document]:
    """Send with `requests`."""
    options: Mapping[str, Any] = {"headers": request.all_headers, "timeout": request.timeout, "stream": True}
    with _failures(), requests.post(request.url, json=request.body, **options) as response:
        if response.status_code >= 400:
            raise Refused(response.status_code, response.text)
        yield HEAD
        if not request.stream:
            yield response.json()
            return
        lines: Iterable[bytes] = response.iter_lines()
        for event in filter(None, (_event(line.decode()) for line in lines)):
            yield event


async def aiohttp_async(request: Request) -> AsyncGenerator[Document]:
    """Send with `aiohttp.ClientSession`."""
    timeout = aiohttp.ClientTimeout(total=request.timeout)
    with _failures():
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(request.url, json=request.body, headers=request.all_headers) as response,
        ):
            if response.status >= 400:
                raise Refused(response.status, await response.text())
            yield HEAD
            if not request.stream:
                yield await response.json()
                return
            async for line in response.content:
                if event := _event(line.decode()):
                    yield event


BLOCKING: Mapping[str, Send] = {"sdk": sdk_blocking, "httpx": httpx_blocking, "other": requests_blocking}
ASYNC: Mapping[str, Send] = {"sdk": sdk_async, "httpx": httpx_async, "other": aiohttp_async}


@cache
def _openai_blocking() -> openai.OpenAI:
    return openai.OpenAI(api_key=API_KEY)


@cache
def _openai_async() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=API_KEY)


@cache
def _anthropic_blocking() -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key=API_KEY)


@cache
def _anthropic_async() -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key=API_KEY)


@cache
def _httpx_blocking() -> httpx.Client:
    return httpx.Client()


@cache
def _httpx_async() -> httpx.AsyncClient:
    return httpx.AsyncClient()


def _event(line: str) -> Document | None:
    data = line.strip().removeprefix("data: ")
    return json.loads(data) if data.startswith("{") else None


@contextmanager
def _failures() -> Generator[None]:
    """Raise what each library calls a lost or a refused answer as one of two errors."""
    try:
        yield
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        raise Refused(error.status_code, error.message) from error
    except (
        openai.APIConnectionError,
        anthropic.APIConnectionError,
        httpx.TransportError,
        httpx2.TransportError,
        aiohttp.ClientError,
        TimeoutError,
    ) as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
    except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
