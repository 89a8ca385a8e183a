"""Says which ways of calling a model this process has loaded that wire routing cannot reach or the gateway not answer.

Looked at after the fact, when an agent was run and no model call of its passed by. Knows only names of modules.
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
"""By a module that only they load."""

UNANSWERED = {
    "botocore": "botocore speaks Bedrock's own dialect, which the gateway does not: use its OpenAI endpoint",
    "google.genai": "google.genai speaks Gemini's own dialect, which the gateway does not: its calls are stopped",
    "anthropic": "anthropic speaks the Messages dialect, which the gateway does not: its calls are stopped",
    "ollama": "ollama speaks a dialect of its own, which the gateway does not: call its /v1 endpoint",
    "cohere": "cohere speaks a dialect of its own, which the gateway does not: its calls are stopped",
}
"""What is routed, and then refused."""

CALLED = "leyden.model_called"
"""In an attempt's `extra`: a model call of its passed by, wherever it went."""

COMMAND = "leyden.command"
"""In an attempt's `extra`: the name of the program that is the agent; this process makes none of its calls."""
OF_THE_SYSTEM = frozenset({"ldconfig", "lsb_release", "sw_vers", "sysctl", "uname"})
"""Programs that Python's own `platform` and `ctypes`, and so clients of providers, ask what system they run on."""
PROGRAMS = "leyden.programs"
"""In an attempt's `extra`: names of other programs that the agent started."""

_said = False


def out_of_reach(modules: Mapping[str, ModuleType] | None = None) -> list[str]:
    """Return a sentence for each thing that is loaded; `modules` is `sys.modules` unless given."""
    loaded: Iterable[str] = set(sys.modules if modules is None else modules)
    return [reason for module, reason in {**UNREACHED, **UNANSWERED}.items() if module in loaded]


def untold(attempt: OpenAttempt) -> list[str]:
    """Return what may be why `attempt` made no model call; nothing where it made one, or where it was told before."""
    if _said or CALLED in attempt.extra:
        return []
    if (command := attempt.extra.get(COMMAND)) is not None:
        return [
            f"{command} sent nothing to OPENAI_BASE_URL: its client may have a base URL in its code, or take it from "
            f"another variable"
        ]
    programs = sorted({*attempt.extra.get(PROGRAMS, ())} - OF_THE_SYSTEM)
    started = [
        f"{name} is another program: its client must take its base URL from OPENAI_BASE_URL" for name in programs
    ]
    return started + out_of_reach()


def tell(reasons: list[str]) -> None:
    """Warn, once in this process, that an agent made no model call, and of what may be why; of no reasons, nothing."""
    global _said
    if reasons and not _said:
        _said = True
        log.warning(
            "A rollout ended well without a model call. If its agent asks a model, no call was seen: %s. "
            "(See docs/wire.md; this is said once.)",
            "; ".join(reasons),
        )
