"""Report of an experiment as Markdown: what was expected, what came out, what it cost, and how to repeat it."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import yaml

from leyden.core.experiments.definition import Experiment, Measure
from leyden.core.experiments.paired_bootstrap import PairedDifference, paired_difference
from leyden.core.experiments.provenance import leyden_version
from leyden.core.experiments.record import ENDED
from leyden.core.experiments.results import ArmResult, RunResult
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.versions import is_share

NONE = "–"


def report_text(
    name: str,
    experiment: Experiment,
    arms: Sequence[ArmResult],
    *,
    file: str,
    command: Sequence[str],
    expected_before: str | None = None,
    image: Path | None = None,
) -> str:
    """Return the report of the experiment in `file`, which `command` made.

    `expected_before` is the expectation when the first run started, if it is another one now.
    """
    numbers = _Numbers(experiment.measure, arms)
    parts = [
        f"# {experiment.title}",
        experiment.question,
        _expectation(experiment, arms, numbers, expected_before),
        f"## Result\n\n{_measured(experiment, arms)}",
        _results_table(experiment, arms, numbers),
        _interval_words(experiment),
        "" if image is None else f"![Curves of the arms: mean over seeds, and the range of the seeds]({image.name})",
        _metrics_table(experiment, arms),
        f"## Cost\n\n{_cost_table(arms)}",
        f"## What did not finish as planned\n\n{_unfinished(arms)}",
        f"## The machine\n\n{_machine(arms)}",
        _repetition(name, experiment, file, command),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


class _Numbers:
    """Texts of scores: in percent if every score of the experiment is 0 or 1, else with three digits."""

    def __init__(self, measure: Measure, arms: Sequence[ArmResult]) -> None:
        runs = [run for arm in arms for run in arm.runs]
        scores = [score for run in runs for found in (run.before, run.after) if found for score in found.values()]
        self.is_share = measure.score == "success" or (bool(scores) and is_share(scores))
        self.unit = " (%)" if self.is_share else ""

    def one(self, value: float, sign: str = "") -> str:
        """Return one score, or a difference with its sign."""
        return f"{100 * value:{sign}.1f}" if self.is_share else f"{value:{sign}.3f}"

    def spread(self, values: Sequence[float]) -> str:
        """Return the mean, and the least and greatest of several."""
        if not values:
            return NONE
        if min(values) == max(values):
            return self.one(fmean(values))
        return f"{self.one(fmean(values))} ({self.one(min(values))}–{self.one(max(values))})"

    def interval(self, found: PairedDifference) -> str:
        """Return a difference and its interval."""
        return f"{self.one(found.mean, '+')} [{self.one(found.low, '+')}, {self.one(found.high, '+')}]"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _expectation(
    experiment: Experiment, arms: Sequence[ArmResult], numbers: _Numbers, expected_before: str | None
) -> str:
    lines = [f"**Expected before the runs:** {expectation_text(experiment)}"]
    if expected_before is not None:
        lines.append(f"The file was changed after the first run. Expected then: {expected_before}")
    lines.append(f"**Outcome:** {_outcome(experiment, arms, numbers)}")
    return "\n\n".join(lines)


def expectation_text(experiment: Experiment) -> str:
    """Return the expectation as one line."""
    expected = experiment.expected
    return (
        f"{'no arm' if expected.arm is None else expected.arm} should end highest. {' '.join(expected.because.split())}"
    )


def _outcome(experiment: Experiment, arms: Sequence[ArmResult], numbers: _Numbers) -> str:
    """Return whether the expectation came true, by the interval of the difference to the best other arm."""
    means = {arm.name: fmean(found) for arm in arms if (found := arm.means("after"))}
    if not means:
        return "no arm has been evaluated after its last step."
    best = max(means, key=lambda name: means[name])
    first = [name for name, mean in means.items() if mean == means[best]]
    highest = f"{' and '.join(first)} ended highest, with {numbers.one(means[best])}{' %' if numbers.is_share else ''}."
    expected = experiment.expected.arm
    rivals = [name for name in means if name != (expected or best)]
    if not rivals or (expected is not None and expected not in means):
        return highest
    chosen = expected or best
    rival = max(rivals, key=lambda name: means[name])
    by_name = {arm.name: arm.after_by_seed() for arm in arms}
    found = paired_difference(by_name[chosen], by_name[rival])
    if found is None:
        return highest
    verdict = "the interval excludes 0" if found.low > 0 or found.high < 0 else "the interval includes 0: undecided"
    return f"{highest} {chosen} − {rival}: {numbers.interval(found)}; {verdict}."


def _measured(experiment: Experiment, arms: Sequence[ArmResult]) -> str:
    measure = experiment.measure
    what = (
        "mean reward"
        if measure.score == "mean_reward"
        else f"share of tasks with a reward of at least {measure.success_at:g}"
    )
    sampling = "the agent's own sampling" if measure.sampling == "greedy" else "the training sampling (temperature)"
    where = f"the held-out set {measure.held_out}" if measure.held_out else "the first held-out set"
    tasks = max(
        (len(found) for arm in arms for run in arm.runs for found in (run.before, run.after) if found), default=0
    )
    seeds = sorted({run.job.seed for arm in arms for run in arm.runs})
    return (
        f"Measure: {what} on {where} ({tasks} tasks), with {sampling}. Seeds: {', '.join(map(str, seeds))}. Each cell "
        "has the mean over seeds and, in brackets, the lowest and the highest seed."
    )


def _results_table(experiment: Experiment, arms: Sequence[ArmResult], numbers: _Numbers) -> str:
    baseline = next((arm for arm in arms if arm.name == experiment.compared_to), None)
    columns = [
        "arm",
        "seeds",
        f"before{numbers.unit}",
        f"after{numbers.unit}",
        f"difference to {experiment.compared_to}",
    ]
    rows: list[list[str]] = []
    for arm in arms:
        ended, planned = sum(run.state in ENDED for run in arm.runs), len(arm.runs)
        compared = NONE
        if baseline is not None and arm is not baseline:
            found = paired_difference(arm.after_by_seed(), baseline.after_by_seed())
            compared = NONE if found is None else numbers.interval(found)
        seeds = str(ended) if ended == planned else f"{ended} of {planned}"
        marks = sorted({run.state for run in arm.runs if run.state != "finished"})
        after = numbers.spread(arm.means("after"))
        if marks:
            after += f" — {', '.join(marks)}"
        rows.append([arm.name, seeds, numbers.spread(arm.means("before")), after, compared])
    return table(columns, rows)


def _interval_words(experiment: Experiment) -> str:
    return (
        f"The last column is the mean of the differences to {experiment.compared_to} on the same tasks with the same "
        "seeds, and its 95 % interval from a paired bootstrap that draws seeds and tasks."
    )


def _metrics_table(experiment: Experiment, arms: Sequence[ArmResult]) -> str:
    """Return the table of the metrics that the experiment names; empty if it names none."""
    if not experiment.metrics:
        return ""
    rows: list[list[str]] = []
    for arm in arms:
        cells = [arm.name]
        for name in experiment.metrics:
            values = [float(line[name]) for run in arm.runs for line in run.metrics if name in line]
            cells.append(f"{fmean(values):.4g}" if values else NONE)
        rows.append(cells)
    return "## Metrics of the steps\n\nMeans over all steps and seeds.\n\n" + table(["arm", *experiment.metrics], rows)


def _cost_table(arms: Sequence[ArmResult]) -> str:
    """Return the table of means over the seeds that finished."""

    def mean(reports: Sequence[RunReport], value: Callable[[RunReport], float]) -> str:
        return f"{fmean(map(value, reports)):,.0f}" if reports else NONE

    columns = ["arm", "steps", "rollouts", "tokens generated", "tokens trained", "seconds", "CPU seconds"]
    rows: list[list[str]] = []
    for arm in arms:
        reports = [run.report for run in arm.runs if run.report is not None]
        fields = ("steps", "rollouts", "tokens_generated", "tokens_trained", "seconds", "cpu_seconds")
        rows.append([arm.name, *(mean(reports, lambda one, field=field: getattr(one, field)) for field in fields)])
    words = "Means over the seeds that finished, evaluations included. Preparations are not included."
    return f"{words}\n\n{table(columns, rows)}"


def _unfinished(arms: Sequence[ArmResult]) -> str:
    rows = [[run.job.label, run.state, run.note or ""] for arm in arms for run in arm.runs if run.note is not None]
    return table(["run", "state", "why"], rows) if rows else "Every run finished."


def _machine(arms: Sequence[ArmResult]) -> str:
    rows: list[list[str]] = []
    for run in (run for arm in arms for run in arm.runs):
        for number, session in enumerate(run.sessions, 1):
            label = run.job.label if len(run.sessions) == 1 else f"{run.job.label}, session {number}"
            began = time.strftime("%Y-%m-%d %H:%M", time.gmtime(session.began))
            after = "cut off" if session.load_after is None else f"{session.load_after:.2f}"
            rows.append([label, began, f"{session.load_before:.2f}", after, session.leyden])
    if not rows:
        return "No run has started."
    versions = sorted({row[-1] for row in rows})
    if len(versions) == 1:
        rows = [row[:-1] for row in rows]
    words = f"Load averages over one minute at the beginning and the end of each process. Leyden {versions[0]}."
    if len(versions) > 1:
        words = "Load averages over one minute at the beginning and the end of each process."
    columns = ["run", "began (UTC)", "load at the beginning", "at the end", *(["Leyden"] if len(versions) > 1 else [])]
    return f"{words}\n\n{table(columns, rows)}"


def _repetition(name: str, experiment: Experiment, file: str, command: Sequence[str]) -> str:
    arms = yaml.safe_dump(
        {arm: own or {} for arm, own in experiment.arms.items()}, sort_keys=False, allow_unicode=True, width=100
    )
    return (
        f"## How to repeat it\n\n`{file}` defines the experiment {name}. This report was written with Leyden "
        f"{leyden_version()} by\n\n```text\n{shlex.join(command)}\n```\n\nThe arms differ in these settings:\n\n"
        f"```yaml\n{arms}```"
    )


def failed_runs(arms: Sequence[ArmResult]) -> list[RunResult]:
    """Return the runs that failed."""
    return [run for arm in arms for run in arm.runs if run.state == "failed"]
