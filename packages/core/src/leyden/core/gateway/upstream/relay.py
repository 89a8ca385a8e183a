"""`Upstream`: an endpoint that answers calls instead of the policy, for runs without training.

The endpoint comes from the configuration, never from a request. Its API key is sent to this endpoint only, and no
redirect is followed. Chat Completions and Completions request token ids, which some servers such as vLLM can send. The
ids are recorded, and removed from the response to the agent. The rest of a response reaches the agent unchanged.
"""

import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from leyden.core.gateway.anthropic.dialect import MessagesDialect
from leyden.core.gateway.http.asgi import JSON
from leyden.core.gateway.model_request import read_fields
from leyden.core.gateway.refusal import ErrorAnswer, Refusal, bad_gateway
from leyden.core.gateway.upstream.answer_relay import AnswerRelay
from leyden.core.gateway.upstream.backend import Fields, UpstreamBackend, no_count
from leyden.core.gateway.upstream.messages_view import is_messages_error
from leyden.core.gateway.upstream.token_ids import TOKEN_ID_REQUEST, TokenIdFilter
from leyden.core.masking import mask_text
from leyden.core.tracing.context import outside_attempt

REFUSES_PARAMETER = (400, 422)
"""Statuses with which servers refuse a request with an unknown field."""
NO_SUCH_PATH = (404, 405)
"""Statuses with which servers without the Messages API answer its path."""
MESSAGES_VERSION = "2023-06-01"
"""Version of the Messages API in requests of agents that name none."""
COUNT_HEADERS = ("request-id", "retry-after", "x-request-id")
"""Headers of the endpoint's token counts that the agent gets."""
ANTHROPIC_HOST = "api.anthropic.com"

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

    async def count(self, path: str, body: bytes, api_headers: Mapping[str, str]) -> ErrorAnswer:
        """Return the endpoint's response to a request to count tokens at `path`; it need not be an error.

        Raises Refusal with status 404 if the endpoint has no such path, or with status 502 if it cannot be reached.
        """
        fields = {**read_fields(body), **({"model": self.model} if self.model else {})}
        try:
            with outside_attempt():
                async with self._post(path, fields, api_headers) as answer:
                    counted = await answer.read()
        except self.failures as error:
            raise bad_gateway(f"the upstream could not be reached ({type(error).__name__})") from None
        if 300 <= answer.status < 400:
            raise bad_gateway(f"the upstream answered with a redirect ({answer.status})")
        if answer.status in NO_SUCH_PATH and b'"error"' not in counted:
            url = f"{mask_text(self.base_url)}{path}"
            raise no_count(f"The endpoint counts no tokens: it answered POST {url} with status {answer.status}")
        given = {name: answer.headers.get(name, "") for name in COUNT_HEADERS}
        more = {name: value for name, value in given.items() if value and value.isascii() and value.isprintable()}
        return ErrorAnswer(answer.status, counted, more)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _forward(self, path: str, fields: Fields, relay: AnswerRelay, api_headers: Mapping[str, str]) -> None:
        body: dict[str, object] = {**fields, **({"model": self.model} if self.model else {})}
        if path in TOKEN_ID_REQUEST.paths and TOKEN_ID_REQUEST.field not in fields and self._accepts_ids_parameter:
            async with self._post(path, {**body, TOKEN_ID_REQUEST.field: True}) as answer:
                if answer.status not in REFUSES_PARAMETER:
                    return await _pass_on(answer, relay, TokenIdFilter())
                self._accepts_ids_parameter = TOKEN_ID_REQUEST.field.encode() not in await answer.read()
            async with self._post(path, body) as answer:
                if answer.status < 400:
                    self._accepts_ids_parameter = False
                return await _pass_on(answer, relay)
        async with self._post(path, body, api_headers) as answer:
            no_such_path = path == MessagesDialect.path and answer.status in NO_SUCH_PATH
            if no_such_path and not is_messages_error(await answer.read()):
                return await relay.fail(*_no_messages(self.base_url, answer.status))
            await _pass_on(answer, relay)

    def _post(
        self, path: str, body: Mapping[str, object], api_headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data = msgspec.json.encode(body)
        url, headers = f"{self.base_url}{path}", self._headers()
        if path.startswith(MessagesDialect.path):
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


def _no_messages(base_url: str, status: int) -> tuple[str, Refusal]:
    """Return the reason and the refusal for an endpoint without the Messages API."""
    path = f"{mask_text(base_url)}{MessagesDialect.path}"
    reason = f"the endpoint has no Messages API: it answered POST {path} with status {status}"
    advice = "Give an endpoint that has it, or let the agent use a client of Chat Completions."
    return reason, Refusal(404, f"{reason[0].upper()}{reason[1:]}. {advice}", code="unknown_url")
