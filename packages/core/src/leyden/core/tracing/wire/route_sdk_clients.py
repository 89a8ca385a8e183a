"""Record of the base URLs for which provider SDKs make clients. Their hosts then count as model providers.

Sends nothing. Requests of these clients are routed where their HTTP libraries send them.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from leyden.core.tracing.patching.hidden_frames import hidden_from_warnings
from leyden.core.tracing.wire import routing_decision
from leyden.core.tracing.wire.provider_hosts import record_client

OPTIONAL = True
"""A missing class is no error: OpenAI's SDK before 1.0, or a replacement module, may lack it."""
WRAPPED = {
    "anthropic": (("Anthropic", "__init__"), ("AsyncAnthropic", "__init__")),
    "groq": (("Groq", "__init__"), ("AsyncGroq", "__init__")),
    "openai": (("OpenAI", "__init__"), ("AsyncOpenAI", "__init__")),
    "together": (("Together", "__init__"), ("AsyncTogether", "__init__")),
}
"""Client classes with a `base_url`. Azure's and other subclasses call their `__init__`."""


def wrap(library: ModuleType, name: str, original: Callable[..., None]) -> Callable[..., None]:
    """Return the wrapper of a client's `__init__`."""

    @hidden_from_warnings
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        base_url = getattr(self, "base_url", None) if routing_decision.is_on() else None
        if base_url is not None:
            record_client(str(base_url))

    return __init__
