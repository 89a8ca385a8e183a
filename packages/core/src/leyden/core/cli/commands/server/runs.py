"""`leyden runs`: the runs of a server, listed, followed, stopped, resumed, rolled back and removed."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from leyden.core.cli.command import Command
from leyden.core.cli.options import DeviceOption, JsonOption, QuietOption, read_settings
from leyden.core.cli.server_options import (
    InsecureOption,
    RunCoresOption,
    RunMemoryOption,
    ServerOption,
    ServerOptions,
    Shown,
)
from leyden.core.data.encoding.json_line import json_line
from leyden.core.masking import printable

if TYPE_CHECKING:
    from leyden.core.server.status import RunStatus

app = typer.Typer(
    help="The runs of a server (`leyden serve`): list, show, follow, stop, resume, roll back, remove.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
NameArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run of the server.")]
"""Name of a run."""


@app.command("list", cls=Command)
def list_runs(*, server: ServerOption = None, insecure: InsecureOption = False, json: JsonOption = False) -> None:
    """List the runs of the server, with their states and budgets."""
    statuses = ServerOptions(server, insecure=insecure).client().runs()
    if json:
        sys.stdout.write("".join(json_line(msgspec.to_builtins(status)) for status in statuses))
        return
    if not statuses:
        sys.stdout.write("the server has no runs yet; submit one with: leyden train ... --server URL\n")
        return
    from rich.console import Console
    from rich.table import Table

    from leyden.core.server.budget import shown
    from leyden.core.trainer.monitoring.as_it_is import as_it_is

    table = Table("run", "state", "step", "reward", "memory", "cores", "reason")
    for one in statuses:
        used = "" if one.memory_used is None else f"{shown(one.memory_used)} of "
        reward = "" if one.reward is None else f"{one.reward:.3f}"
        words = (one.name, one.state, f"{one.step}/{one.steps}", reward, f"{used}{shown(one.memory)}", str(one.cores))
        table.add_row(*map(as_it_is, (*words, one.reason or "")))
    Console().print(table)


@app.command("show", cls=Command)
def show_run(
    run: NameArgument, *, server: ServerOption = None, insecure: InsecureOption = False, json: JsonOption = False
) -> None:
    """Show the state of RUN, and the versions of its policy."""
    handle = ServerOptions(server, insecure=insecure).client().run(run)
    status, versions = handle.status(), handle.versions()
    if json:
        sys.stdout.write(json_line({**msgspec.to_builtins(status), "versions": msgspec.to_builtins(versions)}))
        return
    sys.stdout.write(f"{printable(status.line())}\n")
    for version in versions:
        reward = version.metrics.get("reward")
        parts = [f"version {version.version}"]
        parts += [] if reward is None else [f"reward {reward:.3f}"]
        parts += [f"{name} {mean:.3f}" for name, mean in version.held_out.items() if mean is not None]
        parts += [] if version.weights is None else [f"weights {version.weights}"]
        sys.stdout.write(f"  {printable('  '.join(parts))}\n")


@app.command("follow", cls=Command)
def follow_run(
    run: NameArgument,
    *,
    server: ServerOption = None,
    insecure: InsecureOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Print what RUN has printed and prints, until it has ended; Ctrl-C ends the command, and not the run."""
    from leyden.core.cli.following import follow

    handle = ServerOptions(server, insecure=insecure).client().run(run)
    follow(handle, server, Shown(quiet=quiet, json=json), everything=True)


@app.command("stop", cls=Command)
def stop_run(
    run: NameArgument,
    *,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that the run may take to end.")] = 300.0,
    server: ServerOption = None,
    insecure: InsecureOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Stop RUN after its last checkpoint; returns when its process has ended."""
    handle = ServerOptions(server, insecure=insecure).client().run(run)
    _say(handle.stop(timeout=timeout), Shown(quiet=quiet, json=json))


@app.command("resume", cls=Command)
def resume_run(
    context: typer.Context,
    run: NameArgument,
    *,
    steps: Annotated[int | None, typer.Option(help="Weight updates to take in all.")] = None,
    device: DeviceOption = "cpu",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Option of the algorithm, as key=value.")] = None,
    memory: RunMemoryOption = None,
    cores: RunCoresOption = None,
    server: ServerOption = None,
    insecure: InsecureOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Put RUN into the queue again; it goes on after its last checkpoint."""
    handle = ServerOptions(server, memory, insecure=insecure).client().run(run)
    source: Any = context.get_parameter_source("device")
    status = handle.resume(
        steps=steps,
        device=None if source.name == "DEFAULT" else device,
        settings=read_settings(set_ or []),
        memory=memory,
        cores=cores,
    )
    _say(status, Shown(quiet=quiet, json=json))


@app.command("rollback", cls=Command)
def roll_back(
    run: NameArgument,
    version: Annotated[str, typer.Argument(help="Number of the version.")],
    *,
    server: ServerOption = None,
    insecure: InsecureOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Return RUN to VERSION, from which `leyden runs resume` goes on; a run that trains is stopped first."""
    handle = ServerOptions(server, insecure=insecure).client().run(run)
    back = handle.rollback(version)
    if json:
        sys.stdout.write(json_line(back))
    elif not quiet:
        aside = printable(str(back["set_aside"]))
        sys.stdout.write(f"run {run} is at version {back['version']}; the later ones are in {aside} on the server\n")


@app.command("remove", cls=Command)
def remove_run(
    run: NameArgument, *, server: ServerOption = None, insecure: InsecureOption = False, quiet: QuietOption = False
) -> None:
    """Delete RUN, which has ended, with its folder on the server. Its rollouts in a shared store stay there."""
    ServerOptions(server, insecure=insecure).client().run(run).remove()
    if not quiet:
        sys.stdout.write(f"run {run} is removed\n")


def _say(status: "RunStatus", shown: Shown) -> None:
    if shown.json:
        sys.stdout.write(json_line(msgspec.to_builtins(status)))
    elif not shown.quiet:
        sys.stdout.write(f"{printable(status.line())}\n")
