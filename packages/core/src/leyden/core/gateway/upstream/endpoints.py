"""Endpoints in the policy's place, URLs or models of providers: checks them, and opens the upstreams that call them."""

from typing import TYPE_CHECKING

from leyden.core.data.encoding.base_url import check_base_url
from leyden.core.data.encoding.provider_model import ProviderModel, named_model, read_provider_model
from leyden.core.data.resources import LLM
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.gateway.upstream.backend import UpstreamBackend


def check_endpoint(endpoint: LLM, label: str) -> ProviderModel | None:
    """Return the provider's model that an endpoint names; None for an OpenAI-compatible base URL.

    Raises UsageError, with a message of one line, for an endpoint that cannot be called. `label` is its name in the
    message.
    """
    urls = (endpoint.endpoint, *endpoint.replicas)
    given = next((model for model in map(read_provider_model, urls) if model is not None), None)
    if given is None:
        for url in urls:
            check_base_url(url, label)
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise UsageError(f"{label} names the same base URL twice: give the base URL of each replica once")
        return None
    if endpoint.replicas:
        raise UsageError(f"{label} {given} is a provider's model: only base URLs can be replicas of one model")
    from leyden.core.gateway.upstream.litellm_library import check_provider

    given = named_model(given, endpoint.model)
    check_provider(given, f"{label} {given}", endpoint.api_key)
    return given


def open_upstream(endpoint: LLM) -> "UpstreamBackend":
    """Return the upstream for an endpoint that was checked. Only a provider's model imports LiteLLM."""
    given = read_provider_model(endpoint.endpoint)
    if given is None:
        from leyden.core.gateway.upstream.relay import Upstream

        return Upstream(endpoint.endpoint, endpoint.api_key, endpoint.model, replicas=endpoint.replicas)
    from leyden.core.gateway.upstream.provider import ProviderUpstream

    return ProviderUpstream(named_model(given, endpoint.model), endpoint.api_key)
