"""Access to the console: which hosts, which requests, with which token, and what its pages may load.

The console shows prompts and answers of agents. Three attacks are therefore kept out: another machine, a web page that
points its own host name to this server (DNS rebinding), and text of an agent that a browser would run as code.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leyden.core.gateway.http.host_check import HostCheck

COOKIE = "leyden_console"
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Pages load only what the console serves; a script that is written into a page does not run."""
HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
READING = ("GET", "HEAD")


def guarded(app: ASGIApp, bound: str, token: str | None, allowed_hosts: tuple[str, ...] = ()) -> ASGIApp:
    """Return `app` behind all checks. `bound` is the address that the server listens on.

    With a `token`, a request must have it in the cookie that `?token=` sets.
    """
    inner = app if token is None else TokenCheck(app, token)
    return SafeHeaders(HostCheck(ReadingOnly(inner), bound, allowed_hosts))


class SafeHeaders:
    """Adds the headers that keep a browser from running or leaking what it is shown."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers to the response."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class ReadingOnly:
    """Refuses every request that could change something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 405, unless the request only reads."""
        if scope["type"] == "http" and scope["method"] not in READING:
            await respond(send, 405, "The console only reads: it accepts GET requests", ((b"allow", b"GET, HEAD"),))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)


class TokenCheck:
    """Requires the console's token: as a cookie, which a request with `?token=` receives, or in that request itself."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 403, unless the request has the token."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = next((value for name, value in query if name == "token"), None)
        if given is not None and self._is_right(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            target = scope["path"] + (f"?{rest}" if rest else "")
            cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            headers = ((b"location", target.encode()), (b"set-cookie", cookie.encode()))
            await respond(send, 303, "", headers)
        elif self._is_right(_cookie(scope)):
            await self._app(scope, receive, send)
        else:
            await respond(send, 403, "This console needs its token: open the address that `leyden console` printed")

    def _is_right(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())


async def respond(send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send a short plain text."""
    body = text.encode()
    own = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def _cookie(scope: Scope) -> str | None:
    """Return the token in a request's cookie; None without one."""
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                cookies = SimpleCookie(value.decode("latin-1"))
            except CookieError:
                continue
            if COOKIE in cookies:
                return cookies[COOKIE].value
    return None
