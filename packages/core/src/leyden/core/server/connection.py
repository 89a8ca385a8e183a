"""Connection to a server of runs: requests with its token, their answers, and errors of one line."""

import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from leyden.core.data.encoding.base_url import check_base_url, is_loopback
from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.masking import printable, remember_secret
from leyden.core.server.messages import Failure
from leyden.core.server.service import TOKEN
from leyden.core.trainer.agents.remote_workers import NoServer

logger = logging.getLogger(__name__)

T = TypeVar("T")
SECONDS = 60.0
"""Time for an answer, which is longer than the server holds a request."""
PAUSE_SECONDS = 1.0
MOST_ANSWERED = 256 << 20


class Connection:
    """A server's URL and token. Redirects are refused and proxies are not used, so that only the server gets the token.

    Raises UsageError for a URL that is none, for plain HTTP to another machine without `insecure`, and without a token.
    """

    def __init__(self, url: str, token: str | None = None, *, insecure: bool = False) -> None:
        check_base_url(url, "--server")
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme == "http" and not insecure and not is_loopback(parts.hostname or ""):
            raise UsageError(
                f"--server {url} would send the server's token unencrypted to another machine: give an https:// URL, "
                "or --insecure on a private network"
            )
        self._token = token or os.environ.get(TOKEN, "")
        self._token_source = "that was given" if token else f"in {TOKEN}"
        if not self._token:
            raise UsageError(f"set {TOKEN} to the token of the server at {url}")
        remember_secret(self._token)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def get(self, path: str, kind: type[T], query: Mapping[str, object] | None = None, *, patience: float = 0.0) -> T:
        """Return an answer; ask again for `patience` seconds while no server answers.

        Raises NoServer if none does, and UsageError or RunError for what the server refuses.
        """
        given = {name: value for name, value in (query or {}).items() if value is not None}
        where = f"{path}?{urlencode(given)}" if given else path
        give_up, is_noted = time.monotonic() + patience, False
        while True:
            try:
                return self.send("GET", where, None, kind)
            except NoServer:
                if time.monotonic() >= give_up:
                    raise
                if not is_noted:
                    logger.warning("no server answers at %s; waiting for it", self.url)
                is_noted = True
            time.sleep(PAUSE_SECONDS)

    def send(self, method: str, path: str, body: object, kind: type[T]) -> T:
        """Send a request with `body` as JSON, and return the answer. Raises as `get` does."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else msgspec.json.encode(body),
            headers={"authorization": f"Bearer {self._token}", "content-type": "application/json"},
            method=method,
        )
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                content = answer.read(MOST_ANSWERED)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(1 << 16)) from None
        except (OSError, http.client.HTTPException) as error:
            reason: Any = getattr(error, "reason", None) or error
            what = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
            raise NoServer(f"no server answers at {self.url}: {what}; is leyden serve running there?") from None
        if kind is type(None):
            return None  # type: ignore[return-value]
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.MsgspecError:
            raise LeydenError(f"{self.url} is not a server of leyden serve, or one of another version") from None

    def _refused(self, status: int, body: bytes) -> LeydenError:
        try:
            failure = msgspec.json.decode(body, type=Failure)
        except msgspec.MsgspecError:
            if status in (502, 503, 504):  # a proxy before a server that is not there
                return NoServer(f"no server answers at {self.url}: status {status}")
            return UsageError(f"{self.url} is not a server of leyden serve: it answers with status {status}")
        text = printable(failure.error)
        if status == 401:
            return UsageError(f"the server at {self.url} does not accept the token {self._token_source}")
        if not failure.usage:
            return LeydenError(text)
        return RunError(text) if status in (404, 409) else UsageError(text)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **named: Any) -> None:
        """Follow no redirect, which could lead to a server that is not to get the token."""


def run_path(name: str, what: str = "") -> str:
    """Return the path of a run, or of something below it."""
    return f"/runs/{quote(name, safe='')}{what}"
