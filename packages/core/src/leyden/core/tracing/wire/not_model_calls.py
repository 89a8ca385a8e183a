"""Table of requests to a model provider's host that are no model calls.

Every other request to such a host counts as a model call. Paths are compared in the form of `request_path`, in lower
case. For hosts see `provider_hosts`.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from leyden.core.tracing.wire.request_path import normalized

READ = frozenset({"GET", "HEAD", "OPTIONS"})
MANAGE = READ | {"DELETE"}
ALL = MANAGE | {"POST", "PUT", "PATCH"}

ALLOWED: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    (
        "embeddings",
        ALL,
        (
            r"embeddings",
            r"embed",
            r"embed-jobs(?:/ID){0,2}",
            r"feature-extraction",
            r"services/embeddings/ID/ID",
            r"models/ID:(?:embedcontent|batchembedcontents|asyncbatchembedcontent)",
            r"models/[^/]*embedding[^/]*:predict",  # Vertex AI
        ),
    ),
    (
        "ranking, classification and moderation",
        ALL,
        (
            r"rerank",
            r"reranking",
            r"classify",
            r"classifications",
            r"moderations",
            r"guardrail/ID/version/ID/apply",
        ),
    ),
    (
        "counting tokens",
        ALL,
        (
            r"tokenize",
            r"detokenize",
            r"model/.+/count-tokens",
            r"models/ID:(?:counttokens|computetokens)",
            r"text/tokenization",
        ),
    ),
    (
        "files, and searching them",
        ALL,
        (
            r"files(?:/ID(?:/(?:content|url))?)?",
            r"files/ID:download",
            r"uploads(?:/ID(?:/(?:parts|complete|cancel))?)?",
            r"containers(?:/ID(?:/files(?:/ID(?:/content)?)?)?)?",
            r"skills(?:/ID(?:/(?:content|versions(?:/ID(?:/content)?)?))?)?",
            r"libraries(?:/ID(?:/ID){0,3})?",
            r"datasets(?:/ID){0,3}",
            r"vector_stores(?:/ID(?:/(?:search|(?:files|file_batches)(?:/ID){0,2}))?)?",
            r"filesearchstores(?:/ID){0,3}(?::uploadtofilesearchstore|:importfile)?",
            r"corpora(?:/ID){0,3}(?::query)?",
            r"cachedcontents(?:/ID)?",
            r"knowledgebases/ID/retrieve",
            r"ocr",
            r"search",
        ),
    ),
    (
        "sound, pictures and films",
        ALL,
        (
            r"audio/(?:speech|transcriptions|translations|voices|voice_consents)(?:/ID)?",
            r"images/(?:generations(?::submit)?|edits|variations)",
            r"videos(?:/ID(?:/(?:content|remix))?)?",
            r"models/imagen[^/]*:predict",
            r"models/veo[^/]*:(?:predictlongrunning|fetchpredictoperation)",
            r"services/aigc/(?:text2image|image2image|image-generation|video-generation)/ID",
        ),
    ),
    (
        "models and what is known of them",
        MANAGE,
        (
            r"models(?:/[^/]+){0,3}",
            r"engines(?:/ID)?",
            r"foundation-models(?:/[^/]+)?",
            r"inference-profiles(?:/[^/]+){0,2}",
            r"publishers(?:/ID)?",
            r"operations(?:/ID){0,2}",
            r"deployments(?:/ID)?",
            r"connections(?:/ID)?",
            r"indexes(?:/ID){0,3}",
        ),
    ),
    (
        "models of a server of one's own, and Ollama's web search",
        ALL,
        (r"api/(?:tags|show|ps|version|pull|push|copy|delete|create|web_search|web_fetch)", r"api/blobs/[^/]+"),
    ),
    (
        "training",
        ALL,
        (r"fine_tuning/(?:jobs|checkpoints)(?:/[^/]+){0,3}", r"fine-tunes(?:/[^/]+){0,2}", r"finetuning(?:/ID){0,3}"),
    ),
    ("traces", ALL, (r"traces/ingest",)),
    (
        "an account, and whether a server is there",
        READ,
        (
            r"organizations?(?:/ID)+",
            r"(?:auth/)?keys?",
            r"check-api-key",
            r"credits",
            r"generation",  # OpenRouter: the cost of a call
            r"providers",
            r"me",
            r"usage",
            r"user/balance",
            r"dashboard(?:/ID)+",
            r"health(?:/ID)?|healthz|livez|readyz|ping|version|metrics|openapi\.json",
        ),
    ),
)
"""Kind of request, its methods, and patterns of the last segments of its path. `ID` stands for any one segment."""

ROOTS = (
    # Azure AI services, which share hosts with Azure OpenAI
    "computervision",
    "contentsafety",
    "documentintelligence",
    "face",
    "formrecognizer",
    "language",
    "speechtotext",
    "texttospeech",
    "translator",
    "vision",
    # Tools of Bedrock AgentCore
    "browsers",
    "code-interpreters",
    "identities",
    "memories",
)
"""First path segments below which no request is a model call, unless a segment matches `_MODEL_WORDS`."""

_PLAIN = re.compile(r"(?:/[\w.~@!$&'()*+,=:-]+)+")
"""A path without characters that another server may take for the end of a path."""
_MODEL_WORDS = re.compile(
    r"/(?:completions?|responses|messages|conversations|threads|runs|complete|generate|invocations|batch(?:es)?"
    r"|realtime|invoke|converse)/"
)
"""Segments that must not precede the segments of an entry, nor occur below a root."""
_TABLE = [
    (methods, re.compile(rf"(.*)/(?:{'|'.join(tails).replace('ID', '[^/:]+')})")) for _, methods, tails in ALLOWED
]
_UNDER_ROOT = re.compile(rf"(/(?:{'|'.join(ROOTS)})/.+)")


def is_allowed(methods: Iterable[str], path: str) -> bool:
    """Return whether a request to `path` is no model call, under each of the methods that its server may apply."""
    return all(_is_allowed(method, path) for method in methods)


@lru_cache(maxsize=4096)
def _is_allowed(method: str, path: str) -> bool:
    path = normalized(path).lower()
    if path == "/":
        return method in READ
    if method not in ALL or not _PLAIN.fullmatch(path):
        return False
    tails = [pattern for methods, pattern in _TABLE if method in methods]
    found = (pattern.fullmatch(path) for pattern in (*tails, _UNDER_ROOT))
    return any(match is not None and not _MODEL_WORDS.search(f"{match[1]}/") for match in found)
