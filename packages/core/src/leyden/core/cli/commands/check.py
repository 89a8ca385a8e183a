"""`leyden check`: prove on a few rollouts that a run would learn, before it spends an hour."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from leyden.core.cli.options import agent_name
from leyden.core.cli.run_options import RunOptions, takes_run
from leyden.core.data.encoding.json_line import json_line
from leyden.core.masking import printable

if TYPE_CHECKING:
    from leyden.core.trainer.preflight.report import CheckReport


@takes_run
def check(given: RunOptions) -> int:
    """Prove on a few rollouts that `leyden train` with the same arguments would learn. Exit code 1 when it would not.

    A policy is loaded, an update is taken, served and taken back. What the check saw is kept only where a check or a
    rollout failed, until the next check of the same agent or --name.
    """
    from leyden.core.trainer.launch import check_here, check_run
    from leyden.core.trainer.monitoring.display import make_display

    config, rows, _ = given.read()
    if given.name is None and (agent := given.named_agent()) is not None:
        config = msgspec.structs.replace(config, name=agent_name(agent))  # without the time, so that it is replaced
    report = check_run(given.runs, config, rows, check_here(make_display(quiet=given.quiet or given.json)))
    _show(report, quiet=given.quiet, json=given.json)
    return 0 if report.proven else 1


def _show(report: "CheckReport", *, quiet: bool, json: bool) -> None:
    """A table, or a JSON line for each check and one for all; with `quiet` what is wrong, on standard error."""
    if json:
        lines = [{"event": "check", **msgspec.to_builtins(result)} for result in report.results]
        whole = {
            "event": "report",
            "proven": report.proven,
            "rollouts": report.rollouts,
            "seconds": report.seconds,
            "kept": report.kept,
        }
        for line in [*lines, whole]:
            sys.stdout.write(json_line(line))
        return
    if quiet:
        sys.stderr.write(f"leyden: {printable(report.complaint())}\n" if report.failures else "")
        return
    from rich.console import Console

    from leyden.core.trainer.preflight.report import check_table
    from leyden.core.trainer.run_folder.folder import RunFolder

    Console().print(check_table(report))
    if report.kept is not None:
        command = RunFolder(Path(report.kept)).command("why")
        sys.stdout.write(f"the check's rollouts are in {report.kept}; to see them: {command}\n")
