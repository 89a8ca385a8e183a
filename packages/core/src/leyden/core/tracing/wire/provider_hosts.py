"""Hosts of model providers.

A host is recognised by its name or port, or by a base URL in the environment. It is also recognised once a provider's
SDK made a client for it, or a model call was sent to it. Paths matter only where a provider shares its host with other
services.
"""

import os
import re
import unicodedata
from fnmatch import translate
from functools import lru_cache
from ipaddress import ip_address
from socket import inet_aton, inet_ntoa
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from leyden.core.tracing.context import OpenAttempt, current_attempt
from leyden.core.tracing.wire.request_path import normalized

HOSTS = (
    "api.openai.com",
    "*.api.openai.com",
    "api.anthropic.com",
    # Azure
    "*.openai.azure.com",
    "*.openai.azure.us",
    "*.openai.azure.cn",
    "*.services.ai.azure.com",
    "*.cognitiveservices.azure.com",
    "*.api.cognitive.microsoft.com",
    "*.models.ai.azure.com",
    "*.inference.ml.azure.com",
    "models.inference.ai.azure.com",
    "models.github.ai",
    "api.githubcopilot.com",
    # Amazon
    "bedrock*.amazonaws.com",
    "*.bedrock*.amazonaws.com",
    "bedrock*.amazonaws.com.cn",
    "*.bedrock*.amazonaws.com.cn",
    "bedrock*.api.aws",
    "runtime.sagemaker*.amazonaws.com",
    # Google
    "generativelanguage.googleapis.com",
    "*.generativelanguage.googleapis.com",
    "aiplatform.googleapis.com",
    "*-aiplatform.googleapis.com",
    "aiplatform.*.rep.googleapis.com",
    # Others
    "api.ai21.com",
    "api.cerebras.ai",
    "api.cohere.ai",
    "api.cohere.com",
    "dashscope.aliyuncs.com",
    "dashscope-*.aliyuncs.com",
    "api.deepinfra.com",
    "api.deepseek.com",
    "api.fireworks.ai",
    "api.groq.com",
    "api-inference.huggingface.co",
    "router.huggingface.co",
    "api.hyperbolic.xyz",
    "ark.*.volces.com",
    "api.minimax.*",
    "api.minimaxi.*",
    "*.mistral.ai",
    "api.moonshot.*",
    "api.novita.ai",
    "api.studio.nebius.*",
    "api.tokenfactory.nebius.com",
    "integrate.api.nvidia.com",
    "ai.api.nvidia.com",
    "ollama.com",
    "openrouter.ai",
    "api.perplexity.ai",
    "api.replicate.com",
    "api.sambanova.ai",
    "api.siliconflow.*",
    "api.together.ai",
    "api.together.xyz",
    "ai-gateway.vercel.sh",
    "*.ml.cloud.ibm.com",
    "api.x.ai",
    "*.api.x.ai",
    "api.z.ai",
    "open.bigmodel.cn",
    # Third-party gateways to several providers
    "gateway.ai.cloudflare.com",
    "*.helicone.ai",
    "api.portkey.ai",
)
"""Host patterns with wildcards.

They include the hosts of all providers whose keys `children.environment` removes from a program's environment.
"""
SHARED_HOSTS = {
    "api.cloudflare.com": re.compile(r"/client/v4/accounts/[^/]+/ai(?:/|$)"),
    "*.cloud.databricks.com": re.compile(r"/serving-endpoints(?:/|$)"),
    "*.azuredatabricks.net": re.compile(r"/serving-endpoints(?:/|$)"),
    "*.gcp.databricks.com": re.compile(r"/serving-endpoints(?:/|$)"),
}
"""Hosts on which a provider has only some paths, with patterns of these paths in lower case."""
OTHER_HOSTS = ("*.gateway.bedrock-agentcore.*",)
"""Hosts that match a pattern above but belong to tool servers."""
PORTS = frozenset({11434})
"""Default ports of self-hosted model servers: Ollama's."""

VARIABLES = (
    "ANTHROPIC_BASE_URL",
    "AZURE_OPENAI_ENDPOINT",
    "COHERE_BASE_URL",
    "CO_API_URL",
    "DEEPSEEK_BASE_URL",
    "GEMINI_BASE_URL",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_VERTEX_BASE_URL",
    "GROQ_BASE_URL",
    "MISTRAL_BASE_URL",
    "OLLAMA_API_BASE",
    "OLLAMA_BASE_URL",
    "OLLAMA_HOST",
    "OPENAI_API_BASE",
    "OPENAI_BASE_URL",
    "OPENROUTER_BASE_URL",
    "TOGETHER_BASE_URL",
)
"""Environment variables from which clients read their base URL."""

SDKS = frozenset(
    {"anthropic", "cerebras", "cohere", "google.genai", "groq", "mistralai", "ollama", "openai", "together"}
)
"""Packages of provider SDKs. HTTP client classes that they define are used for the provider's base URL."""

LOOPBACK = "localhost"
PROVIDERS = "leyden.providers"
"""Key of an attempt's `extra`: the local addresses to which its model calls were sent.

They are kept for each attempt, because another attempt's tools may get the same port.
"""

_IGNORED = re.compile(r"[\u00ad\u034f\u180b-\u180f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]")
"""Characters that are removed from a host's name before its lookup (IDNA, UTS 46)."""
_DOTS = str.maketrans(dict.fromkeys("\u3002\uff0e\uff61", "."))
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}

_called_hosts: set["HostPort"] = set()
_client_hosts: set["HostPort"] = set()
_gateways: set["HostPort"] = set()


class HostPort(NamedTuple):
    """Host and port of a server. All names of this machine's loopback become one host."""

    host: str
    port: int


@lru_cache(maxsize=4096)
def host_port(url: str) -> HostPort:
    """Return the host and port of a request to `url`. Never raises."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return HostPort(url, 0)
    host = unicodedata.normalize("NFKC", _IGNORED.sub("", unquote(host))).translate(_DOTS).casefold().rstrip(".")
    return HostPort(LOOPBACK if _is_loopback(host) else host, port or _DEFAULT_PORTS.get(parts.scheme, 0))


def is_provider(url: str) -> bool:
    """Return whether the host of `url` is recognised as a model provider's, in this context and at this time."""
    server, attempt = host_port(url), current_attempt()
    if attempt is not None:
        gateway = host_port(attempt.gateway_url)
        _gateways.add(gateway)
        if server == gateway:
            return False
        if server in attempt.extra.get(PROVIDERS, ()):
            return True
    elif server in _gateways:
        return False
    if (
        server.port in PORTS
        or server in _called_hosts
        or server in _client_hosts
        or _is_named(server.host, urlsplit(url).path)
    ):
        return True
    return attempt is not None and server in _environment_hosts()


def record_call(url: str, attempt: OpenAttempt) -> None:
    """Record that a model call of `attempt` was sent to `url`."""
    _record(url, attempt, _called_hosts)


def record_client(base_url: str) -> None:
    """Record that a provider's SDK made a client for `base_url`."""
    _record(base_url, current_attempt(), _client_hosts)


def is_of_sdk(client: Any) -> bool:
    """Return whether the class of `client`, or one of its bases, was defined by a provider's SDK."""
    return any(_package(kind.__module__) in SDKS for kind in type(client).__mro__)


def forget() -> None:
    """Forget every host that was recorded."""
    for hosts in (_called_hosts, _client_hosts, _gateways):
        hosts.clear()


def _record(url: str, attempt: OpenAttempt | None, hosts: set[HostPort]) -> None:
    server = host_port(url)
    if attempt is None or server.host != LOOPBACK:
        hosts.add(server)
    elif server != host_port(attempt.gateway_url):
        attempt.extra.setdefault(PROVIDERS, set()).add(server)


def _environment_hosts() -> set[HostPort]:
    return {host_port(url) for name in VARIABLES if (url := os.environ.get(name))}


def _globs(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))


_NAMED, _NOT_NAMED = _globs(HOSTS), _globs(OTHER_HOSTS)
_SHARED = [(re.compile(translate(host)), path) for host, path in SHARED_HOSTS.items()]


@lru_cache(maxsize=4096)
def _is_named(host: str, path: str) -> bool:
    if _NAMED.match(host):
        return not _NOT_NAMED.match(host)
    return any(
        host_pattern.match(host) and path_pattern.match(normalized(path).lower())
        for host_pattern, path_pattern in _SHARED
    )


@lru_cache(maxsize=4096)
def _is_loopback(host: str) -> bool:
    if host == LOOPBACK or host.endswith(f".{LOOPBACK}"):
        return True
    try:
        address = ip_address(host if ":" in host else inet_ntoa(inet_aton(host)) if host[:1].isdigit() else host)
    except (OSError, ValueError):
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _package(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "google" else parts[0]
