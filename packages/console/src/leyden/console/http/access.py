"""Access to the console: which hosts, which requests, with which token, and what its pages may load.

The console shows prompts and answers of agents, and with actions it runs commands. Four attacks are therefore kept out:
another machine or user, a web page that points its own host name to this server (DNS rebinding), a web page that sends
requests in the reader's name (CSRF), and text of an agent that a browser would run as code.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leyden.core.gateway.http.host_check import HostCheck

COOKIE = "leyden_console"
"""Name of the cookie with the token, followed by the port: browsers send a host's cookies to all its ports."""
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
MCP_PATH = "/mcp"


def guarded(
    app: ASGIApp,
    bound: str,
    token: str | None,
    allowed_hosts: tuple[str, ...] = (),
    *,
    allow_actions: bool = False,
    mcp: bool = False,
) -> ASGIApp:
    """Return `app` behind all checks. `bound` is the address that the server listens on.

    With a `token`, a request must have it in the cookie that `?token=` sets. With `mcp`, requests of MCP clients must
    have it as a bearer token. Raises ValueError for `allow_actions` or `mcp` without one: every user of the machine
    reaches a loopback address.
    """
    if token is None and (allow_actions or mcp):
        raise ValueError("a console with actions or MCP needs a token")
    inner = app if token is None else TokenCheck(app, token)
    checked: ASGIApp = OwnChanges(inner) if allow_actions else ReadingOnly(inner)
    if mcp and token is not None:
        checked = McpCheck(app, checked, token)
    return SafeHeaders(HostCheck(checked, bound, allowed_hosts))


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


class OwnChanges:
    """Refuses every request that could change something, unless a page of the console itself sends it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 405, 403 or 415, unless the request reads or is a POST of the console's own pages."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
        elif scope["method"] != "POST" or not scope["path"].startswith("/api/"):
            allow = ((b"allow", b"GET, HEAD, POST"),)
            await respond(send, 405, "The console accepts GET requests, and POST requests of its own pages", allow)
        elif not _is_own(scope):
            await respond(send, 403, "A change must be requested by a page of the console")
        elif _header(scope, b"content-type").partition(";")[0].strip() != "application/json":
            await respond(send, 415, "A change must be requested with application/json")
        else:
            await self._app(scope, receive, send)


class McpCheck:
    """Passes requests of MCP clients to `app` if they have the token; all other requests to `others`.

    The cookie of the pages does not count: a browser also sends it with requests of pages at other ports of the host.
    """

    def __init__(self, app: ASGIApp, others: ASGIApp, token: str) -> None:
        self._app, self._others, self._token = app, others, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with status 401, 403 or 405, unless the request is a POST with the bearer token."""
        if scope["type"] != "http" or scope["path"] != MCP_PATH:
            await self._others(scope, receive, send)
        elif scope["method"] != "POST":
            await respond(send, 405, "MCP clients send POST requests", ((b"allow", b"POST"),))
        elif not _is_own(scope):
            await respond(send, 403, "A page of another origin may not use MCP here")
        elif not _is_token(_bearer(scope), self._token):
            headers = ((b"www-authenticate", b"Bearer"),)
            await respond(send, 401, "MCP needs the console's token: Authorization: Bearer TOKEN", headers)
        else:
            await self._app(scope, receive, send)


def _bearer(scope: Scope) -> str:
    scheme, _, token = _header(scope, b"authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_token(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode(), token.encode())


def _is_own(scope: Scope) -> bool:
    """Whether a request comes from a page of this host, or from a program: browsers name the origin of each POST."""
    site, origin = _header(scope, b"sec-fetch-site"), _header(scope, b"origin")
    if site not in ("", "same-origin"):
        return False
    return not origin or origin.partition("://")[2].casefold() == _header(scope, b"host").casefold()


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


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
        if given is not None and _is_token(given, self._token):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            target = scope["path"] + (f"?{rest}" if rest else "")
            cookie = f"{_cookie_name(scope)}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            headers = ((b"location", target.encode()), (b"set-cookie", cookie.encode()))
            await respond(send, 303, "", headers)
        elif _is_token(_cookie(scope), self._token):
            await self._app(scope, receive, send)
        else:
            await respond(send, 403, "This console needs its token: open the address that `leyden console` printed")


async def respond(send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Send a short plain text."""
    body = text.encode()
    own = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def _cookie(scope: Scope) -> str | None:
    """Return the token in a request's cookie; None without one."""
    for header, value in scope["headers"]:
        if header == b"cookie":
            try:
                cookies = SimpleCookie(value.decode("latin-1"))
            except CookieError:
                continue
            if (name := _cookie_name(scope)) in cookies:
                return cookies[name].value
    return None


def _cookie_name(scope: Scope) -> str:
    server = scope.get("server")
    return f"{COOKIE}_{server[1]}" if server and server[1] else COOKIE
