"""`ProviderUpstream`: a model behind a provider's own API that answers calls instead of the policy, through LiteLLM.

Agents send Chat Completions and get answers and errors in OpenAI's format. LiteLLM converts both; it is used as a
library, without its retries, fall-backs, caches and callbacks.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any

from leyden.core.data.encoding.provider_model import ProviderModel
from leyden.core.errors import UsageError
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.chat.dialect import ChatDialect
from leyden.core.gateway.http.asgi import EVENTS, JSON
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.upstream.answer_relay import AnswerRelay
from leyden.core.gateway.upstream.backend import Fields, UpstreamBackend
from leyden.core.gateway.upstream.litellm_library import (
    close_clients,
    describe_local_model,
    library,
    litellm_name,
)
from leyden.core.gateway.upstream.provider_answer import (
    ProviderStream,
    library_refusal,
    plain_answer,
    provider_refusal,
    response_id,
)
from leyden.core.gateway.upstream.provider_request import ProviderRequest, read_request

_log = logging.getLogger("leyden.gateway")

MOST_MODELS = 1000
"""Number of models whose fields are remembered, where agents choose the model."""

_SETTINGS: dict[str, Any] = {
    "caching": False,
    "drop_params": False,
    "max_retries": 0,
    "no-log": True,  # no callback that an agent in this process has registered
    "num_retries": 0,
}
"""Arguments of every call: one request for each call of an agent, whose client decides about retries."""


class ProviderUpstream(UpstreamBackend):
    """Client of one provider. A call fails after `timeout` seconds without a byte.

    The key comes from the provider's own environment variables, unless `api_key` is given. Raises UsageError if LiteLLM
    is not installed.
    """

    renamed_by = "the endpoint (with PROVIDER/*, the agent's model name is sent to the provider)"

    def __init__(self, given: ProviderModel, api_key: str | None = None, *, timeout: float = 600.0) -> None:
        super().__init__(given.model)
        self._given, self._timeout = given, timeout
        self._key: dict[str, Any] = {} if api_key is None else {"api_key": api_key}
        self._litellm = library()
        self._supported: dict[str, frozenset[str] | None] = {}
        """Fields that the provider has, by model."""

    @property
    def name(self) -> str:
        """Name of the upstream among policies and in the metrics."""
        return str(self._given)

    def __repr__(self) -> str:
        return f"ProviderUpstream({self.name!r})"

    async def close(self) -> None:
        """Close LiteLLM's connections on this event loop; it opens others for a later call."""
        await close_clients(self._litellm)

    async def _forward(self, path: str, fields: Fields, relay: AnswerRelay, origin: Origin) -> None:
        if path != ChatDialect.path:
            message = f"Models of the provider {self._given.provider} answer Chat Completions here, and not {path}."
            return await relay.fail(message, Refusal(404, message, code="unknown_url"))
        requested = bytes(fields.get("model", b"")).decode().strip('"')
        provider, model = litellm_name(self._given, requested)
        try:
            request = read_request(fields, self._fields_of(provider, model), provider)
        except Refusal as refusal:
            return await relay.refuse(refusal)
        try:
            await self._call(provider, model, request, relay)
        except Exception as error:
            await self._pass_on_error(error, relay)

    async def _call(self, provider: str, model: str, request: ProviderRequest, relay: AnswerRelay) -> None:
        stream = {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}
        answer: Any = await self._litellm.acompletion(
            model=f"{provider}/{model}",
            messages=request.messages,
            timeout=self._timeout,
            **request.arguments,
            **stream,
            **_SETTINGS,
            **self._key,
        )
        headers: dict[str, Any] = getattr(answer, "_hidden_params", {}).get("additional_headers") or {}
        if request.stream:
            return await self._stream(answer, headers, request, relay)
        whole: dict[str, Any] = answer.model_dump()
        head = request.head(response_id(whole, headers), _created(whole), _model(whole, provider))
        await relay.whole(200, JSON, plain_answer(head, whole))

    async def _stream(self, chunks: Any, headers: dict[str, Any], request: ProviderRequest, relay: AnswerRelay) -> None:
        stream: ProviderStream | None = None
        try:
            async for chunk in chunks:
                given: dict[str, Any] = chunk.model_dump()
                if stream is None:
                    head = request.head(response_id(given, headers), _created(given), _model(given, ""))
                    stream = ProviderStream(head)
                if events := stream.events(given):
                    await relay.piece(200, EVENTS, events)
        finally:
            await chunks.aclose()
        if stream is None:
            return await relay.fail("the provider ended its answer before it began")
        await relay.piece(200, EVENTS, *stream.last())
        await relay.end()

    async def _pass_on_error(self, error: Exception, relay: AnswerRelay) -> None:
        """Send the error of a call to the agent: the provider's own, or one that explains why it did not answer."""
        answer = next((one.response for one in _causes(error) if _is_status_error(one)), None)
        if answer is not None:
            relay.failed(answer.status_code)
            return await relay.refuse(provider_refusal(answer.status_code, _body(answer), answer.headers))
        exceptions = self._litellm.exceptions
        if isinstance(error, UsageError | exceptions.BadRequestError | exceptions.AuthenticationError):
            status = int(getattr(error, "status_code", 400))
            relay.failed(status)
            return await relay.refuse(library_refusal(status, str(getattr(error, "message", error))))
        if any(isinstance(one, exceptions.Timeout) or "Timeout" in type(one).__name__ for one in _causes(error)):
            return await relay.fail(f"{self.name} did not answer in time")
        _log.debug("a call of %s failed", self.name, exc_info=error)
        await relay.fail(f"{self.name} could not be reached ({type(error).__name__})")

    def _fields_of(self, provider: str, model: str) -> frozenset[str] | None:
        if model not in self._supported:
            describe_local_model(self._litellm, provider, model)
            found = self._litellm.get_supported_openai_params(model=model, custom_llm_provider=provider)
            if len(self._supported) >= MOST_MODELS:
                self._supported.clear()
            self._supported[model] = None if found is None else frozenset(found)
        return self._supported[model]


def _causes(error: BaseException | None, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield an error and the errors that caused it."""
    seen = set() if seen is None else seen
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    for name in ("__cause__", "__context__", "original_exception"):
        yield from _causes(getattr(error, name, None), seen)


def _is_status_error(error: Any) -> bool:
    """Whether an error is that of httpx for a response with an error status; LiteLLM's own may have another status."""
    return type(error).__name__ == "HTTPStatusError"


def _body(answer: Any) -> str:
    try:
        return answer.text
    except Exception:  # the body of a stream was not read
        return ""


def _created(answer: dict[str, Any]) -> int:
    return int(answer.get("created") or time.time())


def _model(answer: dict[str, Any], provider: str) -> str:
    return str(answer.get("model") or "").removeprefix(f"{provider}/")
