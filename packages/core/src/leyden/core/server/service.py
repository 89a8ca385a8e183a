"""Service of `leyden serve`: the HTTP server and the supervisor of a folder's runs, until they are stopped."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from leyden.core.data.encoding.base_url import check_base_url, is_loopback
from leyden.core.errors import UsageError
from leyden.core.masking import mask_logs, remember_secret
from leyden.core.server.budget import own_budget
from leyden.core.server.session_command import PROGRAM, SessionPlan
from leyden.core.trainer.run_folder.sharing.store_location import remember_store, settled_uri
from leyden.core.trainer.services.store import kept_token

TOKEN = "LEYDEN_SERVER_TOKEN"
"""Environment variable with the server's token, here and for its clients."""
PORT = 8770
TOKEN_FILE = "leyden-server.token"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """A server of runs."""

    runs: Path
    token: str | Path = field(repr=False)
    """The token that every request needs, or the file that holds it."""
    store: str | None = field(default=None, repr=False)
    """URI of a store for the rollouts of all runs; None: each run has a file of its own."""
    project: Path = Path()
    """Folder in which the runs' processes work."""
    memory: int | None = None
    """Bytes of memory of all runs together; None: nine tenths of the machine's."""
    cores: int | None = None
    """Number of cores of all runs together; None: all."""
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    allow_hosts: tuple[str, ...] = ()
    program: tuple[str, ...] = PROGRAM
    insecure: bool = False
    """Whether tokens may be sent unencrypted to another machine."""

    def __post_init__(self) -> None:
        """Raise UsageError for a plan that cannot work."""
        if not sys.platform.startswith("linux"):
            raise UsageError("leyden serve needs Linux: it measures and limits the processes of its runs through /proc")
        if not self.project.is_dir():
            raise UsageError(f"--project {self.project} is not a folder: name the one that holds the agents' code")
        is_encrypted = self.advertise is not None and self.advertise.startswith("https://")
        if self.advertise is not None:
            check_base_url(self.advertise, "--advertise")
            if urlsplit(self.advertise).path.strip("/"):
                raise UsageError(f"--advertise takes a URL without a path, not {self.advertise!r}")
        if not is_loopback(self.host) and not is_encrypted and not self.insecure:
            raise UsageError(
                f"--host {self.host} would take tokens unencrypted from other machines: give --advertise https://... "
                "for a proxy with TLS, or --insecure on a private network"
            )


async def serve_runs(plan: ServerPlan, started: Callable[[str], None], stopped: asyncio.Event) -> None:
    """Serve until `stopped` is set; `started` receives the root URL once connections are accepted.

    Runs stop with the server, and go on when it starts again.
    Raises UsageError for a plan that cannot work, and GatewayError when the port is in use.
    """
    from leyden.core.gateway.http.server import GatewayServer
    from leyden.core.server.app import server_app
    from leyden.core.server.supervisor import Supervisor

    mask_logs("leyden.core.server")
    token = plan.token if isinstance(plan.token, str) else kept_token(plan.token)
    if not token.isascii() or not token.isprintable() or " " in token or len(token) < 16:
        raise UsageError(f"the token in {TOKEN} must have at least 16 printable ASCII characters, without spaces")
    remember_secret(token)
    store = None if plan.store is None else settled_uri(plan.store)
    if store is not None:
        from leyden.core.store.open import open_store

        if store.startswith("memory:"):
            raise UsageError("--store memory:// ends with each run's process; name a store that is kept")
        remember_store(store)
        await (await open_store(store)).close()
    known = {urlsplit(plan.advertise).hostname or ""} if plan.advertise is not None else set[str]()
    hosts = (*plan.allow_hosts, *known)
    session_plan = SessionPlan(
        project=plan.project.resolve(),
        store=store,
        host=plan.host,
        advertise=plan.advertise,
        allow_hosts=hosts,
        program=plan.program,
    )
    supervisor = Supervisor(plan.runs, own_budget(plan.memory, plan.cores), session_plan)
    server = GatewayServer(server_app(supervisor, token), plan.host, plan.port, allowed_hosts=hosts)
    try:
        url = await server.start()
    except BaseException:
        await supervisor.release()
        raise
    try:
        await supervisor.start()
        started(plan.advertise or url)
        await stopped.wait()
    finally:
        supervisor.close()
        await server.stop()
        await supervisor.stop()
