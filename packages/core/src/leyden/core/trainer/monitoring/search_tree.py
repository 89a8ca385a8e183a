"""A search for prompts as text: the tree of candidates, one candidate in full, and what was spent."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from leyden.core.algorithm.prompts.search import Candidate, Evaluation, PromptSearch
from leyden.core.trainer.monitoring.as_it_is import TITLE, as_it_is
from leyden.core.trainer.monitoring.display import spending
from leyden.core.trainer.run_folder.prompts.search import SearchProgress, spent_at, text_diff

if TYPE_CHECKING:
    from rich.table import Table

SHOWN_TASK = 60
"""Number of characters of a task in the table of scores."""


def tree_table(search: PromptSearch, progress: SearchProgress, *, rejected: bool) -> "Table":
    """Return the table of candidates, each below the one that it was made from; rejected ones only if wanted."""
    from rich.table import Table

    title = f"Search of run {progress.run} ({progress.algorithm})"
    table = Table(title=as_it_is(title, TITLE), title_justify="left")
    table.add_column("candidate", no_wrap=True)
    table.add_column("from", no_wrap=True)
    for column in ("score", "before → after", "step", "rollouts"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("changed", overflow="fold")
    table.add_column("", overflow="fold")
    spent = spent_at(search)
    shown = [one for one in search.candidates if rejected or not one.rejected]
    for prefix, one in _in_tree_order(shown, search.candidates):
        table.add_row(
            as_it_is(f"{prefix}{one.number}"),
            " and ".join(map(str, one.parents)),
            _number(one.score),
            _compared_with_parent(one),
            str(one.step) if one.parents else "",
            str(spent.get(one.number, "")),
            as_it_is(", ".join(one.changed) if one.parents else "start"),
            as_it_is(_remark(search, one)),
            style="bold" if one.number == search.best else "dim" if one.rejected else "",
        )
    return table


def summary_lines(search: PromptSearch, progress: SearchProgress, *, rejected: bool) -> list[str]:
    """Return the lines below the table: hidden candidates, the budget, and how far the search is."""
    hidden = 0 if rejected else sum(bool(one.rejected) for one in search.candidates)
    count = len(search.candidates)
    lines = [f"{hidden} of {count} candidates were rejected: --all shows them, with the reasons"] if hidden else []
    calls = len(search.reflections)
    left = spending(search.left(), {})
    lines.append(
        f"spent: {', '.join(spending(search.spent(), search.limits))}, {calls} call{'s' if calls != 1 else ''} of the "
        "reflection model"
    )
    if "dollars" not in search.spent():
        lines.append("the cost is not known: reflection.price and budget.agent_price set the prices")
    lines.append(f"left: {', '.join(left)}" if left else "the budget has no limit")
    return [*lines, progress.line]


def candidate_lines(search: PromptSearch, one: Candidate, show_rollout: str) -> Iterator[str]:
    """Yield the lines that show a candidate: where it comes from, its texts as diffs, and its rollouts.

    `show_rollout` is the command that shows a rollout, without its id.
    """
    parents = " and ".join(f"candidate {number}" for number in one.parents)
    yield f"candidate {one.number}" + (f", from {parents}" if parents else ", which the run began with")
    yield from _facts(search, one)
    start = search.candidates[0]
    parent = search.candidates[one.parents[0]] if one.parents else start
    for name, text in one.texts.items():
        yield ""
        yield f"prompt {name}:"
        yield from (f"  {line}" for line in text.splitlines())
        for label, before in _compared(one, parent, start):
            if before.texts.get(name) != text:
                yield f"changed from {label}:"
                diff = text_diff(
                    before.texts.get(name, ""), text, (f"candidate {before.number}", f"candidate {one.number}")
                )
                yield from (f"  {line}" for line in diff.splitlines())
    if one.rollouts:
        yield ""
        yield "rollouts that it was made from:"
        yield from (f"  {show_rollout} {rollout}" for rollout in dict.fromkeys(one.rollouts))


def scores_table(search: PromptSearch, one: Candidate, tasks: Mapping[str, str]) -> "Table":
    """Return the table of a candidate's scores by task, beside those of its first parent."""
    from rich.table import Table

    parent = search.candidates[one.parents[0]] if one.parents else None
    table = Table(title=as_it_is(f"Scores of candidate {one.number} by task", TITLE), title_justify="left")
    beside = {} if parent is None else {key: each.score for key, each in evaluations_of(search, parent)} | parent.scores
    table.add_column("task", no_wrap=True)
    for column in ("score", *([] if parent is None else [f"of {parent.number}"])):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("rollout", ""):
        table.add_column(column, overflow="fold")
    for key, evaluation in evaluations_of(search, one):
        of_parent = [] if parent is None else [_number(beside.get(key))]
        text = tasks.get(key, "")
        shown = text if len(text) <= SHOWN_TASK else f"{text[: SHOWN_TASK - 1]}…"
        table.add_row(
            as_it_is(key), _number(evaluation.score), *of_parent, as_it_is(evaluation.rollout_id), as_it_is(shown)
        )
    return table


def evaluations_of(search: PromptSearch, one: Candidate) -> list[tuple[str, Evaluation]]:
    """Return the evaluations of a candidate, each with the key of its task."""
    return [
        (f"{each.held_out or 'train'}/{each.row}", each)
        for each in search.evaluations
        if each.resources_id == one.resources_id
    ]


def _facts(search: PromptSearch, one: Candidate) -> Iterator[str]:
    if one.parents:
        how = {"reflection": "a text by the reflection model", "edit": "an edit after a textual gradient"}
        yield f"  made in step {one.step}: {how.get(one.origin, 'components of two candidates')}"
        yield f"  changed: {', '.join(one.changed) or 'nothing'}"
    if one.before is not None:
        whose = "its parent's " if one.after is None else ""
        yield f"  {whose}mean score on the tasks it was made from: {_compared_with_parent(one)}"
    if one.score is not None:
        yield f"  mean score on the {len(one.scores)} tasks that select candidates: {_number(one.score)}"
    if one.reason:
        yield "  reason:"
        yield from (f"    {line}" for line in one.reason.splitlines())
    if remark := _remark(search, one):
        yield f"  {remark}"


def _compared_with_parent(one: Candidate) -> str:
    """Return the parent's score on the tasks that a candidate was made from, and its own if it ran on them."""
    if one.before is None:
        return ""
    return _number(one.before) + ("" if one.after is None else f" → {_number(one.after)}")


def _compared(one: Candidate, parent: Candidate, start: Candidate) -> list[tuple[str, Candidate]]:
    if not one.parents:
        return []
    if parent is start:
        return [("its parent, the start", start)]
    return [(f"its parent, candidate {parent.number}", parent), ("the start", start)]


def _in_tree_order(shown: Sequence[Candidate], every: Sequence[Candidate]) -> Iterator[tuple[str, Candidate]]:
    """Yield the candidates from the start on, with the text that indents them.

    An only child is not indented: a long line of candidates stays narrow.
    """
    known = {one.number for one in shown}
    children: dict[int | None, list[Candidate]] = {}
    for one in shown:
        children.setdefault(_shown_parent(one, known, every), []).append(one)
    waiting = [("", "", one) for one in reversed(children.get(None, []))]
    while waiting:
        prefix, indent, one = waiting.pop()
        yield prefix, one
        below = children.get(one.number, [])
        if len(below) == 1:
            waiting.append((indent, indent, below[0]))
        for at, child in enumerate(reversed(below)) if len(below) > 1 else ():
            mark, more = ("└ ", "  ") if at == 0 else ("├ ", "│ ")
            waiting.append((indent + mark, indent + more, child))


def _shown_parent(one: Candidate, known: set[int], every: Sequence[Candidate]) -> int | None:
    """Return the nearest candidate above that is shown; None for the start."""
    while one.parents:
        one = every[one.parents[0]]
        if one.number in known:
            return one.number
    return None


def _remark(search: PromptSearch, one: Candidate) -> str:
    if one.rejected:
        return f"rejected: {one.rejected}"
    if one.number == search.best:
        return "best"
    return "" if one.score is not None else "not scored yet"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
