"""`Upstream`: an OpenAI-compatible endpoint that answers calls instead of the policy, for runs without training.

The endpoint comes from the configuration, never from a request. Its API key is sent to this endpoint only, and no
redirect is followed. A chat completion requests token ids, which some servers such as vLLM can send. The ids are
recorded, and removed from the response to the agent. The rest of a response reaches the agent unchanged.
"""

import logging
from contextlib import AbstractAsyncContextManager

import aiohttp
import msgspec

from leyden.core.gateway.http.asgi import JSON
from leyden.core.gateway.upstream.answer_relay import AnswerRelay
from leyden.core.gateway.upstream.backend import Fields, UpstreamBackend
from leyden.core.gateway.upstream.token_ids import TOKEN_ID_REQUEST, TokenIdFilter
from leyden.core.masking import mask_text
from leyden.core.tracing.context import outside_attempt

REFUSES_PARAMETER = (400, 422)
"""Statuses with which servers refuse a request with an unknown field."""

_log = logging.getLogger("leyden.gateway")


class Upstream(UpstreamBackend):
    """Client of an upstream endpoint that forwards calls to it.

    `base_url` includes the version (`https://host/v1`). A call fails after `timeout` seconds without a byte. `model`
    replaces every model name in the agents' requests, which is logged once for each name. With an empty `model`, the
    agents' model names are sent unchanged.
    """

    failures = (aiohttp.ClientError, TimeoutError)

    def __init__(self, base_url: str, api_key: str | None, model: str = "", *, timeout: float = 600.0) -> None:
        super().__init__(model)
        self.base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._accepts_ids_parameter = True
        """Whether the endpoint accepts the request field for token ids; assumed until it refuses a request with it."""

    def __repr__(self) -> str:
        return f"Upstream({mask_text(self.base_url)!r}, model={self.model!r})"

    async def models(self) -> bytes | None:
        """Return the endpoint's list of models as JSON; None if it sends none or cannot be reached."""
        try:
            with outside_attempt():
                async with self._open_session().get(f"{self.base_url}/models", headers=self._headers()) as answer:
                    return await answer.read() if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError) as error:
            _log.info("the upstream's models could not be listed: %r", error)
            return None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _forward(self, path: str, fields: Fields, relay: AnswerRelay) -> None:
        body: dict[str, object] = {**fields, **({"model": self.model} if self.model else {})}
        if path == TOKEN_ID_REQUEST.path and TOKEN_ID_REQUEST.field not in fields and self._accepts_ids_parameter:
            async with self._post(path, {**body, TOKEN_ID_REQUEST.field: True}) as answer:
                if answer.status not in REFUSES_PARAMETER:
                    return await _pass_on(answer, relay, TokenIdFilter())
                self._accepts_ids_parameter = TOKEN_ID_REQUEST.field.encode() not in await answer.read()
            async with self._post(path, body) as answer:
                if answer.status < 400:
                    self._accepts_ids_parameter = False
                return await _pass_on(answer, relay)
        async with self._post(path, body) as answer:
            await _pass_on(answer, relay)

    def _post(self, path: str, body: dict[str, object]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data = msgspec.json.encode(body)
        url, headers = f"{self.base_url}{path}", self._headers()
        return self._open_session().post(url, data=data, headers=headers, allow_redirects=False)

    def _headers(self) -> dict[str, str]:
        key = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        return {"content-type": "application/json", **key}

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        return self._session


async def _pass_on(answer: aiohttp.ClientResponse, relay: AnswerRelay, ids: TokenIdFilter | None = None) -> None:
    """Send a response to the agent: a stream as it arrives, any other response in one piece.

    `ids` removes token ids from the response; None leaves it unchanged.
    """
    if 300 <= answer.status < 400:
        return await relay.fail(f"the upstream answered with a redirect ({answer.status})")
    content_type = answer.headers.get("content-type", JSON.decode()).encode()
    if answer.status >= 400:
        relay.failed(answer.status)
    if not content_type.startswith(b"text/event-stream"):
        body = await answer.read()
        return await relay.whole(answer.status, content_type, body, None if ids is None else ids.whole(body))
    async for data in answer.content.iter_any():
        await relay.piece(answer.status, content_type, data, None if ids is None else ids.push(data))
    await relay.end(b"" if ids is None else ids.rest())
