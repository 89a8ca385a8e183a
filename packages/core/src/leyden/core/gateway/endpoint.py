"""`Endpoint`: one path of the gateway; it converts exceptions to error responses."""

import logging
import time
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leyden.core.gateway.http.asgi import ClientGone, send_json
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, openai_error, server_error
from leyden.core.masking import mask_text

_log = logging.getLogger("leyden.gateway")


class Endpoint:
    """ASGI application that answers one method and sends errors in the format of a provider.

    `on_refused` is a callback that gets the code of every refusal. `error_answer` returns the error response to a
    refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        method: str | None = None,
        *,
        on_refused: Callable[[str], None],
        error_answer: Callable[[Refusal], ErrorAnswer] = openai_error,
    ) -> None:
        self._app, self._method, self._on_refused, self._error_answer = app, method, on_refused, error_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; an unexpected exception is logged and becomes status 500."""
        try:
            if self._method is not None and scope["method"] != self._method:
                raise not_allowed(scope["method"], self._method)
            await self._app(scope, receive, send)
        except Refusal as refusal:
            self._on_refused(refusal.body.code or refusal.body.type)
            await send_json(send, *self._error_answer(refusal))
        except ClientGone:
            pass
        except Exception:
            _log.exception("a request failed")
            await send_json(send, *self._error_answer(server_error("The server had an error.")))


class ObservedSend:
    """ASGI `send` that records the response's status and times."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._began = time.perf_counter()
        self.status: int | None = None
        """HTTP status; None before the response starts."""
        self.first_event: float | None = None
        """Seconds from the request to the first event of a stream."""

    def __call__(self, message: Message) -> Awaitable[None]:
        """Record the message's status or time, and send the message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.first_event is None and message.get("more_body", False):
            self.first_event = self.seconds
        return self._send(message)

    @property
    def seconds(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self._began


async def unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Raise Refusal with status 404, for every path without an endpoint."""
    raise Refusal(404, f"Invalid URL ({scope['method']})", code="unknown_url")


SERVED = "POST /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages, and GET /v1/models"
SHOWN_CHARACTERS = 200
"""Longest path in an error message."""


def not_served(method: str, path: str, *, has_provider: bool) -> Refusal:
    """Return the refusal (status 404) of a request to a path below `/v1` that is no model call."""
    shown = mask_text(f"{method} /v1/{path}")[:SHOWN_CHARACTERS]
    if has_provider:
        reason = "it is not a path that is sent to the endpoint."
    else:
        reason = (
            "no provider is named that could answer anything else. Name one with `--provider URL` (`leyden train`, "
            "`check`, `dev`, `exec`, `gateway`), or let the agent call its provider's own URL for this request."
        )
    return Refusal(404, f"Invalid URL ({shown}): this gateway answers {SERVED}; {reason}", code="unknown_url")


def not_allowed(method: str, *allowed: str) -> Refusal:
    """Return the refusal (status 405) of a method, with the `allowed` methods in its header."""
    headers = {"allow": ", ".join(allowed)}
    return Refusal(405, f"Not allowed to {method} here.", code="method_not_allowed", headers=headers)
