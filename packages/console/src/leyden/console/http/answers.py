"""Requests and answers of the API: bodies, what a handler returns as JSON, and an error as one sentence."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from leyden.console.plain import one_line
from leyden.core.errors import LeydenError, NotFound, RunError

Handler = Callable[[Request], Awaitable[Any]]
Body = TypeVar("Body", bound=msgspec.Struct)

MOST_BYTES = 4 << 20
"""Largest body of a request."""

log = logging.getLogger(__name__)


class InputError(ValueError):
    """A field of a form has a value that cannot work. `line` is that of its text, from 1, if it is known."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


def as_json(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that sends what `handler` returns as JSON, and an error as one sentence."""

    async def endpoint(request: Request) -> Response:
        try:
            found = await handler(request)
        except (NotFound, RunError) as error:
            return error_answer(404, error)
        except ValueError as error:
            return error_answer(422, error)
        except (LeydenError, OSError) as error:
            return error_answer(409, error)
        except Exception as error:  # one page that cannot be shown must not take the others along
            log.exception("%s could not be answered", request.url.path)
            return error_answer(500, RuntimeError(f"{type(error).__name__}: {error}"))
        body = msgspec.json.encode(found)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return endpoint


def error_answer(status: int, error: Exception) -> Response:
    """Return an error as one sentence, with the line of the text that it is about if that is known."""
    line = {"line": error.line} if isinstance(error, InputError) and error.line is not None else {}
    body = msgspec.json.encode({"error": one_line(error), **line})
    return Response(body, status, media_type="application/json", headers={"cache-control": "no-store"})


def whole_number(request: Request, name: str) -> int:
    """Return a number of the query, 0 without it; raises ValueError for anything else."""
    return as_whole_number(name, request.query_params.get(name, "0"))


def as_whole_number(name: str, value: str) -> int:
    """Return a number that was sent as text; raises ValueError for anything else."""
    if not value.isascii() or not value.isdecimal() or len(value) > 15:
        raise ValueError(f"{name} must be a whole number, got {value[:40]!r}")
    return int(value)


async def body_of(request: Request, kind: type[Body]) -> Body:
    """Return the JSON body of a request; raises ValueError, in one sentence, if it is not of this kind or too large."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            raise ValueError(f"a request may have {MOST_BYTES:,} bytes")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the request is not understood: {error}") from None
