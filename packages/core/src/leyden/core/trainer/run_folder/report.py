"""Run report: the results of a run, and the table printed at its end."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from leyden.core.data.similar_messages import CountedMessage, Tally
from leyden.core.trainer.monitoring.as_it_is import CAPTION, TITLE, as_it_is
from leyden.core.trainer.monitoring.display import spending
from leyden.core.trainer.run_folder.versions import Evaluation, SideScores, reward_text

if TYPE_CHECKING:
    from rich.table import Table


MOST_FAILURES = 50
"""Maximum number of different failure reasons in a report."""
OTHERS = "for other reasons"
LABEL_CHARACTERS = 72
OF_POLICIES = (
    *("sampled_before", "sampled_after", "transitions", "policies", "excluded_calls", "dropped_groups", "stored"),
    *("tokens_trained", "sides", "combinations"),
)
"""Fields of a report without meaning in a run without a policy."""
SHOWN_FAILURES = 3
"""Number of failure reasons in the closing table."""


class HeldOutResult(msgspec.Struct, kw_only=True):
    """Mean reward over the tasks of one held-out set, each run once."""

    tasks: int
    is_share: bool = True
    """Whether every task earned 0 or 1 in all evaluations, so that the mean rewards are shares of solved tasks."""
    before: float | None = None
    """With the agent's own sampling, by the initial policy."""
    after: float | None = None
    sampled_before: float | None = None
    """With the training sampling (temperature 1)."""
    sampled_after: float | None = None
    dimensions: dict[str, dict[str, float]] = {}
    """Mean of each dimension of the reward in each of the four fields above; empty for a plain number."""

    def note(self, field: str, evaluation: Evaluation) -> None:
        """Store an evaluation in `field`."""
        setattr(self, field, evaluation.success)
        if evaluation.dimensions:
            self.dimensions[field] = evaluation.dimensions
        self.is_share = self.is_share and evaluation.is_share

    def described(self, field: str) -> str:
        """Return the mean reward in `field` as text for display."""
        return reward_text(getattr(self, field), is_share=self.is_share)


class CombinationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Mean reward on one held-out set of each combination of weights and prompts, with the agent's own sampling."""

    initial_weights_initial_prompts: float | None
    initial_weights_final_prompts: float | None
    final_weights_initial_prompts: float | None
    final_weights_final_prompts: float | None
    is_share: bool = True
    """Whether every task earned 0 or 1, so that the mean rewards are shares of solved tasks."""


class KeptVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Version whose weights are in `policy/`, and whose prompt templates are in `prompts/`."""

    version: int
    success: float | None
    """On the first held-out set, with the agent's own sampling. The best of many evaluations is biased upwards by
    luck."""
    why: str


class RaisedAlert(msgspec.Struct, kw_only=True):
    """Alert: a harmful pattern in the metrics of the steps."""

    name: str
    since: int
    """First step with the alert."""
    until: int | None = None
    """First step without the alert; None while it lasts."""
    message: str


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the stored spans that a run learned from."""

    rollouts: int
    calls: int
    """Number of calls that could be learned from."""
    retokenised: dict[str, int]
    """Of these, the number whose token ids were computed from text, by reason."""
    rollouts_left_out: dict[str, int]
    calls_left_out: dict[str, int]


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search for prompts came to."""

    candidates: int
    """Number of candidates, with the one that the run began with."""
    rejected: int
    """Number of those that were not kept."""
    best: int
    """Number of the best candidate."""
    validation_tasks: int
    """Number of tasks by which candidates were selected."""
    start_score: float | None
    """Mean score of the first candidate on these tasks."""
    best_score: float | None
    reflections: int
    """Number of calls of the reflection model."""
    spent: dict[str, float]
    """What was spent: `rollouts`, `tokens`, and `dollars` if all prices are known."""
    limits: dict[str, float] = {}
    """The budget; without a limit, the name is missing."""
    ended: str
    """Why the search ended."""


class ChangedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt of the kept version that is not the one that the run began with."""

    start: str
    text: str
    diff: str
    """Unified diff of both."""


class PolicyTotals(msgspec.Struct, kw_only=True):
    """Training totals of one of several policies."""

    steps: int = 0
    """Number of steps in which it had calls to learn from."""
    transitions: int = 0
    tokens: int = 0


class RunReport(msgspec.Struct, kw_only=True):
    """Results of a run, stored in `report.json`."""

    name: str
    seed: int
    endpoint: str | None = None
    """Model or base URL that answered the agents of a run without a policy."""
    success_before: float | None = None
    """Mean reward on the first held-out set; None without a held-out set."""
    success_after: float | None = None
    sampled_before: float | None = None
    sampled_after: float | None = None
    steps: int = 0
    rollouts: int = 0
    """Training and held-out rollouts that finished, whatever their outcome."""
    failed_rollouts: int = 0
    failures: list[CountedMessage] = []
    """Reasons of failed rollouts, the most frequent first, each with an example id. Rare reasons are counted
    together."""
    empty_rollouts: int = 0
    """Rollouts without a model call."""
    unrewarded_rollouts: int = 0
    """Rollouts without a reward; they are left out, not scored 0."""
    rollouts_trained: int = 0
    """Rollouts of which at least one call was trained on. With side-by-side algorithms, each side counts separately."""
    rollouts_left_out: dict[str, int] = {}
    """Rollouts of training batches without a trained call, by reason."""
    transitions: int = 0
    """Transitions trained on."""
    policies: dict[str, PolicyTotals] = {}
    """Training totals by policy, if there are several."""
    excluded_calls: dict[str, int] = {}
    """Calls that could not be trained on, by reason."""
    dropped_groups: dict[str, int] = {}
    """Groups left out of a step, by reason."""
    stored: dict[str, StoredResult] = {}
    """Stored spans from outside this run that it learned from, by source."""
    tokens_generated: int = 0
    tokens_trained: int = 0
    seconds: float = 0.0
    """Wall-clock time of all sessions. A session that was cut off counts up to its last checkpoint."""
    cpu_seconds: float = 0.0
    """CPU time of all sessions, for training and worker processes. Worker processes of a session that was cut off are
    not included."""
    seconds_by_phase: dict[str, float] = {}
    held_out: dict[str, HeldOutResult] = {}
    sides: dict[str, dict[str, HeldOutResult]] = {}
    """Results by side and held-out set, in a run with sides. `held_out` then holds those of the acting side, or of the
    best of several."""
    combinations: dict[str, CombinationResult] = {}
    """Results by held-out set of a run that trains weights and prompts: the weights and prompts of its beginning and of
    its last version, each with each."""
    kept: KeptVersion | None = None
    """None while the run is not finished."""
    stopped_early: str | None = None
    """Why the run ended before the planned number of steps, if it did."""
    alerts: list[RaisedAlert] = []
    search: SearchResult | None = None
    """What the search for prompts came to; None for other algorithms."""
    prompts: dict[str, ChangedPrompt] = {}
    """Prompts of the kept version that differ from those with which the run began, by name."""

    def written(self) -> dict[str, Any]:
        """Return the fields for `report.json`. Those that have no meaning in the run are left out."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        empty = [name for name in ("search", "prompts") if not fields[name]]
        left_out = [*empty, *(() if self.endpoint is None else OF_POLICIES)]
        return {name: value for name, value in fields.items() if name not in left_out}

    def note_failures(self, found: Sequence[CountedMessage]) -> None:
        """Add failure reasons. Beyond `MOST_FAILURES` reasons, the rare ones are added up as others."""
        tally = Tally()
        tally.include([*self.failures, *found])
        listed = [one for one in tally.most_common() if one.text != OTHERS]
        rest = tally.total - sum(one.count for one in listed[:MOST_FAILURES])
        self.failures = listed[:MOST_FAILURES]
        if rest:
            example = next((one.example for one in listed[MOST_FAILURES:]), "")
            self.failures.append(CountedMessage(rest, OTHERS, example))

    def note_held_out(
        self, when: Literal["before", "after"], own: Mapping[str, Evaluation], sampled: Mapping[str, Evaluation]
    ) -> None:
        """Store the evaluations of the held-out sets; the first set also fills the headline fields."""
        for field, found in ((when, own), (f"sampled_{when}", sampled)):
            for number, (name, evaluation) in enumerate(found.items()):
                self.held_out[name].note(field, evaluation)
                if number == 0:
                    setattr(self, field if found is sampled else f"success_{when}", evaluation.success)

    def note_sides(self, when: Literal["before", "after"], sides: Mapping[str, SideScores]) -> None:
        """Store what each side earned."""
        for side, scores in sides.items():
            own = self.sides.setdefault(side, {})
            for field, found in ((when, scores.held_out), (f"sampled_{when}", scores.sampled)):
                for name, evaluation in found.items():
                    result = own.setdefault(name, HeldOutResult(tasks=self.held_out[name].tasks))
                    result.note(field, evaluation)


def closing_table(report: RunReport) -> "Table":
    """Return the table for the end of a run."""
    from rich.table import Table

    table = Table(title=as_it_is(f"Run {report.name}", TITLE), title_justify="left", show_header=True)
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for said, result in _measured(report):
        what = "success" if result.is_share else "mean reward"
        on = as_it_is(f"{what} on {said} ({result.tasks} tasks)")
        table.add_row(on, result.described("before"), result.described("after"))
        for dimension in dict.fromkeys(name for means in result.dimensions.values() for name in means):
            means = (result.dimensions.get(field, {}).get(dimension) for field in ("before", "after"))
            table.add_row(as_it_is(f"   {dimension}"), *(reward_text(mean, is_share=False) for mean in means))
        if result.sampled_before is not None or result.sampled_after is not None:
            table.add_row(
                "   sampled, temperature 1", result.described("sampled_before"), result.described("sampled_after")
            )
    if (search := report.search) is not None:
        scores = [reward_text(score, is_share=False) for score in (search.start_score, search.best_score)]
        table.add_row(f"score on the {search.validation_tasks} tasks that select candidates", *scores)
    if report.held_out or search is not None:
        table.add_section()
    for label, value in _totals(report):
        table.add_row(as_it_is(label), "", value)
    table.add_section()
    for phase, seconds in report.seconds_by_phase.items():
        table.add_row(as_it_is(f"seconds: {phase}"), "", f"{seconds:,.1f}")
    if remarks := _remarks(report):
        table.caption = as_it_is("\n".join(remarks), CAPTION)
    table.caption_justify = "left"
    return table


def combination_tables(report: RunReport) -> "list[Table]":
    """Return a table of weights and prompts for each held-out set; none for a run that trained only one of them."""
    from rich.table import Table

    tables: list[Table] = []
    for name, found in report.combinations.items():
        what = "success" if found.is_share else "mean reward"
        table = Table(title=as_it_is(f"{what} on {name}", TITLE), title_justify="left", show_header=True)
        table.add_column("")
        table.add_column("initial prompts", justify="right")
        table.add_column("final prompts", justify="right")
        for label, first, last in (
            ("initial weights", found.initial_weights_initial_prompts, found.initial_weights_final_prompts),
            ("final weights", found.final_weights_initial_prompts, found.final_weights_final_prompts),
        ):
            texts = (reward_text(mean, is_share=found.is_share) for mean in (first, last))
            table.add_row(label, *texts)
        tables.append(table)
    return tables


def _measured(report: RunReport) -> list[tuple[str, HeldOutResult]]:
    """Return the results by held-out set; in a run with sides, by set and side."""
    if not report.sides:
        return list(report.held_out.items())
    return [(f"{name}, {side}", own[name]) for name in report.held_out for side, own in report.sides.items()]


def _remarks(report: RunReport) -> list[str]:
    """Return the remarks below the table, one line each."""
    folder = "policy" if report.endpoint is None else "prompts"
    remarks = [] if report.kept is None else [f"{folder}/ holds version {report.kept.version}: {report.kept.why}"]
    if report.search is not None:
        remarks.append(f"the search ended: {report.search.ended}")
    elif report.stopped_early is not None:
        remarks.append(f"stopped early: {report.stopped_early}")
    for alert in report.alerts:
        when = f"from step {alert.since} on" if alert.until is None else f"steps {alert.since} to {alert.until - 1}"
        remarks.append(f"alert {alert.name}, {when}: {alert.message}")
    return remarks


def _totals(report: RunReport) -> list[tuple[str, str]]:
    by_policy = [
        (f"   by {name}, in {own.steps} steps", f"{own.transitions:,}") for name, own in report.policies.items()
    ]
    trains = report.endpoint is None
    rows = [
        ("steps", f"{report.steps:,}"),
        ("rollouts", f"{report.rollouts:,}"),
        *([] if report.search is None else _search_totals(report.search)),
        *([("transitions trained", f"{report.transitions:,}"), *by_policy] if trains else []),
        ("tokens generated", f"{report.tokens_generated:,}"),
        *([("tokens trained", f"{report.tokens_trained:,}")] if trains else []),
        ("seconds", f"{report.seconds:,.0f}"),
        ("CPU seconds", f"{report.cpu_seconds:,.0f}"),
    ]
    counted = {
        "failed rollouts": report.failed_rollouts,
        **{f"   {one.shortened(LABEL_CHARACTERS)}": one.count for one in _most_frequent(report.failures)},
        "rollouts that never called a model": report.empty_rollouts,
        "rollouts without a reward": report.unrewarded_rollouts,
        **{f"groups left out: {reason}": count for reason, count in report.dropped_groups.items()},
        **({f"calls left out: {reason}": count for reason, count in report.excluded_calls.items()} if trains else {}),
    }
    for source, stored in report.stored.items():
        counted[f"rollouts in {source}"] = stored.rollouts
        counted |= {f"calls re-tokenised: {reason}": count for reason, count in stored.retokenised.items()}
        counted |= {f"stored calls left out: {reason}": count for reason, count in stored.calls_left_out.items()}
    return rows + [(label, f"{count:,}") for label, count in counted.items() if count]


def _search_totals(search: SearchResult) -> list[tuple[str, str]]:
    return [
        ("candidates", f"{search.candidates:,}"),
        ("   of them rejected", f"{search.rejected:,}"),
        ("   the best one", f"number {search.best}"),
        ("calls of the reflection model", f"{search.reflections:,}"),
        *(("spent by the search", text) for text in spending(search.spent, search.limits)),
    ]


def closing_prompts(report: RunReport) -> list[str]:
    """Return the lines that show the prompts of the kept version: each as text, and as a diff from the start."""
    if not report.prompts:
        return [] if report.search is None else ["the kept prompts are those with which the run began"]
    lines: list[str] = []
    for name, prompt in report.prompts.items():
        lines += [f"prompt {name}:", *(f"  {line}" for line in prompt.text.splitlines()), ""]
        lines += ["changed from the start:", *(f"  {line}" for line in prompt.diff.splitlines()), ""]
    return lines


def _most_frequent(failures: Sequence[CountedMessage]) -> list[CountedMessage]:
    """Return the reasons for the table; `leyden why` shows all of them."""
    tally = Tally()
    tally.include(failures)
    return tally.grouped(SHOWN_FAILURES)[:SHOWN_FAILURES]
