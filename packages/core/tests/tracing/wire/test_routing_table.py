import pytest

from leyden.core.tracing.wire.routing_table import deployment, model_call, web_socket


@pytest.mark.parametrize(
    ("path", "gateway_path"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/openai/deployments/gpt-4/chat/completions", "/v1/chat/completions"),
        ("/v1/completions", "/v1/completions"),
        ("/openai/deployments/gpt-4/completions", "/v1/completions"),
        ("/v1/agents/completions", None),
        ("/v1/responses", "/v1/responses"),
        ("/openai/v1/responses", "/v1/responses"),
        ("/openai/responses/resp_1a", "/v1/responses/resp_1a"),
        ("/v1/responses/resp_1a/cancel", "/v1/responses/resp_1a/cancel"),
        ("/v1/responses/resp_1a/input_items", "/v1/responses/resp_1a/input_items"),
        ("/v1/responses/compact", "/v1/responses/compact"),
        ("/v1/messages", "/v1/messages"),
        ("/anthropic/v1/messages/", "/v1/messages"),
        ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/threads/t/messages", None),
        ("/v1beta/models/g:generateContent", None),
    ],
)
def test_a_model_call_and_where_the_gateway_takes_it(path: str, gateway_path: str | None) -> None:
    call = model_call(path)
    assert call is not None
    assert call.gateway_path == gateway_path


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/responses/17", "/v1/responses/resp_1/../../admin", "/surveys/responses/list", "/v1/models"],
)
def test_what_is_no_model_call(path: str) -> None:
    assert model_call(path) is None


def test_stored_answers_are_read_and_deleted_too() -> None:
    stored, new = model_call("/v1/responses/resp_1"), model_call("/v1/responses")
    assert stored is not None
    assert new is not None
    assert stored.methods == {"GET", "DELETE", "POST"}
    assert new.methods == {"POST"}


def test_web_sockets_for_model_calls_are_known() -> None:
    assert web_socket("/v1/responses") is not None
    assert web_socket("/v1/realtime/") is not None
    assert web_socket("/v1/chat/completions") is None


def test_azures_deployment_is_its_models_name() -> None:
    assert deployment("/openai/deployments/gpt-4/chat/completions") == "gpt-4"
    assert deployment("/v1/chat/completions") is None
