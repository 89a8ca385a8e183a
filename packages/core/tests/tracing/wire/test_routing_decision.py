"""What becomes of a request, as a table: by host, path and body it is routed, stopped, or sent where it was going."""

import gzip
from collections.abc import Iterator

import pytest

from leyden.core.data.route import Route
from leyden.core.testing import factories
from leyden.core.tracing.context import open_attempt
from leyden.core.tracing.wire import routing
from leyden.core.tracing.wire.routing_decision import OutgoingRequest, RequestStopped, decide

CHAT = b'{"model": "big"}'
OTHER = b'{"content": "hello"}'
ZIPPED = gzip.compress(OTHER, mtime=0)
ROUTED, STOPPED, SENT = "routed", "stopped", "sent"


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    routing.install(fail_closed=True)
    yield
    routing.uninstall()


def outcome(url: str, body: bytes | None, method: str = "POST", **headers: str) -> str:
    try:
        found = decide(OutgoingRequest(method, url, headers, body))
    except RequestStopped:
        return STOPPED
    return SENT if found is None else ROUTED


@pytest.mark.parametrize(
    ("host", "path", "body", "expected"),
    [
        # a provider's host: its path decides
        ("api.openai.com", "/v1/chat/completions", CHAT, ROUTED),
        ("api.openai.com", "/v1/responses", OTHER, ROUTED),
        ("api.openai.com", "/v1/responses", ZIPPED, ROUTED),
        ("api.openai.com", "/v1/responses", None, ROUTED),
        ("api.openai.com", "/V1/%52esponses/;a", OTHER, ROUTED),
        ("api.openai.com", "/v1/embeddings", CHAT, SENT),
        ("api.openai.com", "/v1/embeddings", None, SENT),
        ("api.openai.com", "/v1/conversations", OTHER, STOPPED),
        ("api.openai.com", "/v1/messages/embeddings", OTHER, STOPPED),
        ("API.OpenAI.com.", "/v1/batches", OTHER, STOPPED),
        ("api.openai.com:8443", "/v1/batches", OTHER, STOPPED),
        ("api%2Eopenai.com", "/v1/batches", OTHER, STOPPED),
        ("eu.api.openai.com", "/v1/batches", OTHER, STOPPED),
        ("api.anthropic.com", "/v1/messages", ZIPPED, ROUTED),
        ("api.anthropic.com", "/v1/messages", OTHER, ROUTED),
        ("api.anthropic.com", "/v1/messages/count_tokens", None, ROUTED),
        ("api.anthropic.com", "/v1/messages/batches", OTHER, STOPPED),
        ("api.openai.com", "/v1/threads/t/messages", CHAT, STOPPED),
        ("r.services.ai.azure.com", "/anthropic/v1/messages", OTHER, ROUTED),
        ("us-east5-aiplatform.googleapis.com", "/v1/p/publishers/anthropic/models/c:rawPredict", OTHER, STOPPED),
        ("bedrock-runtime.us-east-1.amazonaws.com", "/model/anthropic.claude/invoke", OTHER, STOPPED),
        ("api.anthropic.com", "/v1/complete", OTHER, STOPPED),
        ("r.openai.azure.com", "/openai/batches", OTHER, STOPPED),
        ("r.services.ai.azure.com", "/api/projects/p/threads/runs", OTHER, STOPPED),
        ("r.cognitiveservices.azure.com", "/openai/v1/responses", OTHER, ROUTED),
        ("r.cognitiveservices.azure.com", "/vision/v3.2/analyze", OTHER, SENT),
        ("bedrock-agent-runtime.us-east-1.amazonaws.com", "/retrieveAndGenerate", OTHER, STOPPED),
        ("tools.gateway.bedrock-agentcore.us-east-1.amazonaws.com", "/mcp", OTHER, SENT),
        ("us-central1-aiplatform.googleapis.com", "/v1/endpoints/1:predict", OTHER, STOPPED),
        ("api.openai.com", "/v1/completions", CHAT, ROUTED),
        ("api.openai.com", "/v1/completions", OTHER, ROUTED),
        ("api.openai.com", "/v1/completions", None, ROUTED),
        ("api.openai.com", "/v1/%63ompletions//", ZIPPED, ROUTED),
        ("api.openai.com", "/v1/engines/davinci/completions", OTHER, ROUTED),
        ("r.openai.azure.com", "/openai/deployments/d/completions", CHAT, ROUTED),
        ("api.deepseek.com", "/beta/completions", CHAT, ROUTED),
        ("api.mistral.ai", "/v1/agents/completions", OTHER, STOPPED),
        ("api.mistral.ai", "/v1/agents/completions", CHAT, STOPPED),
        ("api.mistral.ai", "/v1/Fim/completions/", CHAT, STOPPED),
        ("api.openai.com", "/v1/completions/files", OTHER, STOPPED),
        ("api.cohere.com", "/v1/chat", OTHER, STOPPED),
        ("api.cohere.com", "/v2/embed", OTHER, SENT),
        ("dashscope.aliyuncs.com", "/api/v1/services/aigc/text-generation/generation", OTHER, STOPPED),
        ("some-box:11434", "/api/chat", OTHER, STOPPED),
        ("some-box:11434", "/api/embed", CHAT, SENT),
        ("127.1:11434", "/api/new", OTHER, STOPPED),
        ("dbc-1.cloud.databricks.com", "/serving-endpoints/m/invocations", OTHER, STOPPED),
        ("dbc-1.cloud.databricks.com", "/api/2.0/sql/statements", OTHER, SENT),
        # any other: a request is a model call by its path and by what its body says
        ("api.provider.invalid", "/v1/chat/completions", OTHER, ROUTED),
        ("api.provider.invalid", "/v1/%63hat//completions/", OTHER, ROUTED),
        ("api.provider.invalid", "/v1/responses", CHAT, ROUTED),
        ("api.provider.invalid", "/v1/completions", CHAT, ROUTED),
        ("api.provider.invalid", "/v1/agents/completions", CHAT, STOPPED),
        ("api.provider.invalid", "/v1/fim/completions", CHAT, STOPPED),
        ("shell.invalid", "/v1/completions", OTHER, SENT),
        ("shell.invalid", "/v1/agents/completions", OTHER, SENT),
        ("shell.invalid", "/completions/7", CHAT, SENT),
        ("api.provider.invalid", "/v1/responses", gzip.compress(CHAT, mtime=0), ROUTED),
        ("api.provider.invalid", "/v1/responses", b'{"prompt": {"id": "pmpt_1"}}', ROUTED),
        ("api.provider.invalid", "/v1/messages", CHAT, ROUTED),
        ("api.provider.invalid", "/v1/threads/t/messages", CHAT, STOPPED),
        ("mail.invalid", "/v1/messages", OTHER, SENT),
        ("mail.invalid", "/channels/7/messages", OTHER, SENT),
        ("mail.invalid", "/channels/7/messages", ZIPPED, SENT),
        ("survey.invalid", "/surveys/7/responses", b'{"prompt": "how are you?"}', SENT),
        ("tools.invalid", "/v1/chat", CHAT, SENT),
        ("tools.invalid", "/invocations", CHAT, SENT),
        ("tools.invalid", "/conversations", CHAT, SENT),
        ("127.0.0.1:7000", "/mcp", CHAT, SENT),
    ],
)
def test_a_request_in_a_runner(host: str, path: str, body: bytes | None, expected: str) -> None:
    zipped = {"content-encoding": "gzip"} if body is not None and body.startswith(b"\x1f\x8b") else {}
    with open_attempt(factories.attempt()):
        assert outcome(f"https://{host}{path}", body, **zipped) == expected


def test_methods_are_compared_in_any_case_and_as_servers_are_asked_to_take_them() -> None:
    models = "https://generativelanguage.googleapis.com/v1beta/models"
    with open_attempt(factories.attempt()):
        assert outcome("https://api.openai.com/v1/chat/completions", CHAT, "post") == ROUTED
        assert outcome(models, b"", "GET") == SENT
        assert outcome(f"{models}/g:generateContent", b"", "GET", **{"x-http-method-override": "POST"}) == STOPPED
        assert outcome(models, b"", "GET", **{"x-http-method-override": "POST"}) == STOPPED
        assert outcome("wss://api.openai.com/v1/models", b"", "GET", upgrade="websocket") == STOPPED


def test_routes_let_a_provider_answer_what_the_gateway_does_not_take() -> None:
    routes = (Route(host="api.cohere.com", path="/v1/chat", to="provider"),)
    with open_attempt(factories.attempt(routes=routes)):
        assert outcome("https://api.cohere.com/v1/chat", OTHER) == SENT
        assert outcome("https://api.cohere.com/v1/generate", OTHER) == STOPPED


def test_a_host_is_a_providers_once_a_model_call_went_there_and_its_port_on_this_machine_in_that_attempt_only() -> None:
    with open_attempt(factories.attempt()):
        for base in ("https://llm.invalid/v1", "http://127.0.0.1:8000/v1"):
            assert outcome(f"{base}/chat", OTHER) == SENT
            assert outcome(f"{base}/chat/completions", OTHER) == ROUTED
            assert outcome(f"{base}/chat", OTHER) == STOPPED
            assert outcome(f"{base}/embeddings", OTHER) == SENT
        assert outcome("http://[::1]:8000/v1/chat", OTHER) == STOPPED
        assert outcome("http://127.0.0.1:8001/v1/chat", OTHER) == SENT
    with open_attempt(factories.attempt()):
        assert outcome("https://llm.invalid/v1/chat", OTHER) == STOPPED
        assert outcome("http://127.0.0.1:8000/v1/chat", OTHER) == SENT


def test_what_else_the_gateway_serves_is_never_stopped() -> None:
    with open_attempt(factories.attempt("http://127.0.0.1:8000")):
        outcome("http://localhost:8000/v1/chat/completions", CHAT)
        assert outcome("http://127.0.0.1:8000/capture/begin", OTHER) == SENT
        assert outcome("http://localhost:8000/metrics", b"", "GET") == SENT


def test_in_production_capture_only_what_is_known_as_a_model_call_is_one() -> None:
    with open_attempt(factories.attempt(fail_open=True)):
        assert outcome("https://api.openai.com/v1/conversations", OTHER) == SENT
        assert outcome("https://api.openai.com/v1/responses", OTHER) == SENT
        assert outcome(
            "https://api.openai.com/v1/responses", gzip.compress(CHAT, mtime=0), **{"content-encoding": "gzip"}
        ) == (ROUTED)
