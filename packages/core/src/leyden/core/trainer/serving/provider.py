"""Provider of a run: the endpoint that answers requests of agents besides model calls, such as those for embeddings."""

import os
from typing import TYPE_CHECKING

import msgspec

from leyden.core.data.encoding.base_url import check_base_url
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.gateway.upstream.relay import Upstream


class ProviderEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Base URL of an OpenAI-compatible endpoint, and the environment variable with its key."""

    url: str
    key_env: str | None = None
    """None: the endpoint needs no key."""

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid URL."""
        check_base_url(self.url, "--provider")

    def open(self) -> "Upstream":
        """Return the client of the endpoint; raises UsageError if the variable with its key is not set."""
        from leyden.core.gateway.upstream.relay import Upstream

        if self.key_env is not None and not os.environ.get(self.key_env):
            raise UsageError(
                f"--provider-key-env {self.key_env}: this variable is not set; set it, or remove this option"
            )
        return Upstream(self.url, None if self.key_env is None else os.environ[self.key_env])


def read_provider(url: str | None, key_env: str | None) -> ProviderEndpoint | None:
    """Return the provider that the options name; raises UsageError for a key without a provider."""
    if url is None and key_env is not None:
        raise UsageError("--provider-key-env names the variable with the key of a --provider; give that too")
    return None if url is None else ProviderEndpoint(url=url, key_env=key_env)
