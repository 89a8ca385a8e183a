"""Resources: versioned things that an agent runs with, such as model endpoints and prompt templates."""

from collections.abc import Mapping
from typing import Any

import msgspec

from leyden.core.data.prompt_template import PromptTemplate


class LLM(msgspec.Struct, frozen=True, kw_only=True, tag="llm"):
    """An OpenAI-compatible endpoint for the agent's model calls."""

    endpoint: str
    """Base URL, usually ending in `/v1`. In a dry run also a provider's model, such as `anthropic/claude-x`."""
    model: str
    """Name of the model at the endpoint.

    In a dry run, this model answers whatever model name the agent sends; with "", the agent's own model names are
    forwarded.
    """
    sampling_parameters: dict[str, Any] = {}
    api_key: str | None = None
    replicas: tuple[str, ...] = ()
    """Base URLs of further servers of the same model, with the same key. Only a dry run and a gateway use them."""
    attempt: tuple[str, str] | None = None
    """(rollout id, attempt id) that the endpoint records for; None where it belongs to no single attempt."""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Return the base URL for an OpenAI client inside this attempt.

        Raises ValueError when the ids are not those of the attempt that the endpoint belongs to.
        """
        given = (rollout_id, attempt_id)
        if self.attempt is not None and given != (None, None) and given != self.attempt:
            raise ValueError(f"this endpoint belongs to attempt {self.attempt}, not to {given}")
        return self.endpoint


Resource = LLM | PromptTemplate
NamedResources = dict[str, Resource]


class ResourcesUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One immutable version of a set of resources."""

    resources_id: str
    version: int
    create_time: float
    update_time: float
    resources: NamedResources


def prompts_of(resources: Mapping[str, Resource]) -> dict[str, PromptTemplate]:
    """Return the prompt templates among `resources`."""
    return {name: resource for name, resource in resources.items() if isinstance(resource, PromptTemplate)}
