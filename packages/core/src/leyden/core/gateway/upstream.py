"""`Upstream`: an OpenAI-compatible endpoint that answers in the policy's place, for dry runs. Trains nothing.

It comes from configuration only, never from a request; its key is sent to it and to nobody else, and no redirect is
followed. The agent sees the endpoint's answer byte for byte.
"""

import asyncio
import secrets

import aiohttp
import msgspec
from starlette.types import Send

from leyden.core.gateway import capture
from leyden.core.gateway.capture import CallRecord
from leyden.core.gateway.chat.format import server_event
from leyden.core.gateway.chat.request import KEPT_APART
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.http import JSON, ClientGone, ClientWatch, start_message
from leyden.core.gateway.ledger import Ledger
from leyden.core.gateway.origin import Origin
from leyden.core.gateway.refusal import Refusal
from leyden.core.gateway.request import Asked, read_fields, rest_of, text_of
from leyden.core.gateway.upstream_view import ended, read_answer
from leyden.core.masking import mask_json, mask_text
from leyden.core.tracing.context import outside_attempt


class Upstream:
    """Where calls are forwarded to.

    `base_url` includes the version (`https://host/v1`), `model` takes the place of the one the agent names, and a call
    is given up after `timeout` seconds without a byte.
    """

    def __init__(self, base_url: str, api_key: str | None, model: str, *, timeout: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"Upstream({mask_text(self.base_url)!r}, model={self.model!r})"

    async def serve(
        self, dialect: Dialect, origin: Origin, body: bytes, ledger: Ledger, watch: ClientWatch, send: Send
    ) -> None:
        """Forward a call, pass its answer on as it arrives, and record it before the answer ends.

        Raises Refusal with status 502 when the endpoint cannot be reached.
        """
        fields = read_fields(body)
        call_id = f"upstream-{secrets.token_hex(14)}"
        record = CallRecord(
            origin=origin,
            call_id=call_id,
            response_id=call_id,
            dialect=dialect.name,
            asked=_asked(fields),
            not_trained=capture.UPSTREAM,
        )
        relay = _Relay(record, ledger, send)
        try:
            # In `leyden dev` the agent may run in this very process, whose model calls are all routed but this one.
            with outside_attempt(), watch.cancelling():
                await self._forward(dialect.path, fields, relay)
        except ClientGone:
            record.not_trained = capture.DISCONNECTED
            await relay.record_once()
        except asyncio.CancelledError:
            await asyncio.shield(relay.record_once())
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            await relay.fail(f"the upstream could not be reached ({type(error).__name__})")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _forward(self, path: str, fields: dict[str, msgspec.Raw], relay: "_Relay") -> None:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        headers = {"content-type": "application/json"}
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        body = msgspec.json.encode({**fields, "model": self.model})
        url = f"{self.base_url}{path}"
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            if 300 <= answer.status < 400:
                return await relay.fail(f"the upstream answered with a redirect ({answer.status})")
            await relay.run(answer)


class _Relay:
    """Passes one answer on and remembers it."""

    def __init__(self, record: CallRecord, ledger: Ledger, send: Send) -> None:
        self._record, self._ledger, self._send = record, ledger, send
        self._seen = bytearray()
        self._streamed = self._started = self._recorded = False

    async def run(self, answer: aiohttp.ClientResponse) -> None:
        """Pass an answer on: events as they arrive, anything else in one piece."""
        content_type = answer.headers.get("content-type", JSON.decode()).encode()
        if answer.status >= 400:
            self._record.error, self._record.error_type = f"the upstream answered {answer.status}", str(answer.status)
        self._streamed = content_type.startswith(b"text/event-stream")
        if not self._streamed:
            self._seen += await answer.read()
            await self.record_once()
            await self._begin(answer.status, content_type, len(self._seen))
            return await self._write(bytes(self._seen), more=False)
        async for data in answer.content.iter_any():
            self._seen += data
            if ended(self._seen):
                await self.record_once()
            if not self._started:
                await self._begin(answer.status, content_type)
            await self._write(data)
        await self.record_once()
        await self._write(b"", more=False)

    async def fail(self, reason: str) -> None:
        """Tell the agent that the answer failed; raises Refusal while the status line is still to be sent."""
        self._record.fail(capture.UPSTREAM, reason, "upstream")
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
        await self._ledger.keep(self._record)

    async def _begin(self, status: int, content_type: bytes, length: int | None = None) -> None:
        self._started = True
        await self._send(start_message(status, content_type, length))

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def _asked(fields: dict[str, msgspec.Raw]) -> Asked:
    tools = text_of(fields.get("tools"))
    return Asked(
        model=bytes(fields.get("model", b"")).decode().strip('"'),
        stream=bytes(fields.get("stream", b"")) == b"true",
        messages=text_of(fields.get("messages") or fields.get("input")),
        tools=mask_json(tools) if tools else None,
        rest=rest_of(fields, KEPT_APART | {"input"}),
    )
