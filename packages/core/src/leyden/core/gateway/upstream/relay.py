"""`Upstream`: an endpoint that answers calls instead of the policy, for runs without training.

The endpoint comes from the configuration, never from a request. Its API key is sent to this endpoint only, and no
redirect is followed. Chat Completions and Completions request token ids, which some servers such as vLLM can send. The
ids are recorded, and removed from the response to the agent. The rest of a response reaches the agent unchanged.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from starlette.types import Send
from yarl import URL

from leyden.core.data import reasons
from leyden.core.gateway.anthropic.dialect import MessagesDialect
from leyden.core.gateway.anthropic.request import recorded_request
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.retry_cache import RetryCache
from leyden.core.gateway.chat.request import RECORDED_SEPARATELY
from leyden.core.gateway.completions.request import prompt_messages
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.http.asgi import JSON, ClientGone, ClientWatch, start_message
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.model_request import RecordedRequest, read_fields, rest_of, text_of
from leyden.core.gateway.refusal import Refusal, invalid
from leyden.core.gateway.upstream.answer_view import ended, read_answer
from leyden.core.gateway.upstream.messages_view import is_messages_error
from leyden.core.gateway.upstream.token_ids import TOKEN_ID_REQUEST, TokenIdFilter
from leyden.core.masking import mask_json, mask_text
from leyden.core.tracing.context import outside_attempt

NAME = "endpoint"
"""Name in the metrics of an upstream without a configured model."""
COMPLETIONS_PROMPT = "prompt"
"""`Dialect.prompt_field` of the Completions API."""
REFUSES_PARAMETER = (400, 422)
"""Statuses with which servers refuse a request with an unknown field."""
NO_SUCH_PATH = (404, 405)
"""Statuses with which servers without the Messages API answer its path."""
MESSAGES_VERSION = "2023-06-01"
"""Version of the Messages API in requests of agents that name none."""
ANTHROPIC_HOST = "api.anthropic.com"

_log = logging.getLogger("leyden.gateway")


class Upstream:
    """Client of an upstream endpoint that forwards calls to it.

    `base_url` includes the version (`https://host/v1`). A call fails after `timeout` seconds without a byte. `model`
    replaces every model name in the agents' requests, which is logged once for each name. With an empty `model`, the
    agents' model names are sent unchanged.
    """

    def __init__(self, base_url: str, api_key: str | None, model: str = "", *, timeout: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._replaced: set[str] = set()
        self._accepts_ids_parameter = True
        """Whether the endpoint accepts the request field for token ids; assumed until it refuses a request with it."""

    @property
    def name(self) -> str:
        """Name of the upstream among policies and in the metrics."""
        return self.model or NAME

    def __repr__(self) -> str:
        return f"Upstream({mask_text(self.base_url)!r}, model={self.model!r})"

    async def serve(
        self,
        dialect: Dialect,
        origin: Origin,
        body: bytes,
        retry_cache: RetryCache,
        watch: ClientWatch,
        send: Send,
        work: RequestWork,
    ) -> None:
        """Forward a call, send its response to the agent as it arrives, and record the call before the response ends.

        Raises Refusal with status 502 if the endpoint cannot be reached, or with status 400 if no model is named.
        """
        with watch.cancelling():
            fields, as_sent = await work.run(len(body), lambda: _read(body, dialect))
        work.free()
        self._check_model(as_sent.model)
        call_id = f"upstream-{secrets.token_hex(14)}"
        record = CallRecord(
            origin=origin,
            call_id=call_id,
            response_id=call_id,
            dialect=dialect.name,
            as_sent=as_sent,
            not_trained=reasons.UPSTREAM,
        )
        relay = _Relay(record, retry_cache, send, dialect)
        try:
            # In `leyden dev`, the agent may run in this process, where all model calls are routed to the gateway. This
            # call must not be.
            with outside_attempt(), watch.cancelling():
                await self._forward(dialect.path, fields, relay, origin.api_headers)
        except ClientGone:
            record.not_trained = reasons.DISCONNECTED
            await relay.record_once()
        except asyncio.CancelledError:
            await asyncio.shield(relay.record_once())
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            await relay.fail(f"the upstream could not be reached ({type(error).__name__})")

    def open(
        self, method: str, path: str, *, headers: Mapping[str, str], data: bytes | None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request to a percent-encoded path below the base URL, with the endpoint's own key."""
        url = URL(f"{self.base_url}{path}", encoded=True)
        return self._open_session().request(
            method, url, data=data, headers={**headers, **self._key()}, allow_redirects=False
        )

    async def models(self, name: str | None = None) -> tuple[int, bytes] | None:
        """Return status and JSON of the endpoint's list of models, or of its model `name`.

        Returns None if the endpoint has no such path or cannot be reached. Its refusal of an unknown model has status
        404 and an `error`.
        """
        path = "/models" if name is None else f"/models/{quote(name)}"
        try:
            with outside_attempt():
                async with self.open("GET", path, headers={}, data=None) as answer:
                    body = await answer.read()
                    known = answer.status == 200 or (name is not None and answer.status == 404 and b'"error"' in body)
                    return (answer.status, body) if known else None
        except (aiohttp.ClientError, TimeoutError) as error:
            _log.info("the upstream's models could not be listed: %r", error)
            return None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _forward(
        self, path: str, fields: dict[str, msgspec.Raw], relay: "_Relay", api_headers: Mapping[str, str]
    ) -> None:
        body: dict[str, object] = {**fields, **({"model": self.model} if self.model else {})}
        if path in TOKEN_ID_REQUEST.paths and TOKEN_ID_REQUEST.field not in fields and self._accepts_ids_parameter:
            async with self._post(path, {**body, TOKEN_ID_REQUEST.field: True}) as answer:
                if answer.status not in REFUSES_PARAMETER:
                    return await relay.run(answer, TokenIdFilter())
                self._accepts_ids_parameter = TOKEN_ID_REQUEST.field.encode() not in await answer.read()
            async with self._post(path, body) as answer:
                if answer.status < 400:
                    self._accepts_ids_parameter = False
                return await relay.run(answer)
        async with self._post(path, body, api_headers) as answer:
            no_such_path = path == MessagesDialect.path and answer.status in NO_SUCH_PATH
            if no_such_path and not is_messages_error(await answer.read()):
                return await relay.fail(*_no_messages(self.base_url, answer.status))
            await relay.run(answer)

    def _post(
        self, path: str, body: dict[str, object], api_headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data = msgspec.json.encode(body)
        url, headers = f"{self.base_url}{path}", self._headers()
        if path == MessagesDialect.path:
            headers = self._messages_headers(api_headers or {})
        return self._open_session().post(url, data=data, headers=headers, allow_redirects=False)

    def _headers(self) -> dict[str, str]:
        return {"content-type": "application/json", **self._key()}

    def _key(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def _messages_headers(self, api_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request of the Messages API; servers of it differ in the header of the key."""
        headers = {**self._headers(), "anthropic-version": MESSAGES_VERSION, **api_headers}
        if self._api_key:
            headers["x-api-key"] = self._api_key
            if urlsplit(self.base_url).hostname == ANTHROPIC_HOST:
                del headers["authorization"]
        return headers

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            # Without a cookie jar, because the session sends the requests of all attempts.
            self._session = aiohttp.ClientSession(
                timeout=self._timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    def _check_model(self, requested: str) -> None:
        """Log once for each model name that another model answers.

        Raises Refusal with status 400 if neither the configuration nor the request names a model.
        """
        if not self.model and not requested:
            raise invalid("the request names no model: give its name at the endpoint, as --model", "model")
        if self.model and requested not in ("", self.model, *self._replaced):
            self._replaced.add(requested)
            _log.warning(
                "The agent requests the model %r; %r answers instead, because of --model (without --model, the "
                "agent's model name is sent to the endpoint)",
                requested,
                self.model,
            )


class _Relay:
    """Relay of one response: sends it to the agent and keeps it for the record."""

    def __init__(self, record: CallRecord, retry_cache: RetryCache, send: Send, dialect: Dialect) -> None:
        self._record, self._retry_cache, self._send, self._dialect = record, retry_cache, send, dialect
        self._received = bytearray()
        self._streamed = self._started = self._recorded = False

    async def run(self, answer: aiohttp.ClientResponse, ids: TokenIdFilter | None = None) -> None:
        """Send a response to the agent: a stream as it arrives, any other response in one piece.

        `ids` removes token ids from the response; None leaves it unchanged.
        """
        if 300 <= answer.status < 400:
            return await self.fail(f"the upstream answered with a redirect ({answer.status})")
        content_type = answer.headers.get("content-type", JSON.decode()).encode()
        if answer.status >= 400:
            self._record.error, self._record.error_type = f"the upstream answered {answer.status}", str(answer.status)
        self._streamed = content_type.startswith(b"text/event-stream")
        if not self._streamed:
            self._received += await answer.read()
            await self.record_once()
            body = bytes(self._received) if ids is None else ids.whole(bytes(self._received))
            await self._begin(answer.status, content_type, len(body))
            return await self._write(body, more=False)
        async for data in answer.content.iter_any():
            self._received += data
            if ended(self._received):
                await self.record_once()
            if not self._started:
                await self._begin(answer.status, content_type)
            await self._write(data if ids is None else ids.push(data))
        await self.record_once()
        await self._write(b"" if ids is None else ids.rest(), more=False)

    async def fail(self, reason: str, refusal: Refusal | None = None) -> None:
        """Record the failure, and send it to the agent as an event; raises Refusal if nothing has been sent yet.

        Without `refusal`, its status is 502.
        """
        self._record.fail(reasons.UPSTREAM, reason, "upstream")
        await self.record_once()
        refusal = refusal or Refusal(502, f"Bad gateway: {reason}.", type="server_error")
        if not self._started:
            raise refusal
        await self._write(self._dialect.error_event(refusal), more=False)

    async def record_once(self) -> None:
        """Store the request and the response so far; repeated calls do nothing."""
        if self._recorded:
            return
        self._recorded = True
        view = read_answer(bytes(self._received), streamed=self._streamed)
        self._record.output, self._record.finish_reason = view.output, view.finish_reason
        self._record.usage, self._record.response_model = view.usage, view.model
        self._record.response_id = view.id or self._record.response_id
        if view.prompt_ids is not None and view.ids is not None:
            self._record.prompt_ids, self._record.ids, self._record.logprobs = view.prompt_ids, view.ids, view.logprobs
        await self._retry_cache.keep(self._record)

    async def _begin(self, status: int, content_type: bytes, length: int | None = None) -> None:
        self._started = True
        await self._send(start_message(status, content_type, length))

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _no_messages(base_url: str, status: int) -> tuple[str, Refusal]:
    """Return the reason and the refusal for an endpoint without the Messages API."""
    path = f"{mask_text(base_url)}{MessagesDialect.path}"
    reason = f"the endpoint has no Messages API: it answered POST {path} with status {status}"
    advice = "Give an endpoint that has it, or let the agent use a client of Chat Completions."
    return reason, Refusal(404, f"{reason[0].upper()}{reason[1:]}. {advice}", code="unknown_url")


def _read(body: bytes, dialect: Dialect) -> tuple[dict[str, msgspec.Raw], RecordedRequest]:
    fields = read_fields(body)
    if dialect.path == MessagesDialect.path:
        return fields, recorded_request(body, fields)
    return fields, _recorded_request(fields, dialect.prompt_field)


def _recorded_request(fields: dict[str, msgspec.Raw], prompt_field: str) -> RecordedRequest:
    prompt = fields.get(prompt_field)
    tools = text_of(fields.get("tools"))
    return RecordedRequest(
        model=bytes(fields.get("model", b"")).decode().strip('"'),
        stream=bytes(fields.get("stream", b"")) == b"true",
        messages=prompt_messages(prompt) if prompt and prompt_field == COMPLETIONS_PROMPT else text_of(prompt),
        tools=mask_json(tools) if tools else None,
        rest=rest_of(fields, RECORDED_SEPARATELY | {prompt_field}),
    )
