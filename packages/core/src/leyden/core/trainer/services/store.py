"""Store service: serves a store over HTTP until it is stopped."""

import asyncio
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from leyden.core.errors import UsageError
from leyden.core.masking import remember_secret
from leyden.core.store.http.admission import SCALE_AT
from leyden.core.store.open import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlan:
    """Store to serve, and the address of its server."""

    uri: str = field(repr=False)
    token: str | Path = field(repr=False)
    """Token of the trainers, which allows every request, or the file that holds it."""
    host: str = "127.0.0.1"
    port: int = 0
    allow_hosts: tuple[str, ...] = ()
    """Further host names of this machine that are accepted in the Host header of requests."""
    scale_at: int = SCALE_AT
    """Number of waiting spans from which `/metrics` reports that more servers are needed."""


async def serve_store(plan: StorePlan, started: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Serve until `stopped` is set; `started` receives the root URL once connections are accepted.

    Raises UsageError for a plan that cannot work, and GatewayError when the port is in use.
    """
    from leyden.core.gateway.http.server import GatewayServer
    from leyden.core.store.http.access import Access
    from leyden.core.store.http.admission import ServerLimits
    from leyden.core.store.http.server import store_app

    async with AsyncExitStack() as closing:
        store = await open_store(plan.uri)
        closing.push_async_callback(store.close)
        access = Access(plan.token if isinstance(plan.token, str) else kept_token(plan.token))
        limits = ServerLimits(scale_at=plan.scale_at)
        app = store_app(store, authorize=access.is_trainer, agents=access.holder, limits=limits)
        server = GatewayServer(app, plan.host, plan.port, allowed_hosts=plan.allow_hosts)
        url = await server.start()
        closing.push_async_callback(server.stop)
        started(url)
        await stopped.wait()


def kept_token(path: Path) -> str:
    """Return the token in the file at `path`; create the file, readable only by its owner, if it does not exist.

    Raises UsageError for a file that other users can read or own, or that holds no token.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_token(path)
    except OSError as error:
        raise UsageError(f"the token cannot be written to {path}: {error.strerror}") from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(handle, "w") as file:
        file.write(token + "\n")
    remember_secret(token)
    return token


def _read_token(path: Path) -> str:
    try:
        with path.open() as file:
            found = os.fstat(file.fileno())
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"no token can be read from {path}: {error}") from None
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(
            f"{path} belongs to another user, who can read its token; remove the file, and Leyden makes a new token"
        )
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{path} can be read by other users; restrict it to yourself with: chmod 600 {path}")
    if not token:
        raise UsageError(f"{path} is empty; remove the file, and Leyden makes a new token")
    remember_secret(token)
    return token
