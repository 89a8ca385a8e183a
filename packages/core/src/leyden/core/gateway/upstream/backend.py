"""`UpstreamBackend`: what answers calls instead of the policy, outside of training; the base of every upstream.

It records the calls, cancels a call whose agent disconnects, and sends its own failures in the provider's format.
"""

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec
from starlette.types import Send

from leyden.core.data import reasons
from leyden.core.gateway.anthropic.dialect import MessagesDialect
from leyden.core.gateway.anthropic.request import recorded_request
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.calls.record import CallRecord
from leyden.core.gateway.calls.retry_cache import RetryCache
from leyden.core.gateway.chat.request import RECORDED_SEPARATELY
from leyden.core.gateway.completions.request import prompt_messages
from leyden.core.gateway.dialect import Dialect
from leyden.core.gateway.http.asgi import ClientGone, ClientWatch
from leyden.core.gateway.limits.long_work import RequestWork
from leyden.core.gateway.model_request import RecordedRequest, read_fields, rest_of, text_of
from leyden.core.gateway.prompts.echo import EchoFilter
from leyden.core.gateway.prompts.request import Replacement, edited_body
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, invalid
from leyden.core.gateway.upstream.answer_relay import AnswerRelay
from leyden.core.masking import mask_json
from leyden.core.tracing.context import outside_attempt

NAME = "endpoint"
"""Name in the metrics of an upstream without a configured model."""
COMPLETIONS_PROMPT = "prompt"
"""`Dialect.prompt_field` of the Completions API."""

RESPONSES = "responses"
"""`Dialect.name` of the Responses API, whose answers repeat texts of the request."""

_log = logging.getLogger("leyden.gateway")

Fields = dict[str, msgspec.Raw]
"""Fields of a request, each as the agent's JSON."""


class UpstreamBackend(ABC):
    """An upstream. `model` replaces every model name in the agents' requests, which is logged once for each name.

    With an empty `model`, the agents' model names are sent unchanged.
    """

    failures: tuple[type[Exception], ...] = (TimeoutError,)
    """Errors of `_forward` that mean that the upstream could not be reached."""
    renamed_by = "--model (without --model, the agent's model name is sent to the endpoint)"
    """Why `model` replaces the agent's model name, for the log."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._replaced: set[str] = set()

    @property
    def name(self) -> str:
        """Name of the upstream among policies and in the metrics."""
        return self.model or NAME

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

        Raises Refusal with status 502 if the upstream cannot be reached, or with status 400 if no model is named.
        """
        replaced: list[Replacement] = []
        with watch.cancelling():
            if (edits := origin.edits) is not None:
                body, replaced = await work.run(len(body), lambda: edited_body(edits, dialect.name, body))
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
            replaced=[one.record for one in replaced],
            not_trained=reasons.UPSTREAM,
        )
        echo = EchoFilter(replaced) if replaced and dialect.name == RESPONSES else None
        relay = AnswerRelay(record, retry_cache, send, dialect, echo)
        try:
            # In `leyden dev`, the agent may run in this process, where all model calls are routed to the gateway. This
            # call must not be.
            with outside_attempt(), watch.cancelling():
                await self._forward(dialect.path, fields, relay, origin)
        except ClientGone:
            record.not_trained = reasons.DISCONNECTED
            await relay.record_once()
        except asyncio.CancelledError:
            await asyncio.shield(relay.record_once())
            raise
        except self.failures as error:
            await relay.fail(self.not_reached(error))

    def not_reached(self, error: BaseException) -> str:
        """Return the sentence for a call that found no upstream."""
        return f"the upstream could not be reached ({type(error).__name__})"

    async def models(self, name: str | None = None) -> tuple[int, bytes] | None:
        """Return status and JSON of the upstream's list of models, or of its model `name`; None if it sends none."""
        return None

    async def count(self, path: str, body: bytes, api_headers: Mapping[str, str]) -> ErrorAnswer:
        """Return the upstream's response to a request to count tokens at `path`; it need not be an error.

        Raises Refusal with status 404 if the upstream counts no tokens, or with status 502 if it cannot be reached.
        """
        raise no_count(f"{self.name} answers model calls only, and counts no tokens at {path}")

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    async def _forward(self, path: str, fields: Fields, relay: AnswerRelay, origin: Origin) -> None:
        """Forward a request for `path`, and pass the response to `relay`."""

    def _check_model(self, requested: str) -> None:
        """Log once for each model name that another model answers.

        Raises Refusal with status 400 if neither the configuration nor the request names a model.
        """
        if not self.model and not requested:
            raise invalid("the request names no model: give its name at the endpoint, as --model", "model")
        if self.model and requested not in ("", self.model, *self._replaced):
            self._replaced.add(requested)
            _log.warning(
                "The agent requests the model %r; %r answers instead, because of %s",
                requested,
                self.model,
                self.renamed_by,
            )


def no_count(reason: str) -> Refusal:
    """Return the refusal of a request to count tokens."""
    return Refusal(404, f"{reason}. Count them in the agent, or give an endpoint that does.", code="unknown_url")


def _read(body: bytes, dialect: Dialect) -> tuple[Fields, RecordedRequest]:
    fields = read_fields(body)
    if dialect.path == MessagesDialect.path:
        return fields, recorded_request(body, fields)
    return fields, _recorded_request(fields, dialect.prompt_field)


def _recorded_request(fields: Fields, prompt_field: str) -> RecordedRequest:
    prompt = fields.get(prompt_field)
    tools = text_of(fields.get("tools"))
    return RecordedRequest(
        model=bytes(fields.get("model", b"")).decode().strip('"'),
        stream=bytes(fields.get("stream", b"")) == b"true",
        messages=prompt_messages(prompt) if prompt and prompt_field == COMPLETIONS_PROMPT else text_of(prompt),
        tools=mask_json(tools) if tools else None,
        rest=rest_of(fields, RECORDED_SEPARATELY | {prompt_field}),
    )
