"""`leyden why`: why rollouts and calls of a run were not trained, in counts, or of one rollout."""

import asyncio
import sys
from typing import Annotated

import typer

from leyden.core.cli.options import RUNS, JsonOption, RunsOption
from leyden.core.data.encoding.json_line import json_line
from leyden.core.masking import printable


def why(
    run: Annotated[str, typer.Argument(help="Name or folder of a run, or of a check that failed.")],
    rollout: Annotated[str | None, typer.Argument(help="Id of a rollout, or a part of one.")] = None,
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Show why rollouts and calls of RUN were not trained, with counts and examples, or what became of one ROLLOUT."""
    from leyden.core.trainer.why.reading import RunRecord
    from leyden.core.trainer.why.show import rollout_lines, summary_lines
    from leyden.core.trainer.why.summary import summarise, with_rollout

    record = RunRecord.open(runs, run)
    if rollout is None:
        found = asyncio.run(summarise(record))
        lines = summary_lines(found)
    else:
        found = asyncio.run(record.explanation(rollout))
        lines = rollout_lines(found, with_rollout(record.folder.command("show"), found.rollout_id))
    if json:
        sys.stdout.write(json_line(found))
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
