"""Language models that an algorithm calls: at an endpoint, of a provider, a served policy, or a function."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import aiohttp
import msgspec

from leyden.core.algorithm.language_model import (
    OWN,
    Completion,
    LanguageModel,
    Message,
    ModelCallError,
    ModelOptions,
)
from leyden.core.data.encoding.base_url import check_base_url
from leyden.core.data.encoding.provider_model import ProviderModel, named_model, read_provider_model
from leyden.core.data.resources import LLM
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.errors import EngineError, UsageError
from leyden.core.gateway.upstream.prices import PriceList
from leyden.core.masking import mask_text, remember_secret
from leyden.core.runner.user_code.loading import load_object
from leyden.core.trainer.serving.endpoint import ModelEndpoint
from leyden.core.trainer.serving.given_keys import find_key

if TYPE_CHECKING:
    from leyden.core.gateway.calls.served_policy import ServedPolicy

TRIES = 4
"""Number of times that a call is sent while the endpoint is busy or cannot be reached."""
FIRST_WAIT_SECONDS = 1.0
"""Time before the first repetition; it doubles with each."""
_BUSY = (408, 409, 429, 500, 502, 503, 504)
"""Statuses after which a call is repeated."""
_SHOWN = 300
_LITELLM: dict[str, Any] = {
    "caching": False,
    "drop_params": True,
    "max_retries": 0,
    "no-log": True,
    "num_retries": 0,
}
"""Arguments of every call through LiteLLM. Models that do not have a parameter of the options are called without it."""
_FALLBACK_TOKENS = 1024
"""Longest answer of a policy if `max_tokens` is not given."""


def open_language_model(
    options: ModelOptions, policies: "Mapping[str, ServedPolicy]", endpoint: ModelEndpoint | None, key: str | None
) -> LanguageModel:
    """Return the model that the options name; nothing is called yet.

    `policies` and `endpoint` are those of the run, and `key` the endpoint's key if it was given in Python. Raises
    UsageError if the model cannot be called.
    """
    if options.function is not None:
        return FunctionModel(options)
    if options.endpoint != OWN:
        own = ModelEndpoint(url=options.endpoint, model=options.model, key_env=options.key_env)
        return _endpoint_model(own, options, None)
    if endpoint is not None and endpoint.policy is None:
        named = msgspec.structs.replace(endpoint, model=options.model or endpoint.model)
        return _endpoint_model(named, options, key)
    return PolicyAsModel(_policy_of(options, policies), options)


def _endpoint_model(endpoint: ModelEndpoint, options: ModelOptions, key: str | None) -> LanguageModel:
    given = read_provider_model(endpoint.url)
    if given is not None:
        from leyden.core.gateway.upstream.litellm_library import check_provider

        given = named_model(given, endpoint.model)
        own_key = _key(endpoint, key, "")
        check_provider(given, f"the reflection model {given}", own_key)
        return ProvidersModel(given, own_key, options)
    check_base_url(endpoint.url, "the endpoint of the reflection model")
    return EndpointModel(endpoint, _key(endpoint, key, "OPENAI_API_KEY"), options)


def _key(endpoint: ModelEndpoint, key: str | None, default: str) -> str | None:
    found = key or find_key(endpoint.key_env or default)
    if found is None and endpoint.key_env is not None:
        raise UsageError(f"key_env {endpoint.key_env}: this environment variable is not set")
    if found is not None:
        remember_secret(found)
    return found


def _policy_of(options: ModelOptions, policies: "Mapping[str, ServedPolicy]") -> "ServedPolicy":
    if not options.model and len(policies) == 1:
        return next(iter(policies.values()))
    if options.model not in policies:
        known = ", ".join(policies) or "none"
        raise UsageError(f"the run has no policy {options.model!r} to call; its policies are: {known}")
    return policies[options.model]


class FunctionModel(LanguageModel):
    """A function of the messages in place of a model, sync or async. It costs nothing."""

    is_priced = True

    def __init__(self, options: ModelOptions) -> None:
        self.name = options.function or ""
        self._function = cast("Callable[[list[dict[str, str]]], str | Awaitable[str]]", load_object(self.name))
        if not callable(self._function):
            raise UsageError(f"{self.name} is no function from messages to a text")

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Return what the function returns."""
        given = [dict(message) for message in messages]
        try:
            if inspect.iscoroutinefunction(self._function):
                text: object = await self._function(given)
            else:
                text = await asyncio.to_thread(self._function, given)
            if inspect.isawaitable(text):  # of an object whose call is a coroutine
                text = await text
        except Exception as error:
            raise ModelCallError(f"{self.name} raised {type(error).__name__}: {mask_text(str(error))}") from error
        if not isinstance(text, str):
            raise ModelCallError(f"{self.name} returned {type(text).__name__}, not a text")
        return Completion(text=text, cost=0.0)


class EndpointModel(LanguageModel):
    """A model behind an OpenAI-compatible endpoint."""

    def __init__(self, endpoint: ModelEndpoint, key: str | None, options: ModelOptions) -> None:
        self.name = endpoint.model or endpoint.url
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._model, self._costs = endpoint.model, _Costs(endpoint.url, endpoint.model, options)
        self._options, self.is_priced = options, self._costs.are_known
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._limit = asyncio.Semaphore(options.concurrency)
        self._session: aiohttp.ClientSession | None = None

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Call the endpoint; repeat the call while it is busy."""
        body: dict[str, Any] = {"model": self._model, "messages": [dict(message) for message in messages]}
        body |= _sampling_fields(self._options)
        async with self._limit:
            return await _repeated(self.name, self._options.timeout_seconds, lambda: self._post(body))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _post(self, body: dict[str, Any]) -> Completion:
        if self._session is None:
            self._session = aiohttp.ClientSession(headers=self._headers)
        try:
            async with self._session.post(self._url, json=body, allow_redirects=False) as answer:
                status, wait, content = answer.status, answer.headers.get("retry-after"), await answer.read()
        except aiohttp.ClientError as error:
            raise _BusyError(f"{self.name} could not be reached ({type(error).__name__})") from error
        if status >= 300:
            raise _refusal(self.name, status, content.decode(errors="replace"), wait)
        return self._completion(content)

    def _completion(self, content: bytes) -> Completion:
        try:
            answer = msgspec.json.decode(content, type=_Answer)
        except msgspec.DecodeError as error:
            raise ModelCallError(f"{self.name} sent no chat completion: {error}") from error
        return _completion(self.name, answer, self._costs)


class ProvidersModel(LanguageModel):
    """A provider's model, called through LiteLLM's library."""

    def __init__(self, given: ProviderModel, key: str | None, options: ModelOptions) -> None:
        from leyden.core.gateway.upstream.litellm_library import describe_local_model, library, litellm_name

        self.name = str(given)
        self._litellm: Any = library()
        provider, model = litellm_name(given, given.model)
        describe_local_model(self._litellm, provider, model)
        self._model, self._options = f"{provider}/{model}", options
        self._key: dict[str, str] = {} if key is None else {"api_key": key}
        self._costs = _Costs(str(given), given.model, options)
        self.is_priced = self._costs.are_known
        self._limit = asyncio.Semaphore(options.concurrency)

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Call the provider; repeat the call while it is busy."""
        async with self._limit:
            return await _repeated(self.name, self._options.timeout_seconds, lambda: self._call(messages))

    async def _call(self, messages: Sequence[Message]) -> Completion:
        try:
            answer: Any = await self._litellm.acompletion(
                model=self._model,
                messages=[dict(message) for message in messages],
                timeout=self._options.timeout_seconds,
                **_sampling_fields(self._options),
                **_LITELLM,
                **self._key,
            )
        except Exception as error:
            found: Any = error
            status, answer = getattr(found, "status_code", None), getattr(found, "response", None)
            wait = None if answer is None else answer.headers.get("retry-after")
            if isinstance(status, int):
                raise _refusal(self.name, status, str(error), wait) from error
            raise ModelCallError(f"{self.name}: {type(error).__name__}: {_shown(str(error))}") from error
        return _completion(self.name, msgspec.convert(answer.model_dump(), _Answer), self._costs)

    async def close(self) -> None:
        """Close LiteLLM's connections on this event loop."""
        from leyden.core.gateway.upstream.litellm_library import close_clients

        await close_clients(self._litellm)


_T = TypeVar("_T")


class _BusyError(ModelCallError):
    """A call failed, and may succeed if it is repeated. `wait` is the time in seconds that the endpoint asks for."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


async def _repeated(name: str, timeout: float, call: Callable[[], Awaitable[_T]]) -> _T:
    """Return the result of `call`, which is repeated while it raises _BusyError, for `timeout` seconds in all."""
    busy: _BusyError | None = None
    try:
        async with asyncio.timeout(timeout):
            for number in range(TRIES):
                try:
                    return await call()
                except _BusyError as error:
                    busy = error
                if number < TRIES - 1:
                    await asyncio.sleep(max(busy.wait, FIRST_WAIT_SECONDS * 2**number))
    except TimeoutError:
        why = "" if busy is None else f"; before, {busy}"
        raise ModelCallError(f"{name} did not answer within {timeout:g} s{why}") from None
    raise ModelCallError(f"{busy} ({TRIES} tries)")


def _refusal(name: str, status: int, content: str, wait: str | None) -> ModelCallError:
    """Return the error for a status that is none of success, and the time that its `retry-after` names."""
    text = f"{name} answered with status {status}: {_shown(content)}"
    if status not in _BUSY:
        return ModelCallError(text)
    return _BusyError(text, float(wait) if wait is not None and wait.isdecimal() else 0.0)


def _shown(text: str) -> str:
    return mask_text(" ".join(text.split()))[:_SHOWN]


class PolicyAsModel(LanguageModel):
    """A policy that the run serves, frozen or trained. Its calls are neither recorded nor trained, and cost nothing."""

    is_priced = True

    def __init__(self, policy: "ServedPolicy", options: ModelOptions) -> None:
        self.name = policy.name
        self._policy, self._options = policy, options
        self._limit = asyncio.Semaphore(options.concurrency)
        self._calls = 0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Sample an answer from the policy."""
        ids = self._policy.codec.encode([dict(message) for message in messages])
        room = self._policy.engine.model.context_length - len(ids)
        if room < 1:
            raise ModelCallError(f"the {len(ids)} tokens for the policy {self.name} do not fit its context")
        options = self._options
        sampling = Sampling(
            temperature=1.0 if options.temperature is None else options.temperature,
            max_tokens=min(room, options.max_tokens or _FALLBACK_TOKENS),
        )
        self._calls += 1
        request = GenerateRequest(
            request_id=f"own-{id(self):x}-{self._calls}",
            prompt_ids=ids,
            sampling=sampling,
            stop_ids=self._policy.codec.stop_ids,
        )
        found: list[int] = []
        async with self._limit:
            try:
                async with asyncio.timeout(options.timeout_seconds):
                    async for chunk in self._policy.engine.generate(request):
                        found.extend(chunk.ids)
            except TimeoutError:
                seconds = options.timeout_seconds
                raise ModelCallError(f"the policy {self.name} did not answer within {seconds:g} s") from None
            except EngineError as error:
                raise ModelCallError(f"the policy {self.name} did not answer: {error}") from error
        text = self._policy.codec.decode(found)
        return Completion(text=text, input_tokens=len(ids), output_tokens=len(found), cost=0.0)


class _Text(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Text


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    """A chat completion."""

    choices: list[_Choice]
    usage: _Usage | None = None


class _Costs:
    """Costs of calls: by the price in the options, else by LiteLLM's price list."""

    def __init__(self, endpoint: str, model: str, options: ModelOptions) -> None:
        self._options, self._model = options, model
        self._prices = None if options.price is not None else PriceList(LLM(endpoint=endpoint, model=model))
        self.are_known = self.of(1_000_000, 1_000_000) is not None

    def of(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the cost of a call in US dollars; None if it is unknown."""
        if self._prices is None:
            return self._options.cost(input_tokens, output_tokens)
        return self._prices.cost((self._model,), input_tokens, output_tokens)


def _completion(name: str, answer: _Answer, costs: _Costs) -> Completion:
    text = answer.choices[0].message.content if answer.choices else None
    if not text:
        raise ModelCallError(f"{name} sent an answer without text")
    if (usage := answer.usage) is None:
        return Completion(text=text)
    cost = costs.of(usage.prompt_tokens, usage.completion_tokens)
    return Completion(text=text, input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens, cost=cost)


def _sampling_fields(options: ModelOptions) -> dict[str, Any]:
    fields = {"temperature": options.temperature, "max_tokens": options.max_tokens}
    return {name: value for name, value in fields.items() if value is not None}
