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
    "grpc": "gRPC (grpc is loaded) is not HTTP as wire routing knows it: give the client its REST transport",
    "websockets": "WebSockets (websockets is loaded), such as those of Responses and Realtime: use the HTTP form",
    "websocket": "WebSockets (websocket-client is loaded): use the HTTP form",
    "pycurl": "pycurl has a network stack of its own",
    "curl_cffi": "curl_cffi has a network stack of its own",
    "niquests": "niquests is not among the HTTP libraries that are routed",
    "tornado.httpclient": "Tornado's HTTP client is not among the HTTP libraries that are routed",
    "vllm": "a model run in the agent's own process (vllm is loaded) makes no calls: serve it, and call it",
    "llama_cpp": "a model run in the agent's own process (llama_cpp is loaded) makes no calls: serve it, and call it",
}
"""Clients that cannot be routed, by a module that only they load."""

UNANSWERED = {
    "botocore": "botocore speaks Bedrock's own dialect, which the gateway does not: use its OpenAI endpoint",
    "google.genai": "google.genai speaks Gemini's own dialect, which the gateway does not: its calls are stopped",
    "anthropic": "anthropic speaks the Messages dialect, which the gateway does not: its calls are stopped",
    "ollama": "ollama speaks a dialect of its own, which the gateway does not: call its /v1 endpoint",
    "cohere": "cohere speaks a dialect of its own, which the gateway does not: its calls are stopped",
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
            f"{command} sent nothing to OPENAI_BASE_URL: its client may have a base URL in its code, or take it from "
            f"another variable"
        ]
    programs = sorted({*attempt.extra.get(PROGRAMS, ())} - SYSTEM_PROGRAMS)
    started = [
        f"{name} is another program: its client must take its base URL from OPENAI_BASE_URL" for name in programs
    ]
    return started + out_of_reach()


def warn(reasons: list[str]) -> None:
    """Warn that an agent made no model call, with the possible reasons. Warns once in this process."""
    global _warned
    if reasons and not _warned:
        _warned = True
        log.warning(
            "A rollout ended well without a model call. If its agent asks a model, no call was seen: %s. "
            "(See docs/wire.md; this is said once.)",
            "; ".join(reasons),
        )
