"""Table of HTTP requests that are model calls, with the gateway's path for each."""

import re
from dataclasses import dataclass

from leyden.core.tracing.wire.request_path import normalized


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A kind of request that makes a model produce a response, or concerns a stored response."""

    suffix: str
    """End of the URL's path."""
    gateway_path: str | None
    """Path at the gateway. None: the gateway does not support this dialect, so the call must fail."""
    names_model: bool
    """Whether its body always has a `model`. Hosts of other services use the same paths for something else."""
    methods: frozenset[str] = frozenset({"POST"})
    query: frozenset[str] = frozenset()
    """Query parameters of the dialect. Others are not forwarded, because they may be credentials."""
    is_known: bool = True
    """Whether it is an entry of this table. Otherwise only its provider host identifies it."""


MODEL_CALLS = (
    ModelCall("/chat/completions", "/v1/chat/completions", names_model=False),
    ModelCall("/responses", "/v1/responses", names_model=True),
    ModelCall("/responses/compact", "/v1/responses/compact", names_model=True),
    ModelCall("/responses/input_tokens", "/v1/responses/input_tokens", names_model=True),
    ModelCall("/v1/messages", "/v1/messages", names_model=True),
    ModelCall("/v1/messages/count_tokens", "/v1/messages/count_tokens", names_model=True),
    *(ModelCall(f"/{other}/completions", None, names_model=True) for other in ("agents", "apply", "edit", "fim")),
    ModelCall("/completions", "/v1/completions", names_model=True),
    ModelCall("/messages", None, names_model=True),
    ModelCall("/api/chat", None, names_model=True),
    ModelCall("/api/generate", None, names_model=True),
    ModelCall(":generateContent", None, names_model=False),
    ModelCall(":streamGenerateContent", None, names_model=False),
    ModelCall(":rawPredict", None, names_model=False),
    ModelCall(":streamRawPredict", None, names_model=False),
    ModelCall("/v2/chat", None, names_model=True),
)
"""The first entry with a matching suffix applies. See `not_model_calls` for other requests to a provider's host."""

STORED_RESPONSE = re.compile(r"/responses(/resp_?[\w.-]+(?:/cancel|/input_items)?)$", re.ASCII | re.IGNORECASE)
"""A stored response with its id, which begins with `resp` for OpenAI and Azure."""
STORED_METHODS = frozenset({"GET", "DELETE", "POST"})
STORED_QUERY = frozenset({"after", "before", "include", "include[]", "limit", "order", "starting_after", "stream"})

BEDROCK = re.compile(r"/model/[^/]+(?:/[^/]+)?/(?:invoke|invoke-with-response-stream|converse|converse-stream)$", re.I)
"""A model's id may be an ARN, which contains a slash."""
WEB_SOCKETS = ("/responses", "/realtime")

FORWARDED = frozenset(
    {
        "accept",
        "accept-encoding",
        "anthropic-beta",
        "anthropic-version",
        "content-encoding",
        "content-length",
        "content-type",
        "idempotency-key",
        "traceparent",
        "tracestate",
        "transfer-encoding",
        "user-agent",
        "x-stainless-retry-count",
    }
)
"""Request headers sent to the gateway. A list of forbidden headers could miss a provider's credentials."""

AZURE_DEPLOYMENT = re.compile(r"/openai/deployments/([^/]+)/", re.IGNORECASE)


def model_call(path: str) -> ModelCall | None:
    """Return the kind of model call that a request to `path` may be. Its method and body can still exclude that."""
    path = normalized(path)
    lowered = path.lower()
    found = next((call for call in MODEL_CALLS if lowered.endswith(call.suffix.lower())), None)
    if found is not None:
        return found
    if stored := STORED_RESPONSE.search(path):
        answer, *below = stored[1].removeprefix("/").split("/")
        gateway_path = "/".join(("/v1/responses", answer, *(name.lower() for name in below)))
        return ModelCall("/responses/{id}", gateway_path, names_model=False, methods=STORED_METHODS, query=STORED_QUERY)
    return ModelCall("Bedrock", None, names_model=False) if BEDROCK.search(path) else None


def web_socket(path: str) -> ModelCall | None:
    """Return the kind of model call that a WebSocket at `path` begins. The gateway supports none of them."""
    lowered = normalized(path).lower()
    suffix = next((suffix for suffix in WEB_SOCKETS if lowered.endswith(suffix)), None)
    if suffix is None:
        return None
    return ModelCall(f"{suffix} over a WebSocket", None, names_model=False, methods=frozenset({"GET"}))


def deployment(path: str) -> str | None:
    """Return the Azure deployment in `path`, which is Azure's name for a model. None where there is none."""
    found = AZURE_DEPLOYMENT.search(normalized(path))
    return found[1] if found else None
