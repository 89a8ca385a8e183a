"""`leyden console`: runs, rollouts and trained tokens in a browser."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from leyden.core.cli.options import RUNS, RunsOption
from leyden.core.data.encoding.base_url import is_loopback
from leyden.core.errors import LeydenError, UsageError
from leyden.core.masking import remember_secret

TOKEN = "LEYDEN_CONSOLE_TOKEN"
PORT = 8600
LOWER_PRIORITY = 5
"""By how much a console that only reads lowers its priority, so that a training that needs all cores goes first."""


def console(
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN|FOLDER|URI]...", help="Runs, folders of runs, or stores.")
    ] = None,
    *,
    runs: RunsOption = RUNS,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = PORT,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further name of this machine that browsers may use.")
    ] = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let pages start commands of leyden; the console then has a token.")
    ] = False,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Also answer MCP clients, such as coding agents, at /mcp; it needs a token.")
    ] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Show runs in a web page, while they train or afterwards; without an argument, all in --runs.

    It only reads, unless --allow-actions is given.
    """
    server = _server()
    if mcp:
        _check_mcp()
    folders, uris = _places(sources or [], runs)
    is_open = is_loopback(host) and not allow_actions and not mcp
    token = os.environ.get(TOKEN) or (None if is_open else secrets.token_urlsafe(24))
    if token is not None:
        remember_secret(token)
    app = server.application(
        folders, uris, host=host, token=token, allowed_hosts=allow_host or (), allow_actions=allow_actions, mcp=mcp
    )

    def ready(listening: int) -> None:
        name = f"[{host}]" if ":" in host else host
        query = "" if token is None else f"?token={token}"
        sys.stdout.write(f"The console is at http://{name}:{listening}/{query} (stop it with Ctrl-C)\n")
        if mcp:
            sys.stdout.write(f"MCP clients need this entry: {_mcp_entry(f'http://{name}:{listening}/mcp', token)}\n")
        sys.stdout.flush()

    if not allow_actions and hasattr(os, "nice"):  # the commands of pages would inherit it
        os.nice(LOWER_PRIORITY)
    parent = os.getppid()
    try:
        asyncio.run(server.serve(app, host, port, ready, until=lambda: with_parent and os.getppid() != parent))
    except OSError as error:
        raise LeydenError(f"the console cannot listen on {host}:{port}: {error.strerror or error}") from None


@contextmanager
def console_beside(runs: Path) -> Generator[None]:
    """Context manager: shows the runs in `runs` in a console of its own process, and prints its address.

    The console ends with the block, and also if this process is killed. Raises UsageError if it is not installed.
    """
    _server()
    runs.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "leyden.core.cli", "console", "--runs", str(runs), "--port", "0", "--with-parent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            line = process.stdout.readline().decode() if process.stdout is not None else ""
            if not line:
                raise LeydenError("the console did not start; without --console, the run does not need it")
            sys.stderr.write(line.replace(" (stop it with Ctrl-C)", ""))
            yield
        finally:
            process.terminate()


def _server() -> Any:
    """Return the console's server, which is a package of its own; raises UsageError if it is not installed."""
    try:
        return import_module("leyden.console.server")
    except ModuleNotFoundError as error:
        lacks = "" if (error.name or "").startswith("leyden.console") else f" ({error})"
        raise UsageError(f"leyden console needs pip install leyden-console{lacks}") from None


def _check_mcp() -> None:
    """Raise UsageError if the package of the Model Context Protocol is not installed."""
    try:
        import_module("mcp.server.streamable_http_manager")
    except ModuleNotFoundError as error:
        raise UsageError(f"--mcp needs pip install 'leyden-console[mcp]' ({error})") from None


def _mcp_entry(url: str, token: str | None) -> str:
    """Return the entry for the configuration of an MCP client."""
    server = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {token}"}}
    return json.dumps({"mcpServers": {"leyden": server}})


def _places(sources: list[str], runs: Path) -> tuple[list[Path], list[str]]:
    """Return the folders and the stores that `sources` name; raises UsageError for a name that is neither."""
    folders, uris = list[Path](), list[str]()
    for source in sources:
        if "://" in source:
            uris.append(source)
        elif Path(source).is_dir():
            folders.append(Path(source))
        elif (runs / source).is_dir():
            folders.append(runs / source)
        else:
            raise UsageError(f"there is no folder {source!r}, and no run of this name in {runs}")
    if not sources and not runs.is_dir():
        raise UsageError(f"there is no folder {runs}: name a run, a folder of runs (--runs) or a store")
    return folders or ([] if uris else [runs]), uris
