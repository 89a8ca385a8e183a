"""`Upstream`: an OpenAI-compatible endpoint that answers in the policy's place, for dry runs. Trains nothing.

It comes from configuration only, never from a request; its key is sent to it and to no other host, and no redirect is
followed. A chat completion asks it for token ids, which are recorded where it has them, as vLLM does, and taken out of
the answer; anything else of an answer the agent sees byte for byte.
"""

import asyncio
import logging
import secrets
from contextlib import AbstractAsyncContextManager

import aiohttp
import msgspec
from starlette.types import Send

from leyden.core.data import reasons
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.retry_cache import Ledger
from leyden.core.gateway.chat.format import server_event
from leyden.core.gateway.chat.request import KEPT_APART
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.http.asgi import JSON, ClientGone, ClientWatch, start_message
from leyden.core.gateway.limits.long_work import Slot
from leyden.core.gateway.model_request import Asked, read_fields, rest_of, text_of
from leyden.core.gateway.refusal import Refusal, invalid
from leyden.core.gateway.upstream.answer_view import ended, read_answer
from leyden.core.gateway.upstream.token_ids import ASK_FOR_IDS, TokenIdFilter
from leyden.core.masking import mask_json, mask_text
from leyden.core.tracing.context import outside_attempt

NAME = "endpoint"
"""By which metrics know an upstream that has no model of its own."""
REFUSES_PARAMETER = (400, 422)
"""Statuses by which servers refuse a request for a field that they do not know."""

_log = logging.getLogger("leyden.gateway")


class Upstream:
    """Where calls are forwarded to.

    `base_url` includes the version (`https://host/v1`); a call is given up after `timeout` seconds without a byte. A
    `model` takes the place of every name that agents ask for, which is logged once for each; without one, their own
    names are sent on.
    """

    def __init__(self, base_url: str, api_key: str | None, model: str = "", *, timeout: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._replaced: set[str] = set()
        self._takes_ids_parameter = True
        """Whether it has not refused to be asked for token ids yet."""

    @property
    def name(self) -> str:
        """What it is called among policies."""
        return self.model or NAME

    def __repr__(self) -> str:
        return f"Upstream({mask_text(self.base_url)!r}, model={self.model!r})"

    async def serve(
        self,
        dialect: Dialect,
        origin: Origin,
        body: bytes,
        ledger: Ledger,
        watch: ClientWatch,
        send: Send,
        slot: Slot,
    ) -> None:
        """Forward a call, pass its answer on as it arrives, and record it before the answer ends.

        Raises Refusal with status 502 when the endpoint cannot be reached, and with 400 where no model is named.
        """
        with watch.cancelling():
            fields, asked = await slot.run(len(body), lambda: _read(body))
        slot.free()
        self._check_model(asked.model)
        call_id = f"upstream-{secrets.token_hex(14)}"
        record = CallRecord(
            origin=origin,
            call_id=call_id,
            response_id=call_id,
            dialect=dialect.name,
            asked=asked,
            not_trained=reasons.UPSTREAM,
        )
        relay = _Relay(record, ledger, send)
        try:
            # In `leyden dev` the agent may run in this very process, whose model calls are all routed but this one.
            with outside_attempt(), watch.cancelling():
                await self._forward(dialect.path, fields, relay)
        except ClientGone:
            record.not_trained = reasons.DISCONNECTED
            await relay.record_once()
        except asyncio.CancelledError:
            await asyncio.shield(relay.record_once())
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            await relay.fail(f"the upstream could not be reached ({type(error).__name__})")

    async def models(self) -> bytes | None:
        """Return the endpoint's own list of models, None where it gives none."""
        try:
            with outside_attempt():
                async with self._connected().get(f"{self.base_url}/models", headers=self._headers()) as answer:
                    return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError) as error:
            _log.info("the upstream's models are not known: %r", error)
            return None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _forward(self, path: str, fields: dict[str, msgspec.Raw], relay: "_Relay") -> None:
        body: dict[str, object] = {**fields, **({"model": self.model} if self.model else {})}
        if path == ASK_FOR_IDS.path and ASK_FOR_IDS.field not in fields and self._takes_ids_parameter:
            async with self._post(path, {**body, ASK_FOR_IDS.field: True}) as answer:
                if answer.status not in REFUSES_PARAMETER:
                    return await relay.run(answer, TokenIdFilter())
                self._takes_ids_parameter = ASK_FOR_IDS.field.encode() not in await answer.read()
            async with self._post(path, body) as answer:
                if answer.status < 400:
                    self._takes_ids_parameter = False
                return await relay.run(answer)
        async with self._post(path, body) as answer:
            await relay.run(answer)

    def _post(self, path: str, body: dict[str, object]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data = msgspec.json.encode(body)
        url, headers = f"{self.base_url}{path}", self._headers()
        return self._connected().post(url, data=data, headers=headers, allow_redirects=False)

    def _headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        return {"content-type": "application/json", **key}

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        return self._session

    def _check_model(self, asked: str) -> None:
        """Log, once for each name, that another model answers; raises Refusal where none is named at all."""
        if not self.model and not asked:
            raise invalid("the request names no model: give its name at the endpoint, as --model", "model")
        if self.model and asked not in ("", self.model, *self._replaced):
            self._replaced.add(asked)
            _log.warning(
                "The agent asks for the model %r; %r answers in its place, as --model says (without --model, the "
                "agent's own name is sent on)",
                asked,
                self.model,
            )


class _Relay:
    """Passes one answer on and remembers it."""

    def __init__(self, record: CallRecord, ledger: Ledger, send: Send) -> None:
        self._record, self._ledger, self._send = record, ledger, send
        self._seen = bytearray()
        self._streamed = self._started = self._recorded = False

    async def run(self, answer: aiohttp.ClientResponse, ids: TokenIdFilter | None = None) -> None:
        """Pass an answer on: events as they arrive, anything else in one piece; `ids` takes token ids out of it."""
        if 300 <= answer.status < 400:
            return await self.fail(f"the upstream answered with a redirect ({answer.status})")
        content_type = answer.headers.get("content-type", JSON.decode()).encode()
        if answer.status >= 400:
            self._record.error, self._record.error_type = f"the upstream answered {answer.status}", str(answer.status)
        self._streamed = content_type.startswith(b"text/event-stream")
        if not self._streamed:
            self._seen += await answer.read()
            await self.record_once()
            body = bytes(self._seen) if ids is None else ids.whole(bytes(self._seen))
            await self._begin(answer.status, content_type, len(body))
            return await self._write(body, more=False)
        async for data in answer.content.iter_any():
            self._seen += data
            if ended(self._seen):
                await self.record_once()
            if not self._started:
                await self._begin(answer.status, content_type)
            await self._write(data if ids is None else ids.push(data))
        await self.record_once()
        await self._write(b"" if ids is None else ids.rest(), more=False)

    async def fail(self, reason: str) -> None:
        """Tell the agent that the answer failed; raises Refusal while the status line is still to be sent."""
        self._record.fail(reasons.UPSTREAM, reason, "upstream")
        await self.record_once()
        refusal = Refusal(502, f"Bad gateway: {reason}.", type="server_error")
        if not self._started:
            raise refusal
        await self._write(server_event(refusal.encode()), more=False)

    async def record_once(self) -> None:
        """Store what was asked and what was answered so far, the first time it is called."""
        if self._recorded:
            return
        self._recorded = True
        seen = read_answer(bytes(self._seen), streamed=self._streamed)
        self._record.output, self._record.finish_reason = seen.output, seen.finish_reason
        self._record.usage, self._record.response_model = seen.usage, seen.model
        self._record.response_id = seen.id or self._record.response_id
        if seen.prompt_ids is not None and seen.ids is not None:
            self._record.prompt_ids, self._record.ids, self._record.logprobs = seen.prompt_ids, seen.ids, seen.logprobs
        await self._ledger.keep(self._record)

    async def _begin(self, status: int, content_type: bytes, length: int | None = None) -> None:
        self._started = True
        await self._send(start_message(status, content_type, length))

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _read(body: bytes) -> tuple[dict[str, msgspec.Raw], Asked]:
    fields = read_fields(body)
    return fields, _asked(fields)


def _asked(fields: dict[str, msgspec.Raw]) -> Asked:
    tools = text_of(fields.get("tools"))
    return Asked(
        model=bytes(fields.get("model", b"")).decode().strip('"'),
        stream=bytes(fields.get("stream", b"")) == b"true",
        messages=text_of(fields.get("messages") or fields.get("input")),
        tools=mask_json(tools) if tools else None,
        rest=rest_of(fields, KEPT_APART | {"input"}),
    )
