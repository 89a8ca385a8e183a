"""`leyden train`: train the model inside an agent, or go on with a run."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from leyden.core.cli.commands.console import console_beside
from leyden.core.cli.options import RUNS, warn_of_host
from leyden.core.cli.run_options import RunOptions, takes_run
from leyden.core.cli.server_options import InsecureOption, RunCoresOption, RunMemoryOption, ServerOptions, Shown
from leyden.core.data.encoding.json_line import json_line
from leyden.core.errors import (
    CheckFailed,
    LeydenError,
    NothingToLearn,
    RewardError,
    TaskError,
    UnknownAgent,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from leyden.core.trainer.run_folder.report import RunReport


@takes_run
def train(
    given: RunOptions,
    *,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Continue this run.")] = None,
    check: Annotated[bool, typer.Option(help="Check on the first batch that the run can learn.")] = True,
    console: Annotated[bool, typer.Option("--console", help="Show the run in a web page meanwhile.")] = False,
    validate: Annotated[
        bool, typer.Option("--validate", help="Only validate settings and tasks; start nothing.")
    ] = False,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Train on this server (`leyden serve`), and follow the run.")
    ] = None,
    memory: RunMemoryOption = None,
    cores: RunCoresOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="With --server: do not follow the run.")] = False,
    insecure: InsecureOption = False,
) -> None:
    """Train the model inside AGENT, or COMMAND, on TASKS, without changing the agent."""
    if server is not None:
        _train_there(given, resume, ServerOptions(server, memory, cores, detach, insecure), check, console or validate)
        return
    for option in ("memory", "cores", "detach", "insecure"):
        if given.gives(option):
            raise UsageError(f"--{option} has no effect without --server")
    from leyden.core.trainer.launch import begin, check_files, train_here, validated
    from leyden.core.trainer.launch import resume as go_on
    from leyden.core.trainer.monitoring.display import make_display
    from leyden.core.trainer.run_folder.folder import check_free
    from leyden.core.trainer.run_folder.sharing.shared_runs import folder_of, is_address

    run_session = train_here(make_display(quiet=given.quiet, json=given.json))
    shown = console_beside(given.runs) if console else nullcontext()
    if resume is not None:
        changes = given.changes()
        resume = str(folder_of(resume, given.runs)) if is_address(resume) else resume
        with shown:
            _finish(given, lambda: go_on(given.runs, resume, run_session, changes), resume)
        return
    config, rows, held_out = given.read()
    if given.gives("check"):
        config = msgspec.structs.replace(config, check=check)
    check_files(config)
    if validate:
        validated(config, rows)
        check_free(given.runs, config.name)
        if not given.quiet:
            sys.stdout.write(f"run {config.name} can begin: its settings and tasks are valid\n")
        return
    warn_of_host(config.runners.host)
    with shown:
        _finish(given, lambda: begin(given.runs, config, rows, held_out, run_session), config.name)


def _train_there(given: RunOptions, resume: str | None, to: ServerOptions, check: bool, stays_here: bool) -> None:
    """Submit a run to a server, or resume one there, and follow it."""
    from leyden.core.cli.following import follow, started

    if stays_here:
        raise UsageError("--console and --validate have no effect with --server: use them on the server's machine")
    for option in ("runs", "host", "port", "advertise", "allow_host"):
        if given.gives(option):
            name = option.replace("_", "-")
            raise UsageError(f"--{name} has no effect with --server, which chooses folder and address of its runs")
    client = to.client()
    if resume is None:
        config, rows, held_out = given.read(here=False)
        if given.gives("check"):
            config = msgspec.structs.replace(config, check=check)
        if config.store is not None and not given.is_on_command_line("store"):
            config = msgspec.structs.replace(config, store=None)  # LEYDEN_STORE is for runs of this machine
        handle = client.submit_config(config, rows, held_out, memory=to.memory, cores=to.cores)
        status = handle.status()
    else:
        changes = given.changes()
        if changes.ray_address is not None or changes.store is not None:
            raise UsageError("--ray-address and --store cannot change on a server")
        handle = client.run(resume)
        status = handle.resume(
            steps=changes.steps, device=changes.device, settings=changes.settings, memory=to.memory, cores=to.cores
        )
    shown = Shown(quiet=given.quiet, json=given.json)
    if to.detach:
        started(handle, status, to.url, shown)
    else:
        follow(handle, to.url, shown, since=status.step)


def _finish(given: RunOptions, work: "Callable[[], RunReport]", name: str) -> None:
    """Do the work; say how to go on when it is stopped or fails, and show what it came to."""
    from leyden.core.trainer.agents.runner_api import SERVED
    from leyden.core.trainer.event_loop import Terminated
    from leyden.core.trainer.run_folder.folder import RunFolder

    where = "" if given.runs == RUNS else f" --runs {given.runs}"
    # the client of a server names its own command, since this one would go on without the run's budget
    how = "" if SERVED in os.environ else f"; continue with: leyden train --resume {name}{where}"
    try:
        report = work()
    except (KeyboardInterrupt, Terminated):
        sys.stderr.write(f"\nstopped{how}\n")
        raise
    except LeydenError as error:
        folder = RunFolder(given.runs / name)
        is_settled = isinstance(error, UsageError | CheckFailed) and not isinstance(error, NothingToLearn)
        if isinstance(error, RewardError | TaskError | UnknownAgent) and folder.checkpoints.exists():
            is_settled = False  # raised by a rollout after the first step
        if not is_settled and folder.path.exists():
            sys.stderr.write(f"\nfailed{how}\n")
        if folder.failure() is not None or (not is_settled and folder.store_location.exists):
            sys.stderr.write(f"outcome of each rollout: {folder.command('why')}\n")
        raise
    if given.json:
        sys.stdout.write(json_line({"event": "report", **report.written()}))
    elif not given.quiet:
        _show(report, given.runs / name)


def _show(report: "RunReport", folder: Path) -> None:
    from rich.console import Console

    from leyden.core.trainer.monitoring.as_it_is import as_it_is
    from leyden.core.trainer.monitoring.curve import terminal_curve
    from leyden.core.trainer.run_folder.folder import RunFolder
    from leyden.core.trainer.run_folder.report import closing_prompts, closing_table, combination_tables

    console = Console()
    curve = terminal_curve(RunFolder(folder).metrics())
    if curve:
        console.print(curve, highlight=False, markup=False)
    console.print(closing_table(report))
    for line in closing_prompts(report):
        console.print(as_it_is(line), soft_wrap=True)
    for table in combination_tables(report):
        console.print(table)
    results = {"prompts": "prompts", "reward curve": "reward_curve.png"}
    if report.endpoint is None:
        results = {"trained policy": "policy", **results}
    written = [
        f"{what}: {folder / path}" for what, path in results.items() if path != "prompts" or (folder / path).exists()
    ]
    console.print(as_it_is("   ".join(written)))
    if report.failed_rollouts or report.rollouts_left_out or (report.excluded_calls and report.endpoint is None):
        console.print(as_it_is(f"why rollouts and calls were not trained: {RunFolder(folder).command('why')}"))
