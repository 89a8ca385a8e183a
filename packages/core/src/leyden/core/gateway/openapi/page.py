"""The OpenAPI page: every path of the gateway, who may ask there, and what may come back. Knows nothing of its routes.

Tests hold the page against the routes, and what is answered against the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from leyden.core.data import semconv
from leyden.core.gateway.openapi.schemas import Schema, reference, schemas

PATH = "/openapi.json"
PREFIXES = ("/v1", "/a/{token}/v1")
"""Where the paths of an attempt are: its token comes by header or as the key, or by path."""

_ABOUT = """\
Model calls of agents, in the API formats of their providers. Every path except the machine's own needs the token of an
open attempt: in the private header, as the key (`Authorization: Bearer`, or `x-api-key`), or in the path. Other paths
below `/v1` are answered by the provider if one is named, and all other paths with status 404. Other methods are
answered with 405."""

_STATUSES: Mapping[int, str] = {
    400: "The request is invalid or not supported; the error has the reason.",
    401: "The attempt token is missing or invalid.",
    403: "The attempt has ended, or is unknown.",
    404: "The policy, response, item or path does not exist.",
    408: "The body arrived too slowly.",
    413: "The body is too large, as sent or decompressed.",
    415: "The body is compressed in a way that is not accepted.",
    429: "Too many requests are waiting, or arrive per second; `Retry-After` has the time until the next try.",
    431: "The head of the request is too long.",
    500: "The server had an error.",
    503: "The request waited too long for its turn; `Retry-After` has the time until the next try.",
    529: "The request waited too long for its turn; `Retry-After` has the time until the next try.",
}
_ANYWHERE = (400, 431, 500)
_OF_ATTEMPT = (*_ANYWHERE, 401, 403, 404)
_WITH_BODY = (*_OF_ATTEMPT, 408, 413, 415, 429, 503)
_OF_MESSAGES = (*_OF_ATTEMPT, 408, 413, 415, 429, 529)
"""Of the Messages API, whose errors have another format."""
_MESSAGES_ERRORS = "MessagesErrorEnvelope"
_PRIVATE = {
    semconv.HEADER_POLICY: "Name of the policy to answer the call.",
    semconv.HEADER_AGENT: "Name of the calling agent; percent-encoded, like the other headers.",
    semconv.HEADER_NODE: "Name of the calling graph node.",
    semconv.HEADER_TRACE: "Trace id of the call.",
    semconv.HEADER_SPAN: "Span id of the call.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    summary: str
    answers: Mapping[str, Schema]
    """Schemas of what comes back, by media type; empty where that is always an error."""
    statuses: Sequence[int] = _OF_ATTEMPT
    """Of errors."""
    body: str | None = None
    """Name of the schema of the request's body."""
    errors: str = "ErrorEnvelope"
    """Name of the schema of errors."""
    query: Mapping[str, Schema] | None = None


def _json(name: str) -> Mapping[str, Schema]:
    return {"application/json": reference(name)}


def _json_or_events(name: str, events: str) -> Mapping[str, Schema]:
    event = {"type": "object", "properties": {"data": {"type": "string", "description": events}}, "required": ["data"]}
    return {**_json(name), "text/event-stream": event}


OF_ATTEMPT: Mapping[str, Mapping[str, Operation]] = {
    "/chat/completions": {
        "post": Operation(
            summary="Answer a conversation",
            body="ChatBody",
            answers=_json_or_events("Completion", "A `Chunk`; at the end `[DONE]`."),
            statuses=_WITH_BODY,
        )
    },
    "/completions": {
        "post": Operation(
            summary="Continue texts",
            body="CompletionsBody",
            answers=_json_or_events("CompletionsCompletion", "A `CompletionsCompletion`; at the end `[DONE]`."),
            statuses=_WITH_BODY,
        )
    },
    "/responses": {
        "post": Operation(
            summary="Answer a conversation, and store the answer so that a later request can continue it",
            body="ResponsesBody",
            answers=_json_or_events("ResponsesAnswer", "An event of the Responses API; the last holds the answer."),
            statuses=_WITH_BODY,
        )
    },
    "/responses/input_tokens": {
        "post": Operation(
            summary="Count the tokens of the prompt",
            body="ResponsesBody",
            answers=_json("InputTokens"),
            statuses=_WITH_BODY,
        )
    },
    "/responses/{response_id}": {
        "get": Operation(
            summary="Read a stored answer",
            answers=_json("ResponsesAnswer"),
            query={"stream": {"enum": ["false", "0"]}},
        ),
        "delete": Operation(summary="Delete a stored answer", answers=_json("DeletedResponse")),
    },
    "/responses/{response_id}/input_items": {
        "get": Operation(
            summary="List the input items of a stored answer",
            answers=_json("ItemList"),
            query={
                "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
                "order": {"enum": ["asc", "desc"], "default": "desc"},
                "after": {"type": "string"},
            },
        )
    },
    "/responses/{response_id}/cancel": {
        "post": Operation(summary="Always fails: answers are synchronous and cannot be cancelled", answers={})
    },
    "/messages": {
        "post": Operation(
            summary="Answer a conversation, in the format of Anthropic's Messages API",
            body="MessagesBody",
            answers=_json_or_events("MessagesAnswer", "An event of the Messages API; the last is `message_stop`."),
            statuses=_OF_MESSAGES,
            errors=_MESSAGES_ERRORS,
        )
    },
    "/messages/count_tokens": {
        "post": Operation(
            summary="Count the tokens of the prompt, in the format of Anthropic's Messages API",
            body="MessagesCountBody",
            answers=_json("MessagesCount"),
            statuses=_OF_MESSAGES,
            errors=_MESSAGES_ERRORS,
        )
    },
    "/models": {"get": Operation(summary="List the policies", answers=_json("ModelList"))},
    "/models/{name}": {"get": Operation(summary="Describe a policy", answers=_json("Model"))},
}
"""Paths below either prefix."""

OF_MACHINE: Mapping[str, Mapping[str, Operation]] = {
    "/healthz": {
        "get": Operation(summary="Report that the gateway is running", answers=_json("Health"), statuses=_ANYWHERE)
    },
    "/metrics": {
        "get": Operation(
            summary="Metrics of the gateway and of the parts behind it, for Prometheus",
            answers={"text/plain": {"type": "string"}},
            statuses=_ANYWHERE,
        )
    },
    PATH: {
        "get": Operation(
            summary="Return this page", answers={"application/json": {"type": "object"}}, statuses=_ANYWHERE
        )
    },
}
"""Paths that ask for no token and hold no secret."""


@cache
def openapi_document() -> bytes:
    """Return the page, as JSON; it is the same for every gateway."""
    by_token: list[Schema] = [{"attempt": []}, {"key": []}, {"x-api-key": []}]
    paths = {path: _path(path, operations, []) for path, operations in OF_MACHINE.items()}
    for prefix, security in zip(PREFIXES, (by_token, []), strict=True):
        paths |= {prefix + path: _path(prefix + path, operations, security) for path, operations in OF_ATTEMPT.items()}
    page: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Leyden gateway", "version": version("leyden-core"), "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": {
                _refusal_name(status, errors): _refusal(status, errors)
                for errors, statuses in (("ErrorEnvelope", _WITH_BODY), (_MESSAGES_ERRORS, _OF_MESSAGES))
                for status in statuses
            },
            "parameters": {name: _private_header(name) for name in _PRIVATE},
            "securitySchemes": {
                "attempt": {"type": "apiKey", "in": "header", "name": semconv.HEADER_ATTEMPT},
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return msgspec.json.encode(page)


def _path(path: str, operations: Mapping[str, Operation], security: Sequence[Schema]) -> Schema:
    named = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    path_parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in named
    ]
    found: Schema = {method: _operation(path, method, operation, security) for method, operation in operations.items()}
    return found | ({"parameters": path_parameters} if path_parameters else {})


def _operation(path: str, method: str, operation: Operation, security: Sequence[Schema]) -> Schema:
    answers: Schema = {
        str(status): {"$ref": f"#/components/responses/{_refusal_name(status, operation.errors)}"}
        for status in operation.statuses
    }
    if operation.answers:
        content = {kind: {"schema": schema} for kind, schema in operation.answers.items()}
        answers["200"] = {"description": "The answer.", "headers": _REQUEST_ID, "content": content}
    parameters: list[Schema] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in (operation.query or {}).items()
    ]
    if operation.body is not None:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _PRIVATE]
    document: Schema = {
        "operationId": f"{method} {path}",
        "summary": operation.summary,
        "security": list(security),
        "parameters": parameters,
        "responses": answers,
    }
    if operation.body is not None:
        content = {"application/json": {"schema": reference(operation.body)}}
        document["requestBody"] = {"required": True, "content": content}
    return document


_REQUEST_ID: Schema = {"x-request-id": {"required": True, "schema": {"type": "string"}}}


def _refusal_name(status: int, errors: str) -> str:
    return f"messages_{status}" if errors == _MESSAGES_ERRORS else str(status)


def _refusal(status: int, errors: str) -> Schema:
    document: Schema = {
        "description": _STATUSES[status],
        "content": {"application/json": {"schema": reference(errors)}},
    }
    if status in (429, 503, 529):
        document["headers"] = {"retry-after": {"required": True, "schema": {"type": "integer", "minimum": 1}}}
    return document


def _private_header(name: str) -> Schema:
    return {"name": name, "in": "header", "description": _PRIVATE[name], "schema": {"type": "string"}}
