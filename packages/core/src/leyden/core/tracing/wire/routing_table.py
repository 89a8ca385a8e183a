"""Which HTTP requests are model calls, and where the gateway takes each. Knows nothing of any HTTP library."""

import re
from dataclasses import dataclass

from leyden.core.tracing.wire.request_path import normalized


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A kind of request that asks a model for an answer, or for one that it gave."""

    suffix: str
    """How the URL's path ends."""
    gateway_path: str | None
    """Where the gateway takes it; None: the gateway does not speak this dialect, so the call must fail."""
    names_model: bool
    """Whether its body always has a `model`; hosts that are no providers use the same paths for something else."""
    methods: frozenset[str] = frozenset({"POST"})
    query: frozenset[str] = frozenset()
    """Names of the query parameters that belong to the dialect; others may be credentials, and stay behind."""
    is_known: bool = True
    """Whether it is a kind of this table; else all that is known is that it goes to a provider."""


MODEL_CALLS = (
    ModelCall("/chat/completions", "/v1/chat/completions", names_model=False),
    ModelCall("/responses", "/v1/responses", names_model=True),
    ModelCall("/responses/compact", "/v1/responses/compact", names_model=True),
    ModelCall("/responses/input_tokens", "/v1/responses/input_tokens", names_model=True),
    ModelCall("/completions", None, names_model=True),
    ModelCall("/messages", None, names_model=True),
    ModelCall("/api/chat", None, names_model=True),
    ModelCall("/api/generate", None, names_model=True),
    ModelCall(":generateContent", None, names_model=False),
    ModelCall(":streamGenerateContent", None, names_model=False),
    ModelCall(":rawPredict", None, names_model=False),
    ModelCall(":streamRawPredict", None, names_model=False),
    ModelCall("/v2/chat", None, names_model=True),
)
"""The first entry whose suffix fits decides. For what else goes to a provider's host, `not_model_calls` decides."""

STORED_RESPONSE = re.compile(r"/responses(/resp_?[\w.-]+(?:/cancel|/input_items)?)$", re.ASCII | re.IGNORECASE)
"""An answer kept under its id, which for OpenAI and Azure alike begins with `resp`."""
STORED_METHODS = frozenset({"GET", "DELETE", "POST"})
STORED_QUERY = frozenset({"after", "before", "include", "include[]", "limit", "order", "starting_after", "stream"})

BEDROCK = re.compile(r"/model/[^/]+(?:/[^/]+)?/(?:invoke|invoke-with-response-stream|converse|converse-stream)$", re.I)
"""A model's id may be an ARN, with a slash in it."""
WEB_SOCKETS = ("/responses", "/realtime")

FORWARDED = frozenset(
    {
        "accept",
        "accept-encoding",
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
"""Request headers that reach the gateway; a list of what is forbidden would miss some provider's credentials."""

AZURE_DEPLOYMENT = re.compile(r"/openai/deployments/([^/]+)/", re.IGNORECASE)


def model_call(path: str) -> ModelCall | None:
    """Return the kind of model call that a request to `path` could be; its method and body may say otherwise."""
    path = normalized(path)
    lowered = path.lower()
    found = next((call for call in MODEL_CALLS if lowered.endswith(call.suffix.lower())), None)
    if found is not None:
        return found
    if stored := STORED_RESPONSE.search(path):
        answer, *below = stored[1].removeprefix("/").split("/")
        where = "/".join(("/v1/responses", answer, *(name.lower() for name in below)))
        return ModelCall("/responses/{id}", where, names_model=False, methods=STORED_METHODS, query=STORED_QUERY)
    return ModelCall("Bedrock", None, names_model=False) if BEDROCK.search(path) else None


def web_socket(path: str) -> ModelCall | None:
    """Return the kind of model call that opening a WebSocket at `path` begins: one that no gateway path takes."""
    lowered = normalized(path).lower()
    suffix = next((suffix for suffix in WEB_SOCKETS if lowered.endswith(suffix)), None)
    if suffix is None:
        return None
    return ModelCall(f"{suffix} over a WebSocket", None, names_model=False, methods=frozenset({"GET"}))


def deployment(path: str) -> str | None:
    """Return the name of the Azure deployment that `path` addresses: Azure's name for a model."""
    found = AZURE_DEPLOYMENT.search(normalized(path))
    return found[1] if found else None
