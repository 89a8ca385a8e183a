"""`leyden export`: rollouts, spans and transitions of a run, or of any store, as files for other tools."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from leyden.core.cli.options import RUNS, JsonOption, QuietOption, RunsOption
from leyden.core.cli.progress import progress
from leyden.core.data.encoding.json_line import json_line


def export(
    source: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a run, or the URI of a store.")],
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder to make.")],
    format: Annotated[str, typer.Option("--format", help="parquet, datasets or jsonl.")] = "parquet",
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what",
            help="rollouts, spans, transitions, candidates of prompts (these if not given), runs, metrics, "
            "policy_versions; may be repeated.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace FOLDER if it is an older export.")] = False,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Write rollouts, spans and transitions of RUN into FOLDER, which `datasets.load_dataset` and others can read."""
    from leyden.core.trainer.export.export import export_run

    with progress("rollouts", quiet=quiet or json) as on_progress:
        # What was given is checked there, with the same words for the command and for Python.
        given: Any = {"format": format, "what": None if what is None else tuple(what)}
        exported = asyncio.run(export_run(source, to, replace=replace, runs=runs, progress=on_progress, **given))
    if json:
        sys.stdout.write(json_line(exported))
    elif not quiet:
        counts = ", ".join(f"{count:,} {table}" for table, count in cast("dict[str, int]", exported.rows).items())
        sys.stdout.write(f"{counts} of {exported.rollouts_read:,} rollouts read are in {to}\n")
        if exported.left_out:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in exported.left_out.items())
            sys.stdout.write(f"model calls that are no transitions: {reasons}\n")
