"""`AnswerRelay`: sends one response of an upstream to the agent, and keeps it for the record."""

from collections.abc import Mapping

from starlette.types import Send

from leyden.core.data import reasons
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.retry_cache import RetryCache
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.http.asgi import NO_HEADERS, start_message
from leyden.core.gateway.prompts.echo import EchoFilter
from leyden.core.gateway.refusal import Refusal, bad_gateway
from leyden.core.gateway.upstream.answer_view import ended, read_answer


class AnswerRelay:
    """Relay of one response. The record is stored before the last byte of the response is sent.

    `echo` puts the agent's own texts back where the response repeats texts that were replaced in the request.
    """

    def __init__(
        self,
        record: CallRecord,
        retry_cache: RetryCache,
        send: Send,
        dialect: Dialect,
        echo: EchoFilter | None = None,
    ) -> None:
        self._record, self._retry_cache, self._send, self._dialect = record, retry_cache, send, dialect
        self._echo = echo
        self._received = bytearray()
        self._streamed = self._started = self._recorded = False

    @property
    def started(self) -> bool:
        """Whether a part of the response was sent to the agent."""
        return self._started

    def failed(self, status: int) -> None:
        """Record that the upstream answered with an error status."""
        self._record.error, self._record.error_type = f"the upstream answered {status}", str(status)

    async def whole(
        self,
        status: int,
        content_type: bytes,
        received: bytes,
        sent: bytes | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        """Send a response in one piece: `sent`, or what was received if it is None."""
        self._received += received
        await self.record_once()
        body = received if sent is None else sent
        body = body if self._echo is None else self._echo.whole(body)
        self._started = True
        await self._send(start_message(status, content_type, len(body), headers))
        await self._write(body, more=False)

    async def piece(self, status: int, content_type: bytes, received: bytes, sent: bytes | None = None) -> None:
        """Send a piece of a stream: `sent`, or what was received if it is None."""
        self._streamed = True
        self._received += received
        if ended(self._received):
            await self.record_once()
        if not self._started:
            self._started = True
            await self._send(start_message(status, content_type))
        data = received if sent is None else sent
        await self._write(data if self._echo is None else self._echo.push(data))

    async def end(self, rest: bytes = b"") -> None:
        """End a stream, with `rest` as its last piece."""
        await self.record_once()
        await self._write(rest if self._echo is None else self._echo.push(rest) + self._echo.rest(), more=False)

    async def fail(self, reason: str, refusal: Refusal | None = None) -> None:
        """Record the failure, and send it to the agent as an event; raises Refusal if nothing has been sent yet.

        Without `refusal`, its status is 502.
        """
        self._record.fail(reasons.UPSTREAM, reason, "upstream")
        await self.refuse(refusal or bad_gateway(reason))

    async def refuse(self, refusal: Refusal) -> None:
        """Record the call, and send `refusal` to the agent as an event; raises it if nothing has been sent yet."""
        await self.record_once()
        if not self._started:
            raise refusal
        rest = b"" if self._echo is None else self._echo.rest()
        await self._write(rest + self._dialect.error_event(refusal), more=False)

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

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
