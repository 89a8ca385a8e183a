"""LiteLLM as a library: imports it without network access, and checks a provider before the first call.

Only an endpoint or a route that names a provider's model imports this library (the extra `providers`). No server of
LiteLLM is started, and none of its caches, callbacks, retries or fall-backs is used.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from leyden.core.data.encoding.provider_model import ProviderModel
from leyden.core.errors import UsageError
from leyden.core.masking import mask_own_logs, remember_secret

EXTRA = "pip install 'leyden-core[providers]'"
"""Command that installs the extra."""

_WITHOUT_NETWORK = {
    "LITELLM_MODE": "PRODUCTION",  # otherwise the import reads a file .env into the environment
    "LITELLM_OFFLINE_MODE": "true",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Environment of the import: tables of models and headers come from the installed package."""

_LOGGERS = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router", "aiohttp", "botocore", "httpcore", "httpx", "openai")
"""Loggers whose records can contain requests to a provider, with those below them."""

_NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "anthropic": (("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),),
    "azure": (
        ("AZURE_API_BASE",),
        ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"),
    ),
    "gemini": (("GEMINI_API_KEY", "GOOGLE_API_KEY"),),
    "ollama": (),
    "ollama_chat": (),
}
"""Environment variables that a provider needs; of each tuple, one is enough."""

_CALLED_AS = {"ollama": "ollama_chat"}
"""LiteLLM's providers that are called under another name: `ollama` alone is Ollama's API without messages and tools."""


def library() -> Any:
    """Return the module `litellm`, imported on the first call. Raises UsageError if it is not installed."""
    if "litellm" not in sys.modules and find_spec("litellm") is None:
        raise UsageError(f"models of providers are called through LiteLLM, which is not installed: {EXTRA}")
    with _environment(_WITHOUT_NETWORK, restored="TIKTOKEN_CACHE_DIR"):
        litellm: Any = import_module("litellm")
        headers: Any = import_module("litellm.anthropic_beta_headers_manager")
        headers.get_unsupported_headers("anthropic")  # reads the table, which would be fetched at the first call
        _load_encodings()
    litellm.suppress_debug_info = True  # it would print advice to the standard output
    mask_own_logs(*_LOGGERS)
    return litellm


def _load_encodings() -> None:
    """Load the encodings with which LiteLLM estimates token counts, from its package.

    It names the folder of their files in an environment variable, which agents would inherit. Without the variable,
    an encoding that is not loaded yet would be downloaded during a call.
    """
    import_module("litellm.litellm_core_utils.default_encoding")  # sets the variable
    tiktoken: Any = import_module("tiktoken")
    for name in ("o200k_base", "o200k_harmony"):
        tiktoken.get_encoding(name)


def check_provider(given: ProviderModel, label: str, api_key: str | None = None) -> None:
    """Check that calls of a model can be sent; `label` is the option that names it, with its value.

    Raises UsageError, with a message of one line, if LiteLLM is not installed or does not have the provider, and if an
    environment variable is missing. `api_key` replaces the provider's own variable for the key.
    """
    litellm = library()
    if given.provider not in {str(getattr(name, "value", name)) for name in litellm.provider_list}:
        raise UsageError(
            f"{label}: LiteLLM has no provider {given.provider!r}. Give PROVIDER/MODEL as LiteLLM writes it "
            "(anthropic/…, bedrock/…, azure/…, gemini/…, ollama/…), or the URL of a server, as http(s)://…"
        )
    if api_key is not None:
        remember_secret(api_key)
    if missing := _missing(litellm, given, has_key=api_key is not None):
        raise UsageError(f"{label} needs the environment variable {missing}, which is not set")


def litellm_name(given: ProviderModel, requested: str) -> tuple[str, str]:
    """Return provider and model for a call, where `requested` is the model that the agent names."""
    model = given.model or requested.removeprefix(f"{given.provider}/")
    return _CALLED_AS.get(given.provider, given.provider), model


async def close_clients(litellm: Any) -> None:
    """Close the HTTP clients that LiteLLM keeps for the running event loop, which could not end with them."""
    cache = litellm.in_memory_llm_clients_cache
    of_loop: str = cache.update_cache_key_with_event_loop("")
    for key in [key for key in cache.cache_dict if key.endswith(of_loop)]:
        client: Any = cache.cache_dict.pop(key, None)
        cache.ttl_dict.pop(key, None)
        with suppress(Exception):  # a client that cannot be closed is none of the agent's concern
            await client.close()


def describe_local_model(litellm: Any, provider: str, model: str) -> None:
    """Add a model of Ollama to LiteLLM's table of models.

    For a model that is not in the table, LiteLLM requests a description from the server at every call, and blocks the
    event loop meanwhile.
    """
    if provider != "ollama_chat":
        return
    prices = {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}
    limits = {"max_tokens": None, "max_input_tokens": None, "max_output_tokens": None}
    described = {"litellm_provider": provider, "mode": "chat", "supports_function_calling": True, **prices, **limits}
    litellm.model_cost.setdefault(f"{provider}/{model}", described)


def _missing(litellm: Any, given: ProviderModel, *, has_key: bool) -> str:
    """Return the names of variables, one of which is missing; empty if none is."""
    if given.provider in ("bedrock", "bedrock_converse"):
        return (
            "" if has_key or _has_aws_credentials() else "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    needs = _NEEDS.get(given.provider)
    if needs is None:
        found: list[str] = litellm.validate_environment(str(given))["missing_keys"]
        needs = tuple((name,) for name in found)
    for names in needs:
        is_key = "KEY" in names[0]
        if not any(os.environ.get(name) for name in names) and not (is_key and has_key):
            return " or ".join(names[:2])
    return ""


def _has_aws_credentials() -> bool:
    """Whether the AWS SDK finds credentials: in the environment, in its files, or of the machine's role."""
    if os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
        return True
    return import_module("botocore.session").Session().get_credentials() is not None


@contextmanager
def _environment(values: dict[str, str], *, restored: str) -> Generator[None]:
    """Set environment variables inside the block; they, and the variable `restored`, are as before after it."""
    before = {name: os.environ.get(name) for name in (*values, restored)}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
