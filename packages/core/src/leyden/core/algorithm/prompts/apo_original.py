"""Arguments of the original Agent Lightning's APO, an OpenAI client and keywords, as `APOConfig`."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict

from leyden.core.algorithm.base import RunDefaults
from leyden.core.algorithm.language_model import ModelOptions
from leyden.core.algorithm.prompts.apo_options import APOConfig
from leyden.core.errors import UsageError, did_you_mean

log = logging.getLogger(__name__)

REFLECTION_KEY = "LEYDEN_REFLECTION_KEY"
"""Environment variable that stands for the client's key in the run's configuration."""
VALIDATION = "val"
"""Name of `Trainer.fit`'s validation dataset among the held-out sets."""


class OpenAIClient(Protocol):
    """What is read of an `AsyncOpenAI` client."""

    @property
    def base_url(self) -> Any:
        """Base URL of its endpoint."""

    @property
    def api_key(self) -> Any:
        """Key that it sends."""


class OriginalOptions(TypedDict, total=False):
    """Keywords of the original."""

    async_openai_client: OpenAIClient | None
    """The first argument, by its name."""
    use_litellm: bool
    """Whether LiteLLM calls the models, which then are written `provider/model`, in place of the client."""
    gradient_model: str
    apply_edit_model: str
    diversity_temperature: float
    gradient_batch_size: int
    """Training tasks, all of which the model reads: `minibatch` of `APOConfig`."""
    val_batch_size: int
    beam_width: int
    branch_factor: int
    beam_rounds: int
    """Steps of the run, unless `Trainer(steps=...)` is given."""
    rollout_batch_timeout: float
    """Time limit in seconds of each rollout, unless `Trainer(timeout_seconds=...)` is given."""
    run_initial_validation: bool
    gradient_prompt_files: Sequence[str | Path] | None
    """Text files with `<prompt>` and `<rollouts>`."""
    apply_edit_prompt_files: Sequence[str | Path] | None
    """Text files with `<prompt>` and `<gradient>`."""
    _poml_trace: bool


_MODELS = {"gradient_model": "gpt-5-mini", "apply_edit_model": "gpt-4.1-mini"}
"""The original's models where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What the arguments of the original mean."""

    config: APOConfig
    run_defaults: RunDefaults
    keys: dict[str, str] = field(default_factory=dict[str, str])


def read_original(client: "OpenAIClient | None", given: OriginalOptions) -> Original:
    """Return the options that the original's arguments stand for; raises UsageError for those that cannot work."""
    for name in given:
        if name not in OriginalOptions.__annotations__:
            known = tuple(OriginalOptions.__annotations__)
            raise UsageError(f"APO has no argument {name}{did_you_mean(name, known)}; it has {', '.join(known)}")
    if given.get("_poml_trace"):
        log.warning("_poml_trace has no effect: the run records every textual gradient with its candidate")
    keys: dict[str, str] = {}
    if given.get("use_litellm"):
        models = [_litellm_model(given, name) for name in _MODELS]
    else:
        client = client or given.get("async_openai_client")
        models = [_client_model(client, given.get(name, default), keys) for name, default in _MODELS.items()]
    batch = given.get("gradient_batch_size", 4)
    config = APOConfig(
        reflection=models[0],
        edit=models[1],
        diversity_temperature=given.get("diversity_temperature", 1.0),
        minibatch=batch,
        worst=max(1, batch - 1),
        best=min(1, batch - 1),
        validation=VALIDATION,
        validation_batch=given.get("val_batch_size", 16),
        beam_width=given.get("beam_width", 4),
        branch_factor=given.get("branch_factor", 4),
        initial_validation=given.get("run_initial_validation", True),
        gradient_template=_files(given.get("gradient_prompt_files")),
        edit_template=_files(given.get("apply_edit_prompt_files")),
    )
    defaults = RunDefaults(
        steps=given.get("beam_rounds", 3), timeout_seconds=given.get("rollout_batch_timeout", 3600.0)
    )
    return Original(config=config, run_defaults=defaults, keys=keys)


def _client_model(client: "OpenAIClient | None", model: str, keys: dict[str, str]) -> ModelOptions:
    """Return the client's endpoint; note the key of the client in `keys`, unless the environment has it."""
    if client is None:
        raise UsageError("APO needs an AsyncOpenAI client as its first argument, or an APOConfig, or use_litellm=True")
    url, key = getattr(client, "base_url", None), getattr(client, "api_key", None)
    if url is None or not isinstance(key, str):
        raise UsageError(
            f"APO takes an AsyncOpenAI client with a base URL and a key, or an APOConfig, not {type(client).__name__}"
        )
    if "Azure" in type(client).__name__:
        raise UsageError(
            f"APO cannot call the endpoint of an {type(client).__name__}: give "
            "APOConfig(reflection=ModelOptions(endpoint='azure/DEPLOYMENT'))"
        )
    if key and key != os.environ.get("OPENAI_API_KEY"):
        keys[REFLECTION_KEY] = key
    return ModelOptions(endpoint=str(url).rstrip("/"), model=model, key_env=REFLECTION_KEY if keys else None)


def _litellm_model(given: OriginalOptions, name: str) -> ModelOptions:
    model = str(given.get(name) or f"openai/{_MODELS[name]}")
    if "/" not in model:
        raise UsageError(f"{name}={model}: with use_litellm, write the model as provider/model, as openai/{model}")
    return ModelOptions(endpoint=model)


def _files(given: "Sequence[str | Path] | None") -> list[str] | None:
    return None if given is None else [str(one) for one in given]
