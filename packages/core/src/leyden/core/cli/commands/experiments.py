"""`leyden experiments`: runs arms × seeds of an experiment, and writes the report that compares them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.command import Command
from leyden.core.cli.options import RUNS, JsonOption, QuietOption, RunsOption
from leyden.core.data.encoding.json_line import json_line
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.experiments.plan import Job
    from leyden.core.experiments.results import ArmResult

app = typer.Typer(
    help="Compare ways to learn: arms × seeds of an experiment file. Commands: run, report, list.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
DOCS, RESULTS = Path("docs/experiments"), Path("experiments/results")
EXPECTED = "expected.txt"
"""File beside the runs with the expectation at the time of the first run."""

NamesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Experiment: a path, or NAME for experiments/NAME.yaml.")
]
SeedsOption = Annotated[str | None, typer.Option(help="Seeds, as 0,1,2. [default: those of the file]")]
ArmsOption = Annotated[str | None, typer.Option(help="Arms, as NAME,NAME. [default: all]")]
StepsOption = Annotated[int | None, typer.Option(help="Weight updates of each run. [default: the file's]")]
OutOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the reports. [default: docs/experiments if it exists, else experiments/results]"),
]


@app.command("run", cls=Command)
def run(
    names: NamesArgument,
    *,
    seeds: SeedsOption = None,
    arms: ArmsOption = None,
    steps: StepsOption = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 1,
    only_report: Annotated[bool, typer.Option("--only-report", help="Run nothing; write the report anew.")] = False,
    out: OutOption = None,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
) -> None:
    """Run what is missing of each experiment, continue what was interrupted, and write the report.

    Exit code 1 if a run failed; the others are run nevertheless.
    """
    chosen = [_Chosen(name, seeds, arms, steps, runs) for name in names]
    _check_distinct(chosen)
    command = ["leyden", "experiments", "run", *names]
    for option, value in (("--seeds", seeds), ("--arms", arms), ("--steps", steps)):
        command += [] if value is None else [option, str(value)]
    command += [] if jobs == 1 else ["--jobs", str(jobs)]
    command += [] if runs == RUNS else ["--runs", str(runs)]
    command += [] if out is None else ["--out", str(out)]
    failed = 0
    for one in chosen:
        if not only_report:
            one.check_unchanged()
    for one in chosen:
        try:
            if not only_report:
                one.execute(jobs, quiet=quiet)
        finally:
            failed += one.report(out, command, quiet=quiet)
    if failed and not only_report:
        raise typer.Exit(1)


@app.command("report", cls=Command)
def report(
    names: NamesArgument,
    *,
    seeds: SeedsOption = None,
    arms: ArmsOption = None,
    steps: StepsOption = None,
    out: OutOption = None,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
) -> None:
    """Write the report of what has been run so far, like `run --only-report`."""
    run(names, seeds=seeds, arms=arms, steps=steps, only_report=True, out=out, runs=runs, quiet=quiet)


@app.command("list", cls=Command)
def list_experiments(*, runs: RunsOption = RUNS, json: JsonOption = False) -> None:
    """List the experiments in the folder experiments/, and how many of their runs have ended."""
    from leyden.core.cli.experiment_file import FOLDER
    from leyden.core.experiments.record import ENDED

    files = sorted(FOLDER.glob("*.yaml"))
    if not files and not json:
        sys.stderr.write(f"no experiment file is in {FOLDER}/; docs/experiments.md describes how to write one\n")
    for file in files:
        one = _Chosen(str(file), None, None, None, runs)
        states = [one.records.state(job) for job in one.jobs]
        ended, arms = sum(state in ENDED for state in states), list(one.read.experiment.arms)
        if json:
            line = {"name": one.read.name, "title": one.read.experiment.title, "arms": arms}
            sys.stdout.write(json_line({**line, "runs": len(states), "ended": ended}))
        else:
            sys.stdout.write(
                f"{one.read.name}  {one.read.experiment.title}\n  {len(arms)} arms: {', '.join(arms)}; "
                f"{ended} of {len(states)} runs have ended\n"
            )


def _check_distinct(chosen: Sequence["_Chosen"]) -> None:
    """Raise UsageError for two files of one name, whose runs and reports would lie in the same place."""
    files: dict[str, Path] = {}
    for one in chosen:
        name, file = one.read.name, one.read.path.resolve()
        if files.setdefault(name, file) != file:
            raise UsageError(f"two experiments are called {name}: {files[name]} and {file}; rename one of the files")


class _Chosen:
    """One experiment, with the arms and seeds that the command line chooses."""

    def __init__(self, name: str, seeds: str | None, arms: str | None, steps: int | None, runs: Path) -> None:
        import msgspec

        from leyden.core.cli.experiment_file import chosen, find_experiment, read_experiment, read_seeds
        from leyden.core.experiments.plan import Plan
        from leyden.core.experiments.record import Records

        read = read_experiment(find_experiment(name))
        if seeds is not None:
            experiment = msgspec.structs.replace(read.experiment, seeds=read_seeds(seeds, "--seeds"))
            read = msgspec.structs.replace(read, experiment=experiment)
        self.read = read
        known = list(read.experiment.arms)
        self.folder = runs / read.name
        self.plan = Plan(read.name, read.experiment, read.base, self.folder, steps=steps)
        self.records = Records(self.folder)
        names = known if arms is None else chosen(known, _words(arms), "--arms", read.path)
        self.jobs: list[Job] = self.plan.runs([arm for arm in known if arm in names], read.experiment.seeds)

    @property
    def _with_preparations(self) -> "list[Job]":
        return self.plan.with_preparations(self.jobs)

    def check_unchanged(self) -> None:
        """Raise UsageError if a job was run with other settings."""
        from leyden.core.experiments.execution import check_unchanged

        check_unchanged(self.records, self._with_preparations)

    def execute(self, at_once: int, *, quiet: bool) -> None:
        """Run what is missing."""
        from leyden.core.experiments.execution import Execution
        from leyden.core.experiments.progress import make_progress
        from leyden.core.experiments.report import expectation_text

        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / EXPECTED).exists():
            (self.folder / EXPECTED).write_text(expectation_text(self.read.experiment) + "\n")
        jobs = self._with_preparations
        progress = make_progress(len(jobs), quiet=quiet)
        progress.start()
        try:
            Execution(self.records, jobs, progress, at_once=at_once).run()
        except KeyboardInterrupt:
            progress.show("stopped; the same command continues")
            raise
        finally:
            progress.stop()

    def report(self, out: Path | None, command: Sequence[str], *, quiet: bool) -> int:
        """Write the report of all arms; return the number of the chosen runs that failed."""
        from leyden.core.experiments.curves import save_curves
        from leyden.core.experiments.report import expectation_text, failed_runs, report_text
        from leyden.core.experiments.results import read_results

        experiment = self.read.experiment
        arms = read_results(self.records, self.plan.runs(list(experiment.arms), experiment.seeds), experiment.measure)
        folder = out or (DOCS if DOCS.is_dir() else RESULTS)
        folder.mkdir(parents=True, exist_ok=True)
        image = folder / f"{self.read.name}.png"
        is_drawn = False
        try:
            is_drawn = save_curves(arms, image, "held-out score")
        except ImportError:
            sys.stderr.write("leyden: no curves without matplotlib: pip install 'leyden-core[train]'\n")
        now, first = expectation_text(experiment), self.folder / EXPECTED
        before = first.read_text().strip() if first.exists() else now
        text = report_text(
            self.read.name,
            experiment,
            arms,
            file=str(self.read.path),
            command=command,
            expected_before=None if before == now else before,
            image=image if is_drawn else None,
        )
        path = folder / f"{self.read.name}.md"
        path.write_text(text)
        if not quiet:
            _show(arms, experiment.title)
            sys.stdout.write(f"report: {path}\n")
        names = {job.name for job in self.jobs}
        return sum(run.job.name in names for run in failed_runs(arms))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _show(arms: "Sequence[ArmResult]", title: str) -> None:
    """Print one line for each arm: means before and after, and why runs have no result."""
    from statistics import fmean

    from rich.console import Console
    from rich.table import Table

    from leyden.core.trainer.monitoring.as_it_is import TITLE, as_it_is

    table = Table(title=as_it_is(title, TITLE), title_justify="left")
    for number, column in enumerate(("arm", "seeds", "before", "after", "")):
        table.add_column(column, justify="left" if number in (0, 4) else "right")
    for arm in arms:
        cells = [f"{fmean(means):.3f}" if (means := arm.means(which)) else "–" for which in ("before", "after")]
        notes = "; ".join(f"seed {run.job.seed}: {run.note}" for run in arm.runs if run.note is not None)
        table.add_row(*map(as_it_is, (arm.name, str(len(arm.means("after"))), *cells, notes)))
    Console().print(table, highlight=False)
