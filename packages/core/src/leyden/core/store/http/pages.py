"""Pages of a store's server that need no token: health, metrics, the OpenAPI document, and documentation.

`/docs` is plain HTML made from the OpenAPI document, without scripts and external resources. No page contains a
rollout's id.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from leyden.core.store.base import LightningStore
from leyden.core.store.http.metrics import CONTENT_TYPE, StoreMetrics
from leyden.core.store.http.otlp import endpoint
from leyden.core.store.rpc import REQUEST_ID, Method, StoreFailure, methods

logger = logging.getLogger(__name__)

_JSON = "application/json"
_ABOUT = """\
Every method of a store is a path. Arguments come as a JSON object, answers are JSON values; processes of Leyden speak
MessagePack. A trainer's token allows everything, an agent's the spans and the status of its own attempt. Bytes in
attributes, such as packed token ids, are base64 in answers; OTLP takes them as they are."""
_STATUSES: Mapping[int, str] = {
    400: "The call is invalid; the error has the reason.",
    401: "The bearer token is missing or invalid.",
    403: "The token does not allow this, or its attempt has ended.",
    408: "The request arrived too slowly.",
    413: "The request is too large, as sent or decompressed, or holds too much.",
    415: "The request is compressed in a way that is not accepted.",
    422: "The store refused the call; `error` is the name of the error, such as `NotFound`.",
    429: "The server is busy; `Retry-After` has the time until the next try.",
    500: "The store failed.",
}

_Schema = dict[str, Any]


def page_routes(store: LightningStore, metrics: StoreMetrics) -> list[Route]:
    """Return the routes `/healthz`, `/metrics`, `/openapi.json` and `/docs`."""

    async def show_metrics(_: Request) -> Response:
        try:
            return Response(await metrics.render(store), 200, media_type=CONTENT_TYPE)
        except Exception:
            logger.exception("the store's numbers could not be read")
            return PlainTextResponse("the store failed; its log has the reason", 503)

    async def show_health(_: Request) -> Response:
        return Response(b'{"status":"ok"}', 200, media_type=_JSON)

    async def show_openapi(_: Request) -> Response:
        return Response(openapi_document(), 200, media_type=_JSON)

    async def show_docs(_: Request) -> Response:
        return HTMLResponse(docs_page())

    return [
        Route("/healthz", show_health),
        Route("/metrics", show_metrics),
        Route("/openapi.json", show_openapi),
        Route("/docs", show_docs),
    ]


@cache
def openapi_document() -> bytes:
    """Return the OpenAPI document as JSON, made from the interface's signatures; it is the same for every store."""
    types: list[Any] = [StoreFailure]
    for method in methods().values():
        types += [method.arguments, method.answer]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    pairs = zip(schemas[1::2], schemas[2::2], strict=True)
    by_token: list[_Schema] = [{"token": []}]
    paths: _Schema = {
        f"/{method.name}": {"post": _operation(method, *schema)}
        for method, schema in zip(methods().values(), pairs, strict=True)
    }
    paths[endpoint.PATH] = {"post": _traces()}
    for path, summary, kind in (
        ("/healthz", "Report that the server is running", _JSON),
        ("/metrics", "Metrics of the server, for Prometheus", "text/plain"),
        ("/openapi.json", "Return this page", _JSON),
        ("/docs", "Show this page as HTML", "text/html"),
    ):
        answers: _Schema = {"200": {"description": "The answer.", "content": {kind: {}}}}
        paths[path] = {"get": {"operationId": path[1:], "summary": summary, "security": [], "responses": answers}}
    page: _Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Leyden store", "version": version("leyden-core"), "description": _ABOUT},
        "security": by_token,
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _refusal(status, schemas[0]) for status in _STATUSES},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(page)


def _operation(method: Method, arguments: _Schema, answer: _Schema) -> _Schema:
    summary, _, more = method.about.partition("\n\n")
    header = {
        "name": REQUEST_ID,
        "in": "header",
        "description": "Id of a call that writes: if it is sent again with the same id, it changes nothing.",
        "schema": {"type": "string"},
    }
    return {
        "operationId": method.name,
        "summary": " ".join(summary.split()),
        "description": more,
        "parameters": [header] if method.writes else [],
        "requestBody": {"required": True, "content": {_JSON: {"schema": arguments}}},
        "responses": {"200": {"description": "The answer.", "content": {_JSON: {"schema": answer}}}, **_errors()},
    }


def _traces() -> _Schema:
    kinds: _Schema = {"application/x-protobuf": {}, _JSON: {}}
    status = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
    refusal: _Schema = {"application/x-protobuf": {}, _JSON: {"schema": status}, "text/plain": {}}
    more = {501: "The packages that OTLP needs are not installed.", 503: "The store failed; try again later."}
    refused = {
        str(code): {"description": line, "content": refusal}
        for code, line in {**_STATUSES, **more}.items()
        if code != 422
    }
    return {
        "operationId": "otlp_traces",
        "summary": "Receive spans from any OpenTelemetry exporter (OTLP/HTTP)",
        "requestBody": {"required": True, "content": kinds},
        "responses": {"200": {"description": "All or some of the spans are stored.", "content": kinds}, **refused},
    }


def _errors() -> _Schema:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in _STATUSES}


def _refusal(status: int, schema: _Schema) -> _Schema:
    response: _Schema = {"description": _STATUSES[status], "content": {_JSON: {"schema": schema}}}
    if status == 429:
        response["headers"] = {"retry-after": {"required": True, "schema": {"type": "integer", "minimum": 1}}}
    return response


@cache
def docs_page() -> str:
    """Return the OpenAPI document as HTML."""
    page: _Schema = msgspec.json.decode(openapi_document())
    schemas: Mapping[str, _Schema] = page["components"]["schemas"]
    parts = [
        f"<h2><code>{verb.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}</p>"
        + _table(operation, schemas)
        for path, known in page["paths"].items()
        for verb, operation in known.items()
    ]
    records = [
        f'<h2 id="{escape(name)}">{escape(name)}</h2>' + _fields(schema)
        for name, schema in schemas.items()
        if not name.endswith("_arguments")
    ]
    title = f"{escape(page['info']['title'])} {escape(page['info']['version'])}"
    about = f"<p>{escape(_ABOUT)}</p><p><a href='openapi.json'>openapi.json</a></p>"
    style = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto}td,th{text-align:left;padding-right:1em}"
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{style}</style>"
    return f"{head}<h1>{title}</h1>{about}{''.join(parts)}<h1>Nouns</h1>{''.join(records)}</html>"


def _table(operation: _Schema, schemas: Mapping[str, _Schema]) -> str:
    body: _Schema = operation.get("requestBody", {}).get("content", {}).get(_JSON, {}).get("schema", {})
    arguments = schemas.get(body.get("$ref", "").rpartition("/")[2])
    answer = operation["responses"]["200"]["content"].get(_JSON, {}).get("schema")
    answer_html = f"<p>Answer: {_kind(answer)}</p>" if answer else ""
    return (_fields(arguments) if arguments else "") + answer_html


def _fields(schema: _Schema) -> str:
    required: Sequence[str] = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{_kind(kind)}</td>"
        f"<td>{'required' if name in required else ''}</td></tr>"
        for name, kind in schema.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _kind(schema: _Schema) -> str:
    """Return a short description of a value's type as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(kind) for kind in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(kind))}</code>" for kind in schema["enum"])
    if schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_kind(schema['items'])}"
    return escape(str(schema.get("type", "anything")))
