"""`ProviderModel`: a model behind a provider's own API, in LiteLLM's form, such as `anthropic/claude-sonnet-4-5`.

Only the text is read here: whether LiteLLM has the provider is decided by `gateway.upstream.litellm_library`.
"""

import re

import msgspec

from leyden.core.errors import UsageError

ANY_MODEL = "*"
"""Model in place of a name: each call is sent under the name that its agent uses."""

_PROVIDER = re.compile(r"[a-z0-9][a-z0-9_-]*")


class ProviderModel(msgspec.Struct, frozen=True):
    """A provider, and its model that answers all calls."""

    provider: str
    model: str = ""
    """Name of the model at the provider. With "", the agent's own model names are sent."""

    def __str__(self) -> str:
        return f"{self.provider}/{self.model or ANY_MODEL}"


def read_provider_model(text: str) -> ProviderModel | None:
    """Read `provider/model`, `provider/*` or `provider`; None for other texts, such as URLs."""
    provider, _, model = text.partition("/")
    if "://" in text or not _PROVIDER.fullmatch(provider):
        return None
    return ProviderModel(provider, "" if model == ANY_MODEL else model)


def named_model(given: ProviderModel, model: str) -> ProviderModel:
    """Return `given` with the model that was named separately.

    Raises UsageError if both name one.
    """
    if model and given.model and model != given.model:
        raise UsageError(
            f"the endpoint names the model {given.model!r}, and --model {model!r}: give one of them, as "
            f"--endpoint {given.provider} --model {model}"
        )
    return msgspec.structs.replace(given, model=model or given.model)
