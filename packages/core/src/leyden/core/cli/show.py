"""`leyden show`: a run as a table, or one of its rollouts as a tree."""

import asyncio
import sys
from typing import Annotated, Any

import typer

from leyden.core.cli.options import RUNS, JsonOption, RunsOption
from leyden.core.errors import RunError

SHOWN = 20


def show(
    run: Annotated[str, typer.Argument(help="Name or folder of a run.")],
    rollout: Annotated[str | None, typer.Argument(help="Id of a rollout, or a part of one.")] = None,
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Show RUN's steps and result, or one ROLLOUT of it as a tree of agents, calls, tools and rewards."""
    from leyden.core.trainer.folder import RunFolder

    folder, config = RunFolder.open(runs, run)
    if rollout is None:
        _show_run(folder, config.experiment, json=json)
    else:
        asyncio.run(_show_rollout(folder, rollout, json=json))


def _show_run(folder: Any, experiment: str | None, *, json: bool) -> None:
    metrics = [line for line in folder.metrics() if "reward" in line]
    if json:
        import msgspec

        for line in metrics:
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
        return
    from rich.console import Console

    from leyden.core.trainer.curve import terminal_curve
    from leyden.core.trainer.report import RunReport, closing_table

    console = Console()
    console.print(_steps_table(folder.path.name, experiment, metrics))
    console.print(terminal_curve(metrics), highlight=False, markup=False)
    if folder.report_file.exists():
        import msgspec

        console.print(closing_table(msgspec.json.decode(folder.report_file.read_bytes(), type=RunReport)))
    else:
        console.print(f"not finished; go on with: leyden train --resume {folder.path.name}", highlight=False)


def _steps_table(name: str, experiment: str | None, metrics: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    among = "" if experiment is None else f" of experiment {experiment}"
    table = Table(title=f"Run {name}{among}: {len(metrics)} steps", title_justify="left")
    for column in ("step", "reward", "rollouts", "calls", "tok/s", "s", "ratio-1", "served gap"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in metrics:
        table.add_row(
            str(line["step"]),
            f"{line['reward']:.3f}",
            str(line["rollouts"]),
            str(line["transitions"]),
            f"{line['tokens_per_second']:,.0f}",
            f"{line['seconds']:.1f}",
            f"{_largest(line, 'importance_ratio_deviation'):.0e}",
            f"{_largest(line, 'served_trained_gap'):.0e}",
        )
    return table


def _largest(line: dict[str, Any], key: str) -> float:
    """The number under `key`; of several policies, each of which has its name before it, the largest."""
    found = [value for name, value in line.items() if name.rpartition("/")[2] == key]
    return max(found, default=float("nan"))


async def _show_rollout(folder: Any, wanted: str, *, json: bool) -> None:
    from leyden.core.store.open import open_store
    from leyden.core.trainer.recorded import read_rollout

    if not folder.store_file.exists():
        raise RunError(f"run {folder.path.name!r} has no store yet")
    # Time stands still: to look at a run must not end what is under way in it.
    store = await open_store(folder.store_uri, clock=lambda: 0.0)
    try:
        found = await _find(store, folder.path.name, wanted)
        recorded = await read_rollout(store, found)
    finally:
        await store.close()
    if json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(recorded).decode() + "\n")
        return
    from rich.console import Console

    from leyden.core.trainer.tree import rollout_tree

    Console().print(rollout_tree(recorded), highlight=False)


async def _find(store: Any, run: str, wanted: str) -> str:
    if await store.get_rollout_by_id(wanted) is not None:
        return wanted
    page = await store.query_rollouts(rollout_id_contains=wanted, limit=SHOWN)
    names = [rollout.rollout_id for rollout in page]
    if len(names) == 1:
        return names[0]
    if not names:
        some = await store.query_rollouts(limit=3)
        example = ", ".join(r.rollout_id for r in some) or "none"
        raise RunError(f"run {run!r} has no rollout {wanted!r}; its {some.total} rollouts are called like {example}")
    more = f" and {page.total - SHOWN} more" if page.total > SHOWN else ""
    raise RunError(f"{wanted!r} could be {', '.join(names)}{more}")
