"""`leyden rescore`: stored rollouts of a run scored by another reward, and what that would change."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from leyden.core.cli.options import RUNS, JsonOption, QuietOption, RunsOption, read_reward_weights
from leyden.core.cli.progress import progress
from leyden.core.data.encoding.json_line import json_line


def rescore(
    run: Annotated[str, typer.Argument(help="Name or folder of a run.")],
    *,
    reward: Annotated[str, typer.Option("--reward", help="The other reward function, as file.py:score.")],
    reward_weight: Annotated[
        list[str] | None,
        typer.Option("--reward-weight", metavar="NAME=WEIGHT", help="Weight of a dimension; may be repeated."),
    ] = None,
    rollouts: Annotated[str, typer.Option("--rollouts", help="train, held-out or all.")] = "train",
    limit: Annotated[int | None, typer.Option("--limit", help="Score only the first LIMIT rollouts.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that scoring one rollout may take.")] = 30.0,
    memory: Annotated[int, typer.Option("--memory", help="MiB of memory that scoring may allocate.")] = 4096,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Also write the result as JSON.")] = None,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Score the stored rollouts of RUN with another reward, and show what would change: ranks, groups, advantages."""
    from leyden.core.trainer.rescore.rescore import RescoreOptions, save
    from leyden.core.trainer.rescore.rescore import rescore as score_again
    from leyden.core.trainer.rescore.scoring import ScoringLimits

    given: Any = {"which": rollouts, "limit": limit, "weights": read_reward_weights(reward_weight or [])}
    options = RescoreOptions(reward=reward, limits=ScoringLimits(seconds=timeout, memory=memory << 20), **given)
    with progress("scored", quiet=quiet or json) as on_progress:
        result = score_again(runs, run, options, on_progress)
    if out is not None:
        save(result, out)
    if json:
        sys.stdout.write(json_line(result))
    elif not quiet:
        from rich.console import Console

        from leyden.core.trainer.rescore.show import print_report

        print_report(result, Console())
