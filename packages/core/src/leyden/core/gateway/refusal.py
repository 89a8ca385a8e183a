"""`Refusal`: the exception for a refused request, with the error response in OpenAI's format."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from leyden.core.errors import GatewayError


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The `error` object of OpenAI's format."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """An error response."""

    error: ErrorBody


class Refusal(GatewayError):
    """Exception for a request that gets an error response; `status` is the HTTP status that the provider would use.

    `headers` are sent in addition to the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers: Mapping[str, str] = headers or {}
        self.body = ErrorBody(message=message, type=type, param=param, code=code)

    def encode(self) -> bytes:
        """Return the JSON of the error response."""
        return msgspec.json.encode(ErrorEnvelope(self.body))


class ErrorAnswer(NamedTuple):
    """An error response in the format of one provider."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def openai_error(refusal: Refusal) -> ErrorAnswer:
    """Return the error response in OpenAI's format."""
    return ErrorAnswer(refusal.status, refusal.encode(), refusal.headers)


def unsupported(param: str, reason: str) -> Refusal:
    """Return the refusal of a parameter that the gateway does not support, and therefore does not accept."""
    return Refusal(400, f"Unsupported parameter: '{param}' {reason}", param=param, code="unsupported_parameter")


def invalid(message: str, param: str | None = None) -> Refusal:
    """Return the refusal of an invalid value."""
    return Refusal(400, message, param=param, code="invalid_value")


def server_error(message: str) -> Refusal:
    """Return the refusal for a failure of the gateway itself (status 500); clients retry such a request."""
    return Refusal(500, message, type="server_error")


def bad_gateway(reason: str) -> Refusal:
    """Return the refusal for a failure of an upstream server (status 502)."""
    return Refusal(502, f"Bad gateway: {reason}.", type="server_error")


def retry_after(seconds: float) -> dict[str, str]:
    """Return the `retry-after` header: whole seconds, rounded up, at least 1."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}
