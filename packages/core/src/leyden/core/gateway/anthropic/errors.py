"""Errors of the Messages API: builds refusals in its words, and writes any refusal in its format.

Refusals of shared code have OpenAI's types and statuses. They are converted here, so that Anthropic's client raises the
exception that it raises for its provider.
"""

import re
import secrets
from typing import Literal, TypeAlias

import msgspec

from leyden.core.gateway.refusal import ErrorAnswer, Refusal, invalid

ErrorType: TypeAlias = Literal[
    "api_error",
    "authentication_error",
    "invalid_request_error",
    "not_found_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
    "request_too_large",
    "timeout_error",
]

OVERLOADED = 529
_STATUSES = {503: OVERLOADED}
"""Statuses of the gateway for which the provider has another one."""
_TYPES: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")


class MessagesError(msgspec.Struct, frozen=True, kw_only=True):
    """The `error` object."""

    type: ErrorType
    message: str


class MessagesErrorEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """An error response, and the data of an error event."""

    type: Literal["error"] = "error"
    error: MessagesError
    request_id: str


def new_request_id() -> str:
    """Return a new id of a request, which the provider sends in a header and in errors."""
    return f"req_{secrets.token_hex(12)}"


def request_headers(request_id: str) -> dict[str, str]:
    """Return the header from which Anthropic's client reads the id of a request."""
    return {"request-id": request_id}


def error_answer(refusal: Refusal) -> ErrorAnswer:
    """Return the error response to a refusal."""
    request_id = new_request_id()
    status = _STATUSES.get(refusal.status, refusal.status)
    return ErrorAnswer(status, _encoded(refusal, request_id), {**refusal.headers, **request_headers(request_id)})


def error_event(refusal: Refusal, request_id: str | None = None) -> bytes:
    """Return the event with which a stream fails; clients raise it as an exception."""
    return b"event: error\ndata: " + _encoded(refusal, request_id or new_request_id()) + b"\n\n"


def wrong(field: str, message: str) -> Refusal:
    """Return the refusal of the value of `field`, such as `messages.0.content`."""
    return invalid(f"{field}: {message}", field)


def not_available(field: str, message: str) -> Refusal:
    """Return the refusal of a field that the provider supports and the gateway does not."""
    return Refusal(400, f"{field}: {message}", param=field, code="unsupported_parameter")


def not_permitted(field: str) -> Refusal:
    """Return the refusal of a field that the API does not have."""
    return Refusal(400, f"{field}: Extra inputs are not permitted", param=field, code="unknown_parameter")


def unreadable_body(error: Exception) -> Refusal:
    """Return the refusal of a body that could not be decoded, with the field where that is known."""
    text, _, place = str(error).partition(" - at `$")
    place = _INDEX.sub(r".\1", place.rstrip("`")).strip(".")
    if missing := _MISSING.match(text):
        return wrong(f"{place}.{missing[1]}" if place else missing[1], "Field required")
    if place:
        return wrong(place, text)
    return invalid(f"The request body is not valid JSON: {text}")


def _encoded(refusal: Refusal, request_id: str) -> bytes:
    status = _STATUSES.get(refusal.status, refusal.status)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message, param = refusal.body.message, refusal.body.param
    if param is not None and param not in message:
        message = f"{param}: {message}"
    return msgspec.json.encode(
        MessagesErrorEnvelope(error=MessagesError(type=kind, message=message), request_id=request_id)
    )
