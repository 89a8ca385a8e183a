"""Report of a study: its trials, the best settings, how much better they are than the default, and how sure that is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.core.experiments.paired_bootstrap import PairedDifference
from leyden.core.tuning.importance import BEST_SHARE, ENOUGH_FOR_IMPORTANCE
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.results import Confirmation, StudyResult
from leyden.core.tuning.settings import setting_of
from leyden.core.tuning.space import value_text
from leyden.core.tuning.trial import Trial

if TYPE_CHECKING:
    from rich.table import Table

NONE = "–"


class Numbers:
    """Texts of scores: in percent if every task earned 0 or 1, else with three digits."""

    def __init__(self, *, is_share: bool) -> None:
        self._is_share = is_share

    def one(self, value: float | None) -> str:
        """Return a score."""
        if value is None:
            return NONE
        return f"{100 * value:.1f} %" if self._is_share else f"{value:.3f}"

    def interval(self, found: PairedDifference) -> str:
        """Return a difference (of shares, in percentage points), its 95 % interval, and what it is over."""
        mean, low, high = (
            f"{100 * value:+.1f}" if self._is_share else f"{value:+.3f}"
            for value in (found.mean, found.low, found.high)
        )
        seeds = "1 seed" if found.seeds == 1 else f"{found.seeds} seeds"
        unit = " points" if self._is_share else ""
        return f"{mean}{unit} (95 % interval {low} to {high}; {found.tasks} tasks, {seeds})"


def trial_table(plan: StudyPlan, result: StudyResult) -> "Table":
    """Return the table of all trials."""
    from rich.table import Table

    from leyden.core.trainer.monitoring.as_it_is import as_it_is

    numbers = Numbers(is_share=result.is_share)
    table = Table()
    for column in ("trial", *plan.space, "score", "state", ""):
        table.add_column(as_it_is(column), justify="left" if column in ("state", "") else "right")
    for trial in result.trials:
        values = [shown_value(plan, trial, key) for key in plan.space]
        cells = [str(trial.number), *values, numbers.one(trial.score), trial.state, _note(trial, result)]
        table.add_row(*map(as_it_is, cells))
    return table


def shown_value(plan: StudyPlan, trial: Trial, key: str) -> str:
    """Return a trial's value of a searched key for display; the setting itself if it is not in the search space."""
    if key in trial.values:
        return value_text(trial.values[key])
    setting = setting_of(plan.base, key)
    return value_text(setting) if isinstance(setting, int | float) else str(setting)


def _note(trial: Trial, result: StudyResult) -> str:
    notes = ["default"] if trial.is_default else []
    if result.best is not None and trial.number == result.best.number:
        notes.append("best")
    if trial.is_past:
        notes.append(f"past run {', '.join('/'.join(Path(run).parts[-2:]) for run in trial.runs)}")
    if trial.reason is not None and trial.state in ("failed", "pruned"):
        notes.append(trial.reason)
    return "; ".join(notes)


def heading(plan: StudyPlan) -> str:
    """Return the line above the table, which says what the scores are."""
    seeds = f"seed {plan.seeds[0]}" if len(plan.seeds) == 1 else f"mean of {len(plan.seeds)} seeds"
    return f"Study {plan.name}: mean reward on {plan.measured.name} after the last step, {seeds}"


def conclusion(plan: StudyPlan, result: StudyResult, confirmation: Confirmation | None) -> list[str]:
    """Return the lines that say what the study came to."""
    numbers = Numbers(is_share=result.is_share)
    if result.best is None:
        return ["no trial has finished, so there is no best one"]
    if result.default is None:
        return [
            f"best: trial {result.best.number}, {numbers.one(result.best.score)}; the default has no result, so "
            "nothing can be said of the difference"
        ]
    if not result.is_better:
        return [
            f"no trial of {result.finished} is better than the default, which has {numbers.one(result.default.score)}"
        ]
    lines = [
        f"best: trial {result.best.number}, {numbers.one(result.best.score)}; default: "
        f"{numbers.one(result.default.score)}"
    ]
    if result.difference is not None:
        lines.append(f"difference to the default: {numbers.interval(result.difference)}")
    lines.append(
        f"this is optimistic: the trial is the best of {result.finished} on the same tasks of {plan.measured.name}, "
        "so part of its lead is luck"
    )
    if confirmation is None:
        lines.append("to measure it anew against the default: --confirm SET, or --confirm-seeds SEEDS")
        return lines
    return lines + _confirmed(confirmation, result)


def _confirmed(confirmation: Confirmation, result: StudyResult) -> list[str]:
    numbers = Numbers(is_share=result.is_share)
    seeds = f"seed{'s' * (len(confirmation.seeds) > 1)} {', '.join(map(str, confirmation.seeds))}"
    lines = [
        f"measured anew on {confirmation.held_out.name} with {seeds}: best {numbers.one(confirmation.best)}, "
        f"default {numbers.one(confirmation.default)}"
    ]
    if (found := confirmation.difference) is None:
        lines.append("no seed has a result of both, so nothing is confirmed")
    else:
        lines += [f"difference to the default: {numbers.interval(found)}", _verdict(found)]
    if confirmation.is_same_set:
        lines.append("the seeds are new, but the tasks are those that chose the trial: another set would say more")
    return lines + list(confirmation.failures)


def _verdict(found: PairedDifference) -> str:
    if found.low <= 0 <= found.high:
        return "not confirmed: the interval contains 0"
    scope = "" if found.seeds > 1 else "; with one seed, it covers tasks alone and says nothing of other seeds"
    if found.low > 0:
        return f"confirmed: the whole interval is above 0{scope}"
    return f"refuted: the whole interval is below 0, so the default is better{scope}"


def importance_lines(result: StudyResult) -> list[str]:
    """Return the lines about the importance of the searched keys."""
    if result.importance is None:
        return [
            f"importance: it takes {ENOUGH_FOR_IMPORTANCE} finished trials with different scores, and there are "
            f"{result.finished}"
        ]
    shares = ", ".join(f"{key} {100 * share:.0f} %" for key, share in result.importance.items())
    return [
        f"importance for being among the best {100 * BEST_SHARE:.0f} %, a rough hint from {result.finished} finished "
        f"trials: {shares}"
    ]


def json_events(
    plan: StudyPlan, result: StudyResult, confirmation: Confirmation | None, files: Mapping[str, Path | None]
) -> list[dict[str, Any]]:
    """Return the report as JSON lines: one for each trial, and one for the study."""
    events: list[dict[str, Any]] = [
        {
            "event": "trial",
            "number": trial.number,
            "values": dict(trial.values),
            "state": trial.state,
            "score": trial.score,
            "default": trial.is_default,
            "past": list(trial.runs),
            "reason": trial.reason,
        }
        for trial in result.trials
    ]
    events.append(
        {
            "event": "study",
            "name": plan.name,
            "held_out": plan.measured.name,
            "seeds": list(plan.seeds),
            "best": None if result.best is None else result.best.number,
            "default": None if result.default is None else result.default.number,
            "difference": _plain(result.difference),
            "optimistic": result.is_better,
            "confirmation": None if confirmation is None else _plain_confirmation(confirmation),
            "importance": None if result.importance is None else dict(result.importance),
            "finished": result.finished,
            **{name: None if path is None else str(path) for name, path in files.items()},
        }
    )
    return events


def _plain(found: PairedDifference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: getattr(found, name) for name in ("mean", "low", "high", "seeds", "tasks")}


def _plain_confirmation(found: Confirmation) -> dict[str, Any]:
    return {
        "held_out": found.held_out.name,
        "seeds": list(found.seeds),
        "best": found.best,
        "default": found.default,
        "difference": _plain(found.difference),
        "failures": list(found.failures),
    }


def train_command(file: Path, plan: StudyPlan, runs: Sequence[str]) -> list[str]:
    """Return the `leyden train` command for the settings in `file`; `runs` are the words that name another folder."""
    return ["leyden", "train", "--config", str(file), "--name", f"{plan.name[:59]}-best", *runs]
