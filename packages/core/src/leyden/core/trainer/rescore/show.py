"""Terminal report of `leyden rescore`: tables of the control, distribution, ranks, groups and advantages."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from leyden.core.data.similar_messages import CountedMessage
from leyden.core.trainer.monitoring.as_it_is import TITLE, as_it_is
from leyden.core.trainer.rescore.result import (
    AdvantageChanges,
    Control,
    Distribution,
    GroupChange,
    GroupChanges,
    Move,
    RankChanges,
    Rescored,
    SpreadChange,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

BAR = 18
"""Characters of the longest bar of a histogram."""
SHOWN_GROUPS = 10
"""Largest number of groups that are listed as gaining, and as losing, their spread."""
LINE_CHARACTERS = 400
_CHANGES: dict[SpreadChange, str] = {
    "gains": "gain spread: would be trained now",
    "loses": "lose spread: would no longer be trained",
    "keeps": "have spread before and after",
    "none": "have no spread before or after",
}


def print_report(result: Rescored, console: "Console") -> None:
    """Print the report to a rich console."""
    for part in report(result):
        console.print(part, soft_wrap=isinstance(part, str) or hasattr(part, "plain"), highlight=False)


def report(result: Rescored) -> "Iterable[RenderableType]":
    """Yield the parts of the report: lines and tables."""
    yield as_it_is(f"Run {result.run}: {result.read:,} rollouts ({result.rollouts_of}), scored by {result.reward}")
    if result.reward_weights:
        weights = ", ".join(f"{name}={weight:g}" for name, weight in result.reward_weights.items())
        yield as_it_is(f"weights of its dimensions: {weights}")
    yield from (as_it_is(line) for line in control_lines(result.control))
    yield as_it_is(f"new reward: {result.scored:,} of {result.read:,} rollouts scored")
    yield from (as_it_is(line) for line in _counted(result.errors))
    if result.distribution is not None:
        yield _distribution_table("Reward", result.distribution)
    for name, found in result.dimensions.items():
        yield _distribution_table(f"Dimension {name}", found)
    if result.ranks is not None:
        yield from _ranks(result.ranks)
    yield from _groups(result.groups)
    yield from (as_it_is(line) for line in _advantage_lines(result.advantages))


def control_lines(control: Control) -> Iterable[str]:
    """Yield the lines of the control: whether the run's own reward reproduces the stored rewards."""
    if control.reward is None:
        yield f"control: {control.remark}; {control.stored:,} stored rewards cannot be reproduced"
        return
    if control.remark and not control.reproduced and not control.differences:
        yield f"control: {control.remark}"
        return
    yield f"control: own reward reproduces {control.reproduced:,} of {control.stored:,} stored rewards"
    yield from _counted(control.differences)
    if control.remark:
        yield f"  {control.remark}"
    elif control.otherwise:
        yield "  the reward draws at random, reads something outside task and result, or its files have changed"


def _counted(found: Iterable[CountedMessage]) -> Iterable[str]:
    for one in found:
        yield f"{one.count:>9,}  {one.shortened(LINE_CHARACTERS)} (such as {one.example})"


def _distribution_table(title: str, found: Distribution) -> "Table":
    table = _table(f"{title} of {found.rollouts:,} rollouts", "", "before", "", "after", "")
    most = max(1, *found.before, *found.after)
    bins = zip(found.edges, found.edges[1:], found.before, found.after, strict=False)
    for low, high, before, after in bins:
        label = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        table.add_row(label, f"{before:,}", _bar(before, most), f"{after:,}", _bar(after, most))
    table.add_section()
    table.add_row("mean", f"{found.mean_before:.4g}", "", f"{found.mean_after:.4g}", "")
    table.add_row("deviation", f"{found.deviation_before:.4g}", "", f"{found.deviation_after:.4g}", "")
    return table


def _bar(count: int, most: int) -> str:
    return "█" * max(round(count / most * BAR), 1 if count else 0)


def _ranks(ranks: RankChanges) -> "Iterable[RenderableType]":
    yield as_it_is(
        f"order: Kendall's tau-b {_number(ranks.tau)} over all, {_number(ranks.tau_in_groups)} within groups "
        f"(mean of {ranks.groups:,}); {ranks.moved:,} rollouts change their rank"
    )
    if ranks.most:
        yield _moves_table(ranks.most)


def _moves_table(moves: Sequence[Move]) -> "Table":
    table = _table("Rollouts that moved most", "rollout", "before", "after", "rank before", "rank after")
    for one in moves:
        ranks = (f"{one.rank_before:g}", f"{one.rank_after:g}")
        table.add_row(as_it_is(one.rollout_id), f"{one.before:.4g}", f"{one.after:.4g}", *ranks)
    return table


def _groups(found: GroupChanges) -> "Iterable[RenderableType]":
    if not found.groups and not found.incomplete:
        return
    table = _table(f"{len(found.groups):,} groups", "", "groups")
    for kind, label in _CHANGES.items():
        table.add_row(label, f"{found.counts.get(kind, 0):,}")
    if found.incomplete:
        table.add_row("not compared: a rollout has no new reward", f"{found.incomplete:,}")
    yield table
    for kind in ("gains", "loses"):
        changed = [one for one in found.groups if one.change == kind]
        if changed:
            yield _group_table(f"Groups that {_CHANGES[kind].partition(':')[0]}", changed)


def _group_table(title: str, groups: Sequence[GroupChange]) -> "Table":
    shown = groups[:SHOWN_GROUPS]
    more = f" ({len(shown)} of {len(groups):,})" if len(shown) < len(groups) else ""
    table = _table(f"{title}{more}", "group", "rollouts", "spread before", "spread after")
    for one in shown:
        table.add_row(as_it_is(one.group), str(one.rollouts), f"{one.before:.4g}", f"{one.after:.4g}")
    return table


def _advantage_lines(found: AdvantageChanges) -> Iterable[str]:
    if found.unavailable:
        yield f"advantages: not computed: {found.unavailable}"
        return
    yield (
        f"advantages ({found.estimator}, credit {found.credit}): of {found.calls:,} calls, {found.change_sign:,} "
        f"change sign, {found.become_nonzero:,} get one, {found.become_zero:,} lose theirs; mean size "
        f"{found.mean_absolute_before:.3g} before, {found.mean_absolute_after:.3g} after"
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _table(title: str, first: str, *others: str) -> "Table":
    from rich.table import Table

    table = Table(title=as_it_is(title, TITLE), title_justify="left")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right" if name else "left")
    return table
