"""Refusals of shared code as errors of the Messages API."""

import json

import pytest

from leyden.core.gateway.anthropic.errors import error_answer, error_event
from leyden.core.gateway.refusal import Refusal, retry_after, server_error


@pytest.mark.parametrize(
    ("status", "sent", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (401, 401, "authentication_error"),
        (403, 403, "permission_error"),
        (404, 404, "not_found_error"),
        (405, 405, "invalid_request_error"),
        (408, 408, "timeout_error"),
        (413, 413, "request_too_large"),
        (415, 415, "invalid_request_error"),
        (429, 429, "rate_limit_error"),
        (500, 500, "api_error"),
        (502, 502, "api_error"),
        (503, 529, "overloaded_error"),
    ],
)
def test_each_status_has_the_providers_type(status: int, sent: int, kind: str) -> None:
    answer = error_answer(Refusal(status, "no", headers=retry_after(2.5)))
    assert (answer.status, answer.headers["retry-after"]) == (sent, "3")
    request_id = answer.headers["request-id"]
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": request_id,
    }
    assert request_id.startswith("req_")


def test_the_message_names_the_field_once() -> None:
    texts = ("There is no such tool.", "Invalid 'tool_choice': no")
    errors = [json.loads(error_answer(Refusal(400, text, param="tool_choice")).body)["error"] for text in texts]
    assert [error["message"] for error in errors] == [f"tool_choice: {texts[0]}", texts[1]]


def test_an_event_has_the_id_of_its_request() -> None:
    name, data = error_event(server_error("broken"), "req_1").decode().rstrip("\n").split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "error": {"type": "api_error", "message": "broken"},
        "request_id": "req_1",
    }
