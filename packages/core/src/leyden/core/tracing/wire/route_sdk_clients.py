"""Notes for which base URLs providers' SDKs make clients: their hosts are used as model providers.

Sends nothing itself; what the clients send is seen where their HTTP libraries send it.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings
from leyden.core.tracing.wire import routing_decision
from leyden.core.tracing.wire.provider_hosts import client_made

OPTIONAL = True
"""Where a version of an SDK (OpenAI's before 1.0), or what stands in its place, has no such class, nothing is amiss."""
WRAPPED = {
    "anthropic": (("Anthropic", "__init__"), ("AsyncAnthropic", "__init__")),
    "groq": (("Groq", "__init__"), ("AsyncGroq", "__init__")),
    "openai": (("OpenAI", "__init__"), ("AsyncOpenAI", "__init__")),
    "together": (("Together", "__init__"), ("AsyncTogether", "__init__")),
}
"""Classes with a `base_url`; Azure's and others are made by them."""


def wrap(library: ModuleType, name: str, original: Callable[..., None]) -> Callable[..., None]:
    """Return what takes the place of a client's `__init__`."""

    @hidden_from_warnings
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        base_url = getattr(self, "base_url", None) if routing_decision.is_on() else None
        if base_url is not None:
            client_made(str(base_url))

    return __init__
