"""`leyden tune`: searches for settings of a run that end higher on held-out tasks than the run's own."""

import fcntl
import shlex
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.core.cli.options import RUNS, TASK_SOURCES, JsonOption, QuietOption, RunsOption
from leyden.core.data.encoding.json_line import json_line
from leyden.core.errors import UsageError

if TYPE_CHECKING:
    from leyden.core.cli.progress import Progress
    from leyden.core.cli.study import Study
    from leyden.core.tuning.results import Confirmation, StudyResult
    from leyden.core.tuning.storage import StudyStorage

LOCK_TRIES, LOCK_PAUSE = 10, 0.05
"""A reader that looks whether the study is running holds the lock for a moment."""


def tune(
    *,
    config: Annotated[Path, typer.Option(help="Run file, whose settings are the default that trials should beat.")],
    search: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=DOMAIN",
            help="Setting to search: KEY=LOW..HIGH, with :log or :int behind it, or KEY=A,B,C; may be repeated.",
        ),
    ],
    trials: Annotated[int, typer.Option(help="Trials of the study, the default configuration included.")] = 12,
    parallel: Annotated[int, typer.Option(help="Trials at once.")] = 1,
    seeds: Annotated[str, typer.Option(help="Seeds of each trial, as 0,1; its score is their mean.")] = "0",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the study. [default: the run file's, with -tune]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Weight updates of each trial. [default: the run file's]")] = None,
    val: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help=f"Held-out tasks in place of the run file's: {TASK_SOURCES}."),
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="Held-out set by which trials are compared. [default: the first]")
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(help="Steps between a trial's evaluations. [default: the run file's, else a fifth of the run]"),
    ] = None,
    prune: Annotated[bool, typer.Option(help="Stop trials whose evaluations are below the median.")] = True,
    past: Annotated[bool, typer.Option(help="Begin with what finished runs in the folder have shown.")] = True,
    sampler_seed: Annotated[int, typer.Option(help="Seed of what is tried.")] = 0,
    confirm: Annotated[
        str | None,
        typer.Option(metavar="SET", help="Train the best and the default anew, and compare them on this held-out set."),
    ] = None,
    confirm_seeds: Annotated[
        str | None,
        typer.Option(help="Seeds of that, as 7,8,9. [default: three that the study has not used]"),
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Only validate the search and its settings; start nothing.")
    ] = False,
    only_report: Annotated[bool, typer.Option("--only-report", help="Run nothing; show what there is.")] = False,
    runs: RunsOption = RUNS,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Search for settings that end higher on held-out tasks: each trial is a run. The same command goes on."""
    from leyden.core.cli.progress import progress
    from leyden.core.cli.study import StudyOptions, read_study
    from leyden.core.tuning.plan import STUDY_FILE
    from leyden.core.tuning.storage import StudyStorage

    study = read_study(
        StudyOptions(
            config=config,
            search=search,
            name=name,
            seeds=seeds,
            steps=steps,
            val=val or [],
            measure=measure,
            eval_every=eval_every,
            prune=prune,
            sampler_seed=sampler_seed,
            confirm=confirm,
            confirm_seeds=confirm_seeds,
            runs=runs,
        )
    )
    plan = study.plan
    if validate:
        if (plan.folder / STUDY_FILE).exists():
            plan.check_unchanged()
        if not quiet:
            sys.stdout.write(f"study {plan.name} can begin: its search and its settings are valid\n")
        return
    if only_report and not plan.folder.exists():
        raise UsageError(f"there is no study {plan.name} in {runs} yet; run the same command without --only-report")
    plan.check_unchanged()
    with _locked(plan.folder), progress("runs", quiet=True) as count:
        storage = StudyStorage(plan.folder, plan.name, plan.space, sampler_seed=plan.sampler_seed)
        try:
            command = _Command(study, storage, runs, count, quiet=quiet)
            if not only_report:
                command.search(trials, parallel, uses_past=past)
            command.report(command.confirmation(parallel, runs_it=not only_report), json=json)
        finally:
            storage.close()


class _Command:
    """One command of a study that was read and locked."""

    def __init__(self, study: "Study", storage: "StudyStorage", runs: Path, count: "Progress", *, quiet: bool) -> None:
        from leyden.core.experiments.record import Records

        self._study, self._plan, self._storage, self._runs, self._quiet = study, study.plan, storage, runs, quiet
        self._records, self._count = Records(study.plan.folder), count

    def search(self, trials: int, parallel: int, *, uses_past: bool) -> None:
        """Take in past runs, and run the trials that are missing."""
        from leyden.core.experiments.progress import make_progress
        from leyden.core.tuning.execution import Tuning

        self._seed(uses_past=uses_past)
        known = self._storage.trials()
        ended = sum(trial.state in ("finished", "pruned") and not trial.is_past for trial in known)
        progress = make_progress(max(0, trials - ended) * len(self._plan.seeds), quiet=self._quiet, count=self._count)
        tuning = Tuning(self._plan, self._storage, self._records, progress, trials=trials, at_once=parallel)
        progress.start()
        try:
            tuning.run()
            if tuning.is_exhausted:
                progress.show("every setting of the search has been tried")
        except KeyboardInterrupt:
            progress.show("stopped; the same command continues")
            raise
        finally:
            progress.stop()

    def _seed(self, *, uses_past: bool) -> None:
        """Begin a new study: the default configuration is trial 0, then come past runs."""
        from leyden.core.tuning.past import PastRuns, find_past
        from leyden.core.tuning.settings import values_of

        if self._storage.is_seeded:
            return
        own = values_of(self._plan.base, self._plan.space)
        is_whole = own.keys() == self._plan.space.keys()
        found = PastRuns()
        if uses_past:
            found = find_past(self._runs, self._plan, self._study.tasks, self._study.held_out)
            if not self._quiet:
                sys.stderr.write("".join(f"{line}\n" for line in found.lines()))
        ordered = sorted(found.trials, key=lambda one: not (is_whole and one.values == own))
        if not self._storage.trials() and not (ordered and is_whole and ordered[0].values == own):
            self._storage.begin_default(own)
        for one in ordered:
            self._storage.add_past(
                one.values,
                one.score,
                one.reported,
                [str(path) for path in one.runs],
                is_default=is_whole and one.values == own,
            )
        self._storage.note_seeded()

    def confirmation(self, parallel: int, *, runs_it: bool) -> "Confirmation | None":
        """Measure the best trial and the default anew; None if there is nothing to measure, or it was not asked for."""
        from leyden.core.experiments.execution import Execution, check_unchanged
        from leyden.core.experiments.progress import make_progress
        from leyden.core.tuning.results import confirmation_jobs, read_confirmation, read_result

        result, held_out = read_result(self._plan, self._storage), self._study.confirm
        if held_out is None or not result.is_better or result.best is None or result.default is None:
            return None
        jobs = confirmation_jobs(self._plan, result.best, result.default, held_out, self._study.confirm_seeds)
        both = [job for pair in zip(*jobs, strict=True) for job in pair]
        if runs_it:
            check_unchanged(self._records, both)
            progress = make_progress(len(both), quiet=self._quiet, count=self._count)
            progress.start()
            try:
                Execution(self._records, both, progress, at_once=parallel).run()
            except KeyboardInterrupt:
                progress.show("stopped; the same command continues")
                raise
            finally:
                progress.stop()
        return read_confirmation(self._plan, self._records, jobs, held_out)

    def report(self, confirmation: "Confirmation | None", *, json: bool) -> None:
        """Write the settings of the best trial and the plots, and print the report."""
        from leyden.core.tuning.report import (
            conclusion,
            heading,
            importance_lines,
            json_events,
            train_command,
            trial_table,
        )
        from leyden.core.tuning.results import read_result

        result = read_result(self._plan, self._storage)
        best, image = self._write_best(result), self._draw(result)
        if json:
            files = {"settings": best, "slices": image}
            sys.stdout.write("".join(map(json_line, json_events(self._plan, result, confirmation, files))))
            return
        if self._quiet:
            return
        from rich.console import Console

        from leyden.core.trainer.monitoring.as_it_is import as_it_is

        console = Console()
        console.print(as_it_is(heading(self._plan)), soft_wrap=True)
        console.print(trial_table(self._plan, result), highlight=False)
        lines = conclusion(self._plan, result, confirmation) + importance_lines(result)
        if best is not None:
            runs = [] if self._runs == RUNS else ["--runs", str(self._runs)]
            lines.append(f"train with the best settings: {shlex.join(train_command(best, self._plan, runs))}")
        if image is not None:
            lines.append(f"slice plots: {image}")
        for line in lines:
            console.print(as_it_is(line), soft_wrap=True)

    def _write_best(self, result: "StudyResult") -> Path | None:
        """Write a run file with the settings of the best trial, and return its path; None without one."""
        import msgspec
        import yaml

        from leyden.core.tuning.settings import with_settings
        from leyden.core.tuning.stored_study import BEST_FILE

        if result.best is None:
            return None
        plan = self._plan
        own = plan.base if result.best.is_default else with_settings(plan.base, plan.space, result.best.values)
        path = plan.folder / BEST_FILE
        path.write_text(yaml.safe_dump(msgspec.to_builtins(own), sort_keys=False, allow_unicode=True))
        return path

    def _draw(self, result: "StudyResult") -> Path | None:
        from leyden.core.tuning.slices import SLICES_FILE, save_slices

        path = self._plan.folder / SLICES_FILE
        try:
            return path if save_slices(self._plan, result, path) else None
        except ImportError:
            sys.stderr.write("leyden: no slice plots without matplotlib: pip install 'leyden-core[train]'\n")
            return None


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Context manager: locks a study for this process. Raises UsageError when another process runs it."""
    from leyden.core.tuning.stored_study import LOCK_FILE

    with (folder / LOCK_FILE).open("w") as handle:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(LOCK_PAUSE)
        else:
            raise UsageError(f"another process runs the study in {folder}")
        yield
