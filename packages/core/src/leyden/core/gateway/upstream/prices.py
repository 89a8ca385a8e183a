"""`PriceList`: what calls to an endpoint cost, from the price list that LiteLLM contains.

A price is known only for a provider's own API. A server of another host may serve a model under any name.
"""

from typing import Any
from urllib.parse import urlsplit

from leyden.core.data import semconv
from leyden.core.data.encoding.provider_model import ProviderModel, read_provider_model
from leyden.core.data.resources import LLM
from leyden.core.data.span import Span
from leyden.core.errors import UsageError
from leyden.core.gateway.upstream.litellm_library import EXTRA, library, litellm_name

_HOSTS = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openrouter.ai": "openrouter",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.together.xyz": "together_ai",
    "api.fireworks.ai": "fireworks_ai",
    "api.x.ai": "xai",
    "generativelanguage.googleapis.com": "gemini",
}
"""LiteLLM's providers by the host of their OpenAI-compatible API."""


class PriceList:
    """Prices of the calls that `endpoint` answers; None if a policy answers, whose calls have no price.

    LiteLLM is imported if the endpoint is a provider's.
    """

    def __init__(self, endpoint: LLM | None) -> None:
        self.unknown = ""
        """Why no price is known; empty if prices are."""
        self._litellm: Any = None
        self._provider = None if endpoint is None else _provider(endpoint.endpoint)
        if self._provider is None:
            self.unknown = "a policy answers" if endpoint is None else "no price list is known for this endpoint"
            return
        try:
            self._litellm = library()
        except UsageError:
            self.unknown = f"the price list is part of LiteLLM, which is not installed: {EXTRA}"

    def cost(self, models: tuple[str, ...], input_tokens: int, output_tokens: int) -> float | None:
        """Return the list price of one call in US dollars; None if it is not known.

        `models` are the names of the model, of which the first one in the price list counts. Discounts, such as that
        for a cached prompt, are left out. A price of 0 is that of a model without a price for its tokens, and not
        known.
        """
        if self._litellm is None or self._provider is None:
            return None
        for requested in filter(None, models):
            provider, model = litellm_name(ProviderModel(self._provider), requested)
            try:
                parts: tuple[float, float] = self._litellm.cost_per_token(
                    model=model,
                    custom_llm_provider=provider,
                    prompt_tokens=input_tokens,
                    completion_tokens=output_tokens,
                )
            except Exception:  # LiteLLM raises errors of many classes for a model that it does not know
                continue
            if sum(parts) > 0:
                return sum(parts)
        return None

    def call_cost(self, call: Span) -> float | None:
        """Return the list price of a recorded call in US dollars; None if it is not known."""
        values = call.attributes
        tokens = values.get(semconv.INPUT_TOKENS), values.get(semconv.OUTPUT_TOKENS)
        if not isinstance(tokens[0], int) or not isinstance(tokens[1], int):
            return None
        models = tuple(str(values.get(name) or "") for name in (semconv.RESPONSE_MODEL, semconv.REQUEST_MODEL))
        return self.cost(models, tokens[0], tokens[1])


def _provider(endpoint: str) -> str | None:
    given = read_provider_model(endpoint)
    if given is not None:
        return given.provider
    return _HOSTS.get(urlsplit(endpoint).hostname or "")
