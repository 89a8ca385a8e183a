"""`leyden models`: the versions of runs, listed, shown, compared, rolled back to, promoted, exported and served."""

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.core.cli.command import Command
from leyden.core.cli.commands.models.serve import serve
from leyden.core.cli.options import RUNS, JsonOption, RunsOption
from leyden.core.data.encoding.json_line import json_line
from leyden.core.errors import UsageError
from leyden.core.masking import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leyden.core.trainer.run_folder.comparison import PairedComparison
    from leyden.core.trainer.run_folder.models import Comparison, Models
    from leyden.core.trainer.run_folder.versions import Evaluation

app = typer.Typer(
    help="The versions of runs: list, show, compare, roll back, promote, export, serve.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve", cls=Command)(serve)
RunArgument = Annotated[str, typer.Argument(help="Name or folder of a run.")]
NamedVersion = Annotated[
    str, typer.Argument(help="RUN (its kept version), RUN:VERSION or RUN:last; with :SIDE added, one of its sides.")
]
VERSION = "A number, kept or last."
SHOWN = ("reward", "entropy", "response_tokens_mean", "grad_norm", "approx_kl", "loss")
"""Metrics in the table of a comparison; --json has all."""


@app.command("list", cls=Command)
def list_versions(
    run: Annotated[str | None, typer.Argument(help="Name or folder of a run; all runs if not given.")] = None,
    *,
    experiment: Annotated[str | None, typer.Option(help="Only the runs of this experiment.")] = None,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """List the versions of RUN, or what every run has kept."""
    from leyden.core.trainer.run_folder.models import Models, open_all

    if run is not None:
        if experiment is not None:
            raise UsageError(f"give a run or an experiment, not both: {run}, {experiment}")
        _show_versions(Models.open(runs, run), json=json)
        return
    opened = open_all(runs, experiment)
    rows: list[dict[str, Any]] = []
    means: list[str] = []
    for models in opened:
        kept = models.versions.get(models.kept)
        held_out = {} if kept is None else kept.held_out
        sides = {} if kept is None else {side: own.held_out for side, own in kept.sides.items()}
        row = {"run": models.folder.path.name, "experiment": models.config.experiment, "last": models.last}
        row |= {"kept": models.kept, "success": _successes(held_out)}
        rows.append({**row, "sides": {side: _successes(own) for side, own in sides.items()}} if sides else row)
        means.append(_means(held_out, sides))
    if json:
        _print_lines(rows)
        return
    has_experiments = any(row["experiment"] for row in rows)
    columns = ("run", *(["experiment"] if has_experiments else []), "last", "kept", "kept's held-out reward")
    shown = [
        (
            row["run"],
            *([row["experiment"] or "–"] if has_experiments else []),
            str(row["last"]),
            str(row["kept"]),
            mean,
        )
        for row, mean in zip(rows, means, strict=True)
    ]
    _print_table(f"Runs in {runs}", columns, shown)


@app.command("show", cls=Command)
def show(version: NamedVersion, *, runs: RunsOption = RUNS, json: JsonOption = False) -> None:
    """Show a version: where it came from, what it earned, and its prompts in full."""
    from msgspec import to_builtins

    from leyden.core.trainer.run_folder.models import find_version

    models, found = find_version(runs, version)
    if json:
        _print_lines([{**to_builtins(found), "kept": found.version == models.kept}])
        return
    is_first = found.version == 0
    facts = {
        "made": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.created)),
        "parent": None if found.parent is None else str(found.parent),
        "algorithm": found.algorithm,
        "endpoint": found.endpoint,
        "policy": None if found.policy is None else str(found.policy),
        "weights" if found.policy else "checkpoint": "as given" if is_first else found.weights or "not kept",
        "resources": found.resources_id,
        "reward of the step": None if "reward" not in found.metrics else _number(found.metrics["reward"]),
        "held-out reward": _means(found.held_out, {side: own.held_out for side, own in found.sides.items()}),
    }
    rows = [(name, value) for name, value in facts.items() if value is not None]
    _print_table("", (f"version {found.label}{' (kept)' if found.version == models.kept else ''}", ""), rows)
    for name, prompt in found.prompts.items():
        _print(f"\nprompt {name} ({prompt.engine}):\n{_visible(prompt.template)}")
    for edits in found.edits.values():
        for component in edits.components:
            changed = "" if component.is_changed else ", the agent's own text"
            _print(_visible(f"\nprompt component {component.name} ({component.place}{changed}):\n{component.current}"))


@app.command("compare", cls=Command)
def compare(a: NamedVersion, b: NamedVersion, *, runs: RunsOption = RUNS, json: JsonOption = False) -> None:
    """Compare two versions: their steps' numbers, and the held-out tasks that both were asked, one by one."""
    from leyden.core.trainer.run_folder.models import compare_versions, find_version

    comparison = compare_versions(find_version(runs, a), find_version(runs, b))
    if json:
        _print_lines([comparison])
        return
    rows = [(name, _number(x), _number(y)) for name, (x, y) in comparison.metrics.items() if name in SHOWN]
    if rows:
        _print_table("", ("of the step", comparison.a, comparison.b), rows)
    for change in comparison.prompts.values():
        _print(_visible(change))
    compared = {**comparison.held_out, **{f"{name}, sampled": paired for name, paired in comparison.sampled.items()}}
    if not compared:
        _print("no held-out task was run with both versions, so they cannot be compared")
        return
    columns = ("held out", "tasks", "A", "B", "wins", "losses", "ties", "p", "B - A, 95 %")
    _print_table(
        f"A {comparison.a}, B {comparison.b}", columns, [_compared(name, paired) for name, paired in compared.items()]
    )
    _print(_verdict(comparison))


@app.command("rollback", cls=Command)
def rollback(
    run: RunArgument,
    version: Annotated[str, typer.Argument(help=VERSION)],
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Take RUN back to VERSION; what came after is set aside, and `leyden train --resume` goes on from there."""
    from leyden.core.trainer.run_folder.models import Models
    from leyden.core.trainer.run_folder.rollback import roll_back

    models = Models.open(runs, run)
    result = roll_back(models, models.find(version))
    if json:
        _print_lines([result])
        return
    aside = _count(len(result.versions), "later version")
    _print(
        f"run {result.run} is at version {result.version} again; {aside}, with metrics and result, moved to "
        f"{result.set_aside}"
    )
    if result.untold is not None:
        _print(f"the run's store could not be updated ({result.untold}); it is updated when the run continues")
    _print(f"continue with: {models.folder.command('train --resume')}")


@app.command("promote", cls=Command)
def promote(
    run: RunArgument,
    version: Annotated[str, typer.Argument(help=VERSION)],
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Make VERSION the one that RUN keeps: its `policy/` and `prompts/` hold it, and RUN without a number means it."""
    from leyden.core.trainer.run_folder.models import Models
    from leyden.core.trainer.run_folder.promote import promote as keep

    models = Models.open(runs, run)
    result = keep(models, models.find(version))
    if json:
        _print_lines([result])
        return
    where = models.folder.path
    _print(f"run {result.run} now keeps version {result.version} in {where}; it kept {result.before} before")


@app.command("export", cls=Command)
def export(
    run: RunArgument,
    to: Annotated[list[str], typer.Argument(metavar="[VERSION] FOLDER", help=f"{VERSION} [default: kept]")],
    *,
    runs: RunsOption = RUNS,
    json: JsonOption = False,
) -> None:
    """Write a version of RUN as a plain Hugging Face folder, which must not be there yet, or be empty.

    Its prompts become files: a text file for each prompt template, and `prompts.yaml` for prompt edits. Of a run
    without a policy, they are all that is written.
    """
    from leyden.core.trainer.run_folder.models import KEPT, Models, export_version

    if len(to) > 2:
        raise UsageError(f"export takes RUN [VERSION] FOLDER; remove {' '.join(to[2:])!r}")
    models = Models.open(runs, run)
    version = models.find(to[0] if len(to) == 2 else KEPT)
    folder = asyncio.run(export_version(models, version, Path(to[-1])))
    if json:
        _print_lines([{"run": version.run, "version": version.version, "folder": str(folder)}])
    else:
        _print(f"version {version.version} of run {version.run} is in {folder}")


def _show_versions(models: "Models", *, json: bool) -> None:
    from msgspec import to_builtins

    if json:
        _print_lines([{**to_builtins(v), "kept": v.version == models.kept} for v in models.versions.values()])
        return
    rows: list[tuple[str, ...]] = []
    has_prompts = any(version.resources for version in models.versions.values())
    for version in models.versions.values():
        resources = [version.resources_id or "–"] if has_prompts else []
        rows.append(
            (
                f"{version.version}{' (kept)' if version.version == models.kept else ''}",
                "–" if version.parent is None else str(version.parent),
                time.strftime("%m-%d %H:%M", time.localtime(version.created)),
                _number(version.metrics.get("reward")),
                _means(version.held_out, {side: own.held_out for side, own in version.sides.items()}),
                *resources,
                "as given" if version.version == 0 else Path(version.weights or "–").name,
            )
        )
    what = "weights" if models.config.policies else "checkpoint"
    columns = ("version", "parent", "made", "reward", "held-out reward", *(["resources"] if has_prompts else []), what)
    _print_table(f"Run {models.folder.path.name}", columns, rows)
    if lost := [version.version for version in models.versions.values() if version.version and version.weights is None]:
        whose = "the weights of " if models.config.policies else "checkpoints of "
        _print(
            f"{whose}{_count(len(lost), 'version')} are not kept, and the run cannot be rolled back to them: "
            f"--keep-checkpoints ({models.config.keep_checkpoints} in this run) sets how many are kept"
        )
    for aside in sorted(models.folder.path.glob("set_aside/*")):
        _print(f"set aside by a rollback: {aside}")


def _compared(name: str, paired: "PairedComparison") -> tuple[str, ...]:
    from leyden.core.trainer.run_folder.versions import reward_text

    low, high = paired.difference
    counts = (str(paired.wins), str(paired.losses), str(paired.ties))
    means = (reward_text(paired.a, is_share=paired.is_share), reward_text(paired.b, is_share=paired.is_share))
    return (name, str(paired.tasks), *means, *counts, f"{paired.p_value:.3f}", f"{low:+.2f}…{high:+.2f}")


def _verdict(comparison: "Comparison") -> str:
    compared = comparison.held_out or comparison.sampled
    name, paired = next(iter(compared.items()))
    if paired.p_value > 0.05:
        return f"on {name}, the difference may be chance: {paired.wins} wins, {paired.losses} losses of {comparison.b}"
    better, worse = (comparison.b, comparison.a) if paired.wins > paired.losses else (comparison.a, comparison.b)
    return f"on {name}, {better} is better than {worse}, beyond chance (sign test, 5 %)"


def _successes(scores: "Mapping[str, Evaluation]") -> dict[str, float | None]:
    return {name: score.success for name, score in scores.items()}


def _means(held_out: "Mapping[str, Evaluation]", sides: "Mapping[str, Mapping[str, Evaluation]]") -> str:
    """Mean reward by held-out set; of a run with sides, of each of them."""
    from leyden.core.trainer.run_folder.versions import reward_text

    if sides:
        held_out = {f"{name} of {side}": own[name] for name in held_out for side, own in sides.items() if name in own}
    found = [f"{name} {reward_text(score.success, is_share=score.is_share)}" for name, score in held_out.items()]
    return ", ".join(found) or "–"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _print_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from leyden.core.trainer.monitoring.as_it_is import TITLE, as_it_is

    table = Table(title=as_it_is(title, TITLE) if title else None, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(as_it_is(column), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(as_it_is, row))
    Console().print(table, highlight=False)


def _print_lines(rows: list[Any]) -> None:

    for row in rows:
        sys.stdout.write(json_line(row))


def _visible(text: str) -> str:
    """Escape control characters, since a language model may have written the text; line ends stay."""
    return "\n".join(printable(line) for line in text.split("\n"))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
