"""`leyden serve`: a server that trains several runs at once on this machine."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from leyden.core.cli.options import RUNS, AllowHostOption, JsonOption, RunsOption, warn_of_host
from leyden.core.data.encoding.base_url import check_hosts


def serve(
    *,
    runs: RunsOption = RUNS,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            envvar="LEYDEN_STORE",
            help="Keep the rollouts of all runs in this store. [default: a file in each run's folder]",
        ),
    ] = None,
    project: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder in which runs look for agents, rewards and policies.")
    ] = Path(),
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Memory of all runs together. [default: 90 % of the machine's]"),
    ] = None,
    cores: Annotated[int | None, typer.Option(help="Processor cores of all runs together. [default: all]")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; other machines can reach 0.0.0.0.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8770,
    advertise: Annotated[
        str | None, typer.Option(metavar="URL", help="URL at which other machines reach the server.")
    ] = None,
    allow_host: AllowHostOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Take tokens over plain HTTP from other machines.")
    ] = False,
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="File with the token, if LEYDEN_SERVER_TOKEN is not set.")
    ] = Path("leyden-server.token"),
    json: JsonOption = False,
) -> None:
    """Train several runs at once on this machine, until SIGTERM or Ctrl-C; the runs go on at the next start.

    Every request needs the server's token. It is taken from LEYDEN_SERVER_TOKEN, or from a file that its owner alone
    can read and that is made where there is none.
    """
    from leyden.core.server.budget import read_size
    from leyden.core.server.service import TOKEN, ServerPlan, serve_runs
    from leyden.core.trainer.event_loop import run_loop, stopped_by_sigterm

    given = os.environ.get(TOKEN)
    plan = ServerPlan(
        runs=runs,
        token=given or token_file,
        store=store,
        project=project,
        memory=None if memory is None else read_size(memory),
        cores=cores,
        host=host,
        port=port,
        advertise=None if advertise is None else advertise.rstrip("/"),
        allow_hosts=check_hosts(allow_host or ()),
        insecure=insecure,
    )
    kept = f"in {TOKEN}" if given else f"in {token_file}"

    async def work() -> None:
        with stopped_by_sigterm() as stopped:
            await serve_runs(plan, lambda url: _show(url, runs, kept, json=json), stopped)

    warn_of_host(host)
    run_loop(work())


def _show(url: str, runs: Path, kept: str, *, json: bool) -> None:
    """Print where the server is and where its token, which is never printed."""
    if json:
        import msgspec

        line = msgspec.json.encode({"url": url, "runs": str(runs), "token": kept}).decode()
    else:
        line = (
            f"Serving the runs in {runs} at {url}; the token is {kept}.\n"
            f"  train: leyden train ... --server {url}\n"
            f"  list:  leyden runs list --server {url}"
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
