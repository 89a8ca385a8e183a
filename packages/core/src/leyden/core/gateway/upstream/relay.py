"""`Upstream`: an endpoint that answers calls instead of the policy, for runs without training.

The endpoint comes from the configuration, never from a request. Its API key is sent to this endpoint only, and no
redirect is followed. The endpoint may have several replicas, which a `LoadBalancer` chooses from. Chat Completions and
Completions request token ids, which some servers such as vLLM can send. The ids are recorded, and removed from the
response to the agent. The rest of a response reaches the agent unchanged.
"""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from leyden.core.engine.load_balancer import LoadBalancer
from leyden.core.gateway.anthropic.dialect import MessagesDialect
from leyden.core.gateway.call_identity import Origin
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
UNAVAILABLE = (502, 503)
"""Statuses with which a replica reports that it cannot answer now, so that another one gets the call."""
PROBE_SECONDS = 5.0
"""Time limit of the request that checks whether a replica answers again."""
MESSAGES_VERSION = "2023-06-01"
"""Version of the Messages API in requests of agents that name none."""
COUNT_HEADERS = ("request-id", "retry-after", "x-request-id")
"""Headers of the endpoint's token counts that the agent gets."""
ANTHROPIC_HOST = "api.anthropic.com"

_log = logging.getLogger("leyden.gateway")


class _Unavailable(Exception):
    """A replica answered that it is unavailable."""


class Upstream(UpstreamBackend):
    """Client of an upstream endpoint that forwards calls to it.

    `base_url` includes the version (`https://host/v1`). `replicas` are base URLs of further servers of the same model,
    which get the same key. A call fails after `timeout` seconds without a byte. `model` replaces every model name in
    the agents' requests, which is logged once for each name. With an empty `model`, the agents' model names are sent
    unchanged.

    A call is sent to another replica if its replica cannot be reached, or is unavailable, before a byte of the response
    was sent to the agent. The call has one record in any case.
    """

    failures = (aiohttp.ClientError, TimeoutError)

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str = "",
        *,
        replicas: Sequence[str] = (),
        timeout: float = 600.0,
    ) -> None:
        super().__init__(model)
        self.base_urls = tuple(dict.fromkeys(url.rstrip("/") for url in (base_url, *replicas)))
        """Base URLs of all replicas, without a trailing slash."""
        self._balancer = LoadBalancer(self.base_urls, probe=self._answers)
        self._api_key = api_key
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._refuses_ids_parameter: set[str] = set()
        """Base URLs that have refused a request with the request field for token ids."""

    def __repr__(self) -> str:
        return f"Upstream({mask_text(', '.join(self.base_urls))!r}, model={self.model!r})"

    def not_reached(self, error: BaseException) -> str:
        """Return the sentence for a request that found no endpoint, with the base URLs that were tried."""
        return f"the endpoint {mask_text(' or '.join(self.base_urls))} could not be reached ({type(error).__name__})"

    @asynccontextmanager
    async def open(
        self, method: str, path: str, *, headers: Mapping[str, str], data: bytes | None, rollout_id: str | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request to a percent-encoded path below the base URL, with the endpoint's own key.

        A replica without a connection gets nothing of the request, so another one gets it.
        """
        tried: list[str] = []
        while (base_url := self._balancer.choose(rollout_id, tried)) is not None:
            tried.append(base_url)
            url = URL(f"{base_url}{path}", encoded=True)
            try:
                answer = await self._open_session().request(
                    method, url, data=data, headers={**headers, **self._key()}, allow_redirects=False
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                self._balancer.leave(base_url, type(error).__name__)
                if len(tried) == len(self.base_urls):
                    raise
            else:
                async with answer:
                    yield answer
                return

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
        base_url = self._balancer.choose(None) or self.base_urls[0]
        try:
            with outside_attempt():
                async with self._post(base_url, path, fields, api_headers) as answer:
                    counted = await answer.read()
        except self.failures as error:
            self._balancer.leave(base_url, type(error).__name__)
            raise bad_gateway(self.not_reached(error)) from None
        if 300 <= answer.status < 400:
            raise bad_gateway(f"the upstream answered with a redirect ({answer.status})")
        if answer.status in NO_SUCH_PATH and b'"error"' not in counted:
            url = f"{mask_text(base_url)}{path}"
            raise no_count(f"The endpoint counts no tokens: it answered POST {url} with status {answer.status}")
        given = {name: answer.headers.get(name, "") for name in COUNT_HEADERS}
        more = {name: value for name, value in given.items() if value and value.isascii() and value.isprintable()}
        return ErrorAnswer(answer.status, counted, more)

    async def close(self) -> None:
        """Close the connections."""
        await self._balancer.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _forward(self, path: str, fields: Fields, relay: AnswerRelay, origin: Origin) -> None:
        body: dict[str, object] = {**fields, **({"model": self.model} if self.model else {})}
        size = sum(memoryview(value).nbytes for value in fields.values())
        tried: list[str] = []
        while (base_url := self._balancer.choose(origin.rollout.rollout_id, tried)) is not None:
            tried.append(base_url)
            has_other = len(tried) < len(self.base_urls)
            try:
                with self._balancer.carry(base_url, size):
                    return await self._send(base_url, path, body, relay, origin.api_headers, has_other=has_other)
            except _Unavailable:
                pass
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
                self._balancer.leave(base_url, type(error).__name__)
                # After the time limit without a byte, the agent's client will not wait for a second try.
                if relay.started or not has_other or isinstance(error, aiohttp.SocketTimeoutError):
                    raise

    async def _send(
        self,
        base_url: str,
        path: str,
        body: dict[str, object],
        relay: AnswerRelay,
        api_headers: Mapping[str, str],
        *,
        has_other: bool,
    ) -> None:
        """Forward a request to one replica; raises _Unavailable if it is unavailable, and `has_other` is true."""
        field = TOKEN_ID_REQUEST.field
        if path in TOKEN_ID_REQUEST.paths and field not in body and base_url not in self._refuses_ids_parameter:
            async with self._post(base_url, path, {**body, field: True}) as answer:
                if answer.status not in REFUSES_PARAMETER:
                    self._check_available(base_url, answer.status, has_other=has_other)
                    return await _pass_on(answer, relay, TokenIdFilter())
                if field.encode() in await answer.read():
                    self._refuses_ids_parameter.add(base_url)
            async with self._post(base_url, path, body) as answer:
                self._check_available(base_url, answer.status, has_other=has_other)
                if answer.status < 400:
                    self._refuses_ids_parameter.add(base_url)
                return await _pass_on(answer, relay)
        async with self._post(base_url, path, body, api_headers) as answer:
            self._check_available(base_url, answer.status, has_other=has_other)
            no_such_path = path == MessagesDialect.path and answer.status in NO_SUCH_PATH
            if no_such_path and not is_messages_error(await answer.read()):
                return await relay.fail(*_no_messages(base_url, answer.status))
            await _pass_on(answer, relay)

    def _check_available(self, base_url: str, status: int, *, has_other: bool) -> None:
        if status not in UNAVAILABLE:
            return self._balancer.restore(base_url)
        self._balancer.leave(base_url, f"it answered {status}")
        if has_other:
            raise _Unavailable

    async def _answers(self, base_url: str) -> bool:
        """Return whether a replica answers at all: servers differ in the paths that they have."""
        limit = aiohttp.ClientTimeout(total=PROBE_SECONDS)
        try:
            with outside_attempt():
                request = self._open_session().get(
                    f"{base_url}/models", headers=self._key(), allow_redirects=False, timeout=limit
                )
                async with request as answer:
                    return answer.status not in UNAVAILABLE
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _post(
        self, base_url: str, path: str, body: Mapping[str, object], api_headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data = msgspec.json.encode(body)
        url, headers = f"{base_url}{path}", self._headers()
        if path.startswith(MessagesDialect.path):
            headers = self._messages_headers(base_url, api_headers or {})
        return self._open_session().post(url, data=data, headers=headers, allow_redirects=False)

    def _headers(self) -> dict[str, str]:
        return {"content-type": "application/json", **self._key()}

    def _key(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    def _messages_headers(self, base_url: str, api_headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of a request of the Messages API; servers of it differ in the header of the key."""
        headers = {**self._headers(), "anthropic-version": MESSAGES_VERSION, **api_headers}
        if self._api_key:
            headers["x-api-key"] = self._api_key
            if urlsplit(base_url).hostname == ANTHROPIC_HOST:
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
    is_stream = content_type.startswith(b"text/event-stream")
    body = b"" if is_stream else await answer.read()
    if answer.status >= 400:
        relay.failed(answer.status)
    if not is_stream:
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
