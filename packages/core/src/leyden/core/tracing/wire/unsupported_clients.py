"""Detection of loaded libraries whose model calls cannot be routed, or cannot be answered by the gateway.

Used after an agent ran without a model call. It only checks the names of loaded modules.
"""

import logging
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType

from leyden.core.tracing.context import OpenAttempt

log = logging.getLogger("leyden.routing")

UNREACHED = {
    "grpc": "gRPC (grpc is loaded) cannot be routed: use the client's REST transport",
    "websockets": (
        "WebSockets (websockets is loaded), such as those of Responses and Realtime, cannot be routed: use the HTTP API"
    ),
    "websocket": "WebSockets (websocket-client is loaded) cannot be routed: use the HTTP API",
    "pycurl": "pycurl has its own network stack, which cannot be routed",
    "curl_cffi": "curl_cffi has its own network stack, which cannot be routed",
    "niquests": "niquests cannot be routed",
    "tornado.httpclient": "Tornado's HTTP client cannot be routed",
    "vllm": (
        "a model in the agent's own process (vllm is loaded) makes no HTTP calls: serve the model, and call the server"
    ),
    "llama_cpp": (
        "a model in the agent's own process (llama_cpp is loaded) makes no HTTP calls: serve the model, and call the "
        "server"
    ),
}
"""Clients that cannot be routed, by a module that only they load."""

UNANSWERED = {
    "botocore": "botocore uses Bedrock's own API, which the gateway does not support: use Bedrock's OpenAI endpoint",
    "google.genai": "google.genai uses Gemini's own API, which the gateway does not support: its calls are stopped",
    "ollama": "ollama uses its own API, which the gateway does not support: call its /v1 endpoint",
    "cohere": "cohere uses its own API, which the gateway does not support: its calls are stopped",
}
"""Clients whose calls are routed and then refused."""

CALLED = "leyden.model_called"
"""Key of an attempt's `extra`: set when a model call of the attempt was seen, wherever it went."""

COMMAND = "leyden.command"
"""Key of an attempt's `extra`: name of the program that is the agent. This process makes none of its calls."""
SYSTEM_PROGRAMS = frozenset({"ldconfig", "lsb_release", "sw_vers", "sysctl", "uname"})
"""Programs that `platform` and `ctypes`, and so provider clients, run to identify the system."""
PROGRAMS = "leyden.programs"
"""Key of an attempt's `extra`: names of other programs that the agent started."""

_warned = False


def out_of_reach(modules: Mapping[str, ModuleType] | None = None) -> list[str]:
    """Return one sentence for each such library in `modules`, by default `sys.modules`."""
    loaded: Iterable[str] = set(sys.modules if modules is None else modules)
    return [reason for module, reason in {**UNREACHED, **UNANSWERED}.items() if module in loaded]


def possible_reasons(attempt: OpenAttempt) -> list[str]:
    """Return possible reasons why `attempt` made no model call. Empty where it made one, or after the first warning."""
    if _warned or CALLED in attempt.extra:
        return []
    if (command := attempt.extra.get(COMMAND)) is not None:
        return [
            f"{command} sent no model call to OPENAI_BASE_URL or ANTHROPIC_BASE_URL: its client may have a base URL in "
            "its code, or read it from another variable"
        ]
    programs = sorted({*attempt.extra.get(PROGRAMS, ())} - SYSTEM_PROGRAMS)
    started = [
        f"{name} is another program: its client must read its base URL from OPENAI_BASE_URL or ANTHROPIC_BASE_URL"
        for name in programs
    ]
    return started + out_of_reach()


def warn(reasons: list[str]) -> None:
    """Warn that an agent made no model call, with the possible reasons. Warns once in this process."""
    global _warned
    if reasons and not _warned:
        _warned = True
        log.warning(
            "A rollout succeeded without a model call. If its agent does call a model, Leyden saw no call: %s. (See "
            "docs/wire.md; this is logged once.)",
            "; ".join(reasons),
        )
