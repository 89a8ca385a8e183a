"""Endpoint of a run without a policy: the model that answers its agents."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from leyden.core.algorithm.base import Algorithm
from leyden.core.data.encoding.provider_model import read_provider_model
from leyden.core.data.resources import LLM
from leyden.core.errors import UsageError
from leyden.core.masking import remember_secret

if TYPE_CHECKING:
    from leyden.core.gateway.upstream.backend import UpstreamBackend

OPTION = "--endpoint"
OPENAI = "https://api.openai.com/v1"
KEY = "LEYDEN_ENDPOINT_KEY"
"""Variable in which `Trainer.fit` sends a key given in Python to the learner process that it starts."""


class ModelEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An OpenAI-compatible endpoint and its replicas, a provider's model, or a policy that the run serves itself.

    The key itself is never recorded.
    """

    url: str = ""
    """Base URL, or a provider's model, as `anthropic/MODEL`. Empty with `policy`."""
    policy: str | None = None
    """Folder or hub name of a model that the run serves with its own engine, and does not train."""
    replicas: tuple[str, ...] = ()
    """Base URLs of further servers of the same model."""
    model: str = ""
    """Model that answers all calls; empty: the agents' own model names are sent."""
    key_env: str | None = None
    """Environment variable with the key; None: OPENAI_API_KEY, or the provider's own."""

    def __post_init__(self) -> None:
        if bool(self.url) == (self.policy is not None):
            raise UsageError("an endpoint is a URL, a provider's model, or a policy; give one of them")

    @property
    def name(self) -> str:
        """Model and base URL, or the policy."""
        return self.policy or " ".join(filter(None, (self.model, self.url)))

    @property
    def model_name(self) -> str:
        """Name of the model that agents are given; empty: they use their own names."""
        return self.model if self.policy is None else Path(self.policy).name

    @classmethod
    def of(cls, llm: LLM) -> "ModelEndpoint":
        """Return the endpoint that an LLM among the resources names."""
        return cls(url=llm.endpoint, replicas=llm.replicas, model=llm.model)

    def open(self, key: str | None = None) -> "UpstreamBackend":
        """Return what forwards calls to the endpoint; raises UsageError if it cannot be called."""
        from leyden.core.gateway.upstream.endpoints import check_endpoint, open_upstream

        llm = self.llm(key)
        remember_secret(llm.api_key or "")
        given = check_endpoint(llm, OPTION)
        return open_upstream(llm if given is None else msgspec.structs.replace(llm, model=given.model))

    def llm(self, key: str | None = None) -> LLM:
        """Return the endpoint with its key: the one that was given in Python, or that of a variable.

        Raises UsageError if the named variable is not set.
        """
        is_provider = read_provider_model(self.url) is not None
        if key is None:
            key = os.environ.get(KEY) or os.environ.get(self.key_env or ("" if is_provider else "OPENAI_API_KEY"))
        if key is None and self.key_env is not None:
            raise UsageError(f"--api-key-env {self.key_env}: this environment variable is not set")
        return LLM(endpoint=self.url, replicas=self.replicas, model=self.model, api_key=key)


def openai_endpoint() -> ModelEndpoint | None:
    """Return the endpoint that a client of the library `openai` calls if its program names none.

    None if neither OPENAI_BASE_URL nor OPENAI_API_KEY is set: such a client could not be made.
    """
    url = os.environ.get("OPENAI_BASE_URL")
    if not url and not os.environ.get("OPENAI_API_KEY"):
        return None
    return ModelEndpoint(url=(url or OPENAI).rstrip("/"))


def check_model(algorithm: type[Algorithm], *, policy: bool, endpoint: bool) -> None:
    """Raise UsageError if `algorithm` cannot work with what was given: a policy, or an endpoint."""
    if algorithm.needs_policy and endpoint:
        raise UsageError(
            f"{algorithm.name} trains the weights of a policy, and an endpoint has none: give --policy in place of "
            "--endpoint, or an --algorithm that trains no weights"
        )
    if policy and not algorithm.needs_policy:
        raise UsageError(
            f"{algorithm.name} trains no weights: give the model that answers the agent as an endpoint, in place of a "
            "policy"
        )


def untrained(policy: object, endpoint: object, algorithm: type[Algorithm]) -> ModelEndpoint | None:
    """Return the policy as an endpoint, if the algorithm trains no weights; None if there is no such policy.

    Raises UsageError for a policy beside an endpoint, and for several policies.
    """
    if algorithm.needs_policy or not policy:
        return None
    if endpoint:
        raise UsageError(f"{algorithm.name} trains no weights: a --policy or an --endpoint answers the agent, not both")
    if not isinstance(policy, str):
        raise UsageError(
            f"{algorithm.name} trains no weights, and one policy answers the agent: give one, without a name"
        )
    return ModelEndpoint(policy=policy)


def read_model_endpoint(urls: list[str], model: str | None, key_env: str | None) -> ModelEndpoint | None:
    """Return the endpoint that the options name; raises UsageError for a model or a key without an endpoint."""
    if not urls:
        for option, value in (("--model", model), ("--api-key-env", key_env)):
            if value is not None:
                raise UsageError(f"{option} belongs to an --endpoint; give that too")
        return None
    return ModelEndpoint(url=urls[0], replicas=tuple(urls[1:]), model=model or "", key_env=key_env)
