"""`leyden stop`: ends the training of a run after its last checkpoint."""

import sys
from typing import Annotated

import typer

from leyden.core.cli.options import RUNS, QuietOption, RunsOption


def stop(
    run: Annotated[str, typer.Argument(help="Name or folder of a run.")],
    *,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that the run may take to end.")] = 300.0,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
) -> None:
    """Stop RUN, which another process of this machine trains; `leyden train --resume` goes on with it.

    The process gets SIGTERM. The command returns when it has ended.
    """
    from leyden.core.trainer.run_folder.folder import RunFolder
    from leyden.core.trainer.run_folder.stop import stop_run

    folder, _ = RunFolder.open(runs, run)

    def waiting(pid: int) -> None:
        if not quiet:
            sys.stderr.write(f"waiting until process {pid} has ended\n")

    stop_run(folder, timeout, waiting)
    if not quiet:
        sys.stdout.write(f"run {folder.path.name} is stopped; continue with: {folder.command('train --resume')}\n")
