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
    "botocore": "Amazon's botocore has an HTTP client of its own: call Bedrock's OpenAI-compatible endpoint instead",
    "websockets": "WebSockets (websockets is loaded), such as those of Responses and Realtime: use the HTTP form",
    "websocket": "WebSockets (websocket-client is loaded): use the HTTP form",
    "pycurl": "pycurl has a network stack of its own",
    "curl_cffi": "curl_cffi has a network stack of its own",
    "httplib2": "httplib2 is not among the HTTP libraries that are routed",
    "niquests": "niquests is not among the HTTP libraries that are routed",
    "tornado.httpclient": "Tornado's HTTP client is not among the HTTP libraries that are routed",
    "vllm": "a model run in the agent's own process (vllm is loaded) makes no calls: serve it, and call it",
    "llama_cpp": "a model run in the agent's own process (llama_cpp is loaded) makes no calls: serve it, and call it",
}
"""By a module that only they load."""

UNANSWERED = {
    "google.genai": "google.genai speaks Gemini's own dialect, which the gateway does not: its calls are stopped",
    "anthropic": "anthropic speaks the Messages dialect, which the gateway does not: its calls are stopped",
    "ollama": "ollama speaks a dialect of its own, which the gateway does not: call its /v1 endpoint",
    "cohere": "cohere speaks a dialect of its own, which the gateway does not: its calls are stopped",
}
"""What is routed, and then refused."""

ROUTED_FOR_AGENTS = ("httpx", "httpx2", "requests")
"""aiohttp is routed too, but Leyden itself loads it."""

CALLED = "leyden.model_called"
"""In an attempt's `extra`: a model call of its passed by, wherever it went."""

_said = False


def out_of_reach(modules: Mapping[str, ModuleType] | None = None) -> list[str]:
    """Return a sentence for each thing that is loaded; `modules` is `sys.modules` unless given."""
    loaded: Iterable[str] = set(sys.modules if modules is None else modules)
    found = [reason for module, reason in {**UNREACHED, **UNANSWERED}.items() if module in loaded]
    if "urllib3" in loaded and "requests" not in loaded and "botocore" not in loaded:
        found.append("urllib3 is loaded without requests: calls made with it directly are not routed")
    if not any(name in loaded for name in ROUTED_FOR_AGENTS):
        found.append("none of httpx, httpx2 and requests is loaded: urllib and other processes are not routed")
    return found


def untold(attempt: OpenAttempt) -> list[str]:
    """Return what may be why `attempt` made no model call; nothing where it made one, or where it was told before."""
    return [] if _said or CALLED in attempt.extra else out_of_reach()


def tell(reasons: list[str]) -> None:
    """Warn, once in this process, that an agent made no model call, and of what may be why; of no reasons, nothing."""
    global _said
    if reasons and not _said:
        _said = True
        log.warning(
            "A rollout ended well without a model call. If its agent asks a model, wire routing did not see it: %s. "
            "(See docs/wire.md; this is said once.)",
            "; ".join(reasons),
        )
