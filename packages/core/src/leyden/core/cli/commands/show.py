"""`leyden show`: a run as a table, one of its rollouts as a tree, or the runs of a store."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from leyden.core.cli.options import RUNS, JsonOption, RunsOption
from leyden.core.data.encoding.json_line import json_line
from leyden.core.trainer.monitoring.display import is_search_step, search_spending

if TYPE_CHECKING:
    from leyden.core.data.page import Page
    from leyden.core.data.run import Run


def show(
    run: Annotated[str, typer.Argument(help="Name, folder or URI#RUN of a run, or the URI of a store.")],
    rollout: Annotated[str | None, typer.Argument(help="Id of a rollout, or a part of one.")] = None,
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Show RUN's steps and result, or one ROLLOUT of it as a tree of agents, calls, tools and rewards.

    URI, without a run, lists the runs of a store that has several.
    """
    from leyden.core.trainer.run_folder.folder import RunFolder
    from leyden.core.trainer.run_folder.sharing.shared_runs import runs_of_store

    stored = None if rollout is not None else runs_of_store(run)
    if stored is not None and len(stored) > 1:
        _show_stored(stored, json=json)
        return
    folder, config = RunFolder.open(runs, run)
    if rollout is None:
        _show_run(folder, config.experiment, json=json)
    else:
        _show_rollout(folder, rollout, json=json)


def _show_stored(stored: "Page[Run]", *, json: bool) -> None:
    """Print the runs of a store, the newest first, with the state that the store has of each."""
    for problem in stored.missing:
        sys.stderr.write(f"runs are missing: {problem}\n")
    if json:
        for run in stored:
            sys.stdout.write(json_line(msgspec.to_builtins(run)))
        return
    from rich.console import Console
    from rich.table import Column, Table

    from leyden.core.trainer.monitoring.as_it_is import as_it_is
    from leyden.core.trainer.run_folder.sharing.shared_runs import HOST

    table = Table(Column("run", overflow="fold"), "experiment", "state", "started", "last write", "machine")
    for run in stored:
        state = "finished" if run.status == "succeeded" else run.status
        times = (time.strftime("%m-%d %H:%M", time.localtime(at)) for at in (run.start_time, run.update_time))
        words = (run.run_id, run.experiment or "–", state, *times, str(run.metadata.get(HOST) or "–"))
        table.add_row(*map(as_it_is, words))
    Console().print(table)


def _show_run(folder: Any, experiment: str | None, *, json: bool) -> None:
    metrics = [line for line in folder.metrics() if "reward" in line]
    if json:
        for line in metrics:
            sys.stdout.write(json_line(line))
        return
    from rich.console import Console

    from leyden.core.trainer.monitoring.as_it_is import as_it_is
    from leyden.core.trainer.monitoring.curve import terminal_curve
    from leyden.core.trainer.run_folder.report import closing_prompts, closing_table, combination_tables
    from leyden.core.trainer.run_state import state_and_reason

    console = Console()
    console.print(_steps_table(folder.path.name, experiment, metrics))
    console.print(terminal_curve(metrics), highlight=False, markup=False)
    if (report := folder.report()) is not None:
        console.print(closing_table(report))
        for line in closing_prompts(report):
            console.print(as_it_is(line), soft_wrap=True)
        for table in combination_tables(report):
            console.print(table)
    else:
        state, reason = state_and_reason(folder)
        console.print(as_it_is(f"{state}: {reason}" if reason else state), soft_wrap=True)
        if folder.failure() is not None:
            console.print(f"outcome of each rollout: {folder.command('why')}", highlight=False, markup=False)
        elif state != "running":
            console.print(as_it_is(f"continue with: {folder.command('train --resume')}"), soft_wrap=True)


def _steps_table(name: str, experiment: str | None, metrics: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    from leyden.core.trainer.monitoring.as_it_is import TITLE, as_it_is

    among = "" if experiment is None else f" of experiment {experiment}"
    table = Table(title=as_it_is(f"Run {name}{among}: {len(metrics)} steps", TITLE), title_justify="left")
    rows = [_cells(line) for line in metrics]
    for column in dict.fromkeys(name for row in rows for name in row):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(row.get(str(column.header), "–") for column in table.columns))
    return table


def _cells(line: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a step by column: those of a search for prompts, or of a step without or with weights."""
    step, seconds = {"step": str(line["step"])}, {"s": f"{line['seconds']:.1f}"}
    if is_search_step(line):
        spent = dict(zip(("rollouts", "tokens", "cost"), search_spending(line), strict=False))
        shown = {name: text.removesuffix(f" {name}") for name, text in spent.items()}
        return {
            **step,
            "best": f"{line['reward']:.3f}",
            "candidates": str(line.get("candidates", "–")),
            **shown,
            **seconds,
        }
    speed = {"tok/s": f"{line['tokens_per_second']:,.0f}"} if "tokens_per_second" in line else {}
    common = {
        **step,
        "reward": f"{line['reward']:.3f}",
        "rollouts": str(line["rollouts"]),
        "calls": str(line.get("transitions", line.get("calls", "–"))),
        **speed,
        **seconds,
    }
    if "transitions" not in line:
        return common
    return {
        **common,
        "ratio-1": f"{_largest(line, 'importance_ratio_deviation'):.0e}",
        "served gap": f"{_largest(line, 'served_trained_gap'):.0e}",
    }


def _largest(line: dict[str, Any], key: str) -> float:
    """The number under `key`; of several policies, each of which has its name before it, the largest."""
    found = [value for name, value in line.items() if name.rpartition("/")[2] == key]
    return max(found, default=float("nan"))


def _show_rollout(folder: Any, wanted: str, *, json: bool) -> None:
    from leyden.core.trainer.why.reading import recorded_in, sources_of

    sources, _ = sources_of(folder)
    recorded = asyncio.run(recorded_in(folder, sources, wanted))
    if json:
        sys.stdout.write(json_line(recorded))
        return
    from rich.console import Console

    from leyden.core.trainer.rollouts.tree import rollout_tree

    Console().print(rollout_tree(recorded), highlight=False)
