"""`leyden verl`: looks at what training with VERL needs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.command import Command
from leyden.core.cli.options import RUNS, JsonOption, RunsOption

if TYPE_CHECKING:
    from leyden.core.algorithm.verl.driver.doctor import Finding

app = typer.Typer(
    help="Training with VERL and vLLM on Ray.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def verl() -> None:
    """Training with VERL and vLLM on Ray."""


@app.command("doctor", cls=Command)
def doctor(
    *,
    policy: Annotated[Path | None, typer.Option(help="Also check this policy folder.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster, or auto. [default: start one, and stop it]")
    ] = None,
    smoke: Annotated[bool, typer.Option(help="Load VERL and take a small training step.")] = True,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> int:
    """Look at versions, GPUs, ports, memory, disk, policy and Ray; the exit code is 1 unless all checks pass."""
    from leyden.core.algorithm.verl.driver.doctor import DoctorOptions, examine

    options = DoctorOptions(policy=str(policy) if policy else None, runs=runs, ray_address=ray_address, smoke=smoke)
    findings: list[Finding] = []
    for finding in examine(options):
        findings.append(finding)
        if json:
            import msgspec

            sys.stdout.write(msgspec.json.encode(finding).decode() + "\n")
            sys.stdout.flush()
    if not json:
        _show(findings)
    return 0 if all(finding.status == "ok" for finding in findings) else 1


def _show(findings: "list[Finding]") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "failed": "red", "unknown": "yellow"}
    table = Table("", "check")
    for name in ("found", "what to do"):
        table.add_column(name, overflow="fold")  # a path is of no use without its end
    for one in findings:
        table.add_row(Text(one.status, styles[one.status]), one.check, Text(one.found), Text(one.fix))
    console = Console()
    console.print(table)
    wrong = sum(one.status != "ok" for one in findings)
    console.print(
        "all checks passed" if not wrong else f"{wrong} of {len(findings)} checks did not pass", highlight=False
    )
