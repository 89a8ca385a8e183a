"""The search for prompts of a run: its record in the run's folder, how far it is, and what it came to."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from leyden.core.algorithm.prompts.search import Candidate, PromptSearch, read_search
from leyden.core.algorithm.registry import algorithm_class
from leyden.core.errors import LeydenError, RunError, UsageError
from leyden.core.policy.checkpoints.retention import latest_checkpoint, read_progress
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.algorithm_state import AlgorithmState
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import ChangedPrompt, RunReport, SearchResult

TRIES = 5
"""Number of times that the record of a run under way is read: a checkpoint may be replaced meanwhile."""


def read_prompt_search(folder: RunFolder, config: RunConfig, number: int | None = None) -> PromptSearch:
    """Return the record of the search in a run that is under way, was killed, or has finished.

    `number` is that of a prompt round, from 1, in a run with several searches; None: the last one. Raises UsageError,
    with one line, if the run has no such search, or none yet.
    """
    searches, name = _searches_in(_latest_state(folder)), folder.path.name
    if searches and number is not None and number > len(searches):
        has = f"it has 1 to {len(searches)}" if len(searches) > 1 else "it has one search"
        raise UsageError(f"run {name!r} has no prompt round {number}; {has}")
    if searches:
        return searches[-1 if number is None else number - 1]
    if not _is_search(config.algorithm):
        raise UsageError(
            f"run {name!r} has no search for prompts: its algorithm is {config.algorithm}; `leyden train --algorithm "
            "gepa` searches"
        )
    if (failure := folder.failure()) is not None:
        raise UsageError(f"run {name!r} ended before its search began: {failure.splitlines()[0]}")
    raise UsageError(f"the search of run {name!r} has not begun: none of its rollouts has finished yet")


def _latest_state(folder: RunFolder) -> Any:
    """Return the algorithm's state that was saved last, in the latest checkpoint or after it."""
    for _ in range(TRIES):
        checkpoint = latest_checkpoint(folder.checkpoints)
        try:
            progress = {} if checkpoint is None else read_progress(checkpoint)
        except RunError:
            continue
        return AlgorithmState(folder).latest(
            progress.get("step", 0), progress.get("lineage", ""), progress.get("state")
        )
    raise RunError(f"the checkpoints in {folder.checkpoints} cannot be read")


class _Round(msgspec.Struct):
    search: Any = None


class _Rounds(msgspec.Struct):
    """State of an algorithm that takes turns: a search for each prompt round."""

    rounds: list[_Round]


def _searches_in(state: Any) -> list[PromptSearch]:
    """Return the searches in an algorithm's state, one for each prompt round; empty for another algorithm's state."""
    try:
        rounds = msgspec.convert(state, _Rounds).rounds
    except msgspec.ValidationError:
        rounds = [_Round(search=state)]
    found = [_search_in(one.search) for one in rounds]
    return [search for search in found if search is not None]


def _search_in(state: Any) -> PromptSearch | None:
    """Return the search in the state of an algorithm that trains prompts alone; None for another state."""
    try:
        search = read_search(state)
    except msgspec.ValidationError:
        return None
    return search if search.candidates else None


def _is_search(algorithm: str) -> bool:
    try:
        return algorithm_class(algorithm).trains_prompts
    except LeydenError:
        return False


class SearchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the search of a run is."""

    run: str
    algorithm: str
    step: int
    """Number of steps that were taken."""
    state: str
    """`under way`, `finished` or `stopped`."""
    why: str
    """Why it ended, or how it continues."""

    @property
    def line(self) -> str:
        """One line about it."""
        return f"{self.state}, after {self.step} step{'s' if self.step != 1 else ''}: {self.why}"


def search_progress(folder: RunFolder, config: RunConfig, search: PromptSearch) -> SearchProgress:
    """Return how far the search is."""
    step = max((int(line["step"]) for line in folder.metrics()), default=0)
    if folder.is_in_use():
        state, why = "under way", f"{config.steps} steps are planned"
    elif (report := folder.report()) is not None:
        state, why = "finished", _why_ended(search, report)
    else:
        state, why = "stopped", f"continue with: {folder.command('train --resume')}"
    return SearchProgress(run=folder.path.name, algorithm=config.algorithm, step=step, state=state, why=why)


def _why_ended(search: PromptSearch, report: RunReport) -> str:
    return search.ended or report.stopped_early or f"all {report.steps} steps were taken"


def spent_at(search: PromptSearch) -> dict[int, int]:
    """Return how many rollouts were spent when each candidate had its last score, by the candidate's number.

    That is its score on the validation tasks, or the one for which it was rejected. A candidate that never ran is left
    out, such as one that was rejected because its texts are those of another.
    """
    missing = {one.number: set(one.scores) for one in search.candidates}
    by_version: dict[str, list[Candidate]] = {}
    for one in search.candidates:
        same_texts = by_version.setdefault(one.resources_id, [])
        if not (one.rejected and same_texts):
            same_texts.append(one)
    spent: dict[int, int] = {}
    for count, evaluation in enumerate(search.evaluations, 1):
        key = f"{evaluation.held_out or 'train'}/{evaluation.row}"
        for one in by_version.get(evaluation.resources_id, ()):
            if not one.scores or key in missing[one.number]:
                missing[one.number].discard(key)
                spent[one.number] = count
    return spent


def best_scores(search: PromptSearch) -> list[tuple[int, float]]:
    """Return the best score on the validation tasks over the rollouts spent: a pair for each candidate that rose it."""
    spent = spent_at(search)
    scored = [one for one in search.candidates if one.score is not None and not one.rejected]
    found: list[tuple[int, float]] = []
    for one in sorted(scored, key=lambda one: (spent.get(one.number, 0), one.number)):
        if not found or (one.score or 0.0) > found[-1][1]:
            found.append((spent.get(one.number, 0), one.score or 0.0))
    return found


def best_curve(search: PromptSearch) -> tuple[list[int], list[float]]:
    """Return the corners of the curve of the best score: rollouts spent, up to all of them, and scores."""
    best = best_scores(search)
    x, y = [at for at, _ in best[:1]], [score for _, score in best[:1]]
    for at, score in best[1:]:
        x += [at, at]
        y += [y[-1], score]
    return ([*x, len(search.evaluations)], [*y, y[-1]]) if best else ([], [])


def held_out_points(metrics: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return rollouts spent, and the mean reward on the first held-out set, for each evaluation in `metrics.jsonl`."""
    lines = [line for line in metrics if line.get("success") is not None]
    spent = {0: 0} | {line["step"]: line["spent_rollouts"] for line in metrics if "spent_rollouts" in line}
    return [
        (spent[line["step"]], line["success"])
        for line in lines
        if line["held_out"] == lines[0]["held_out"] and line["step"] in spent
    ]


def search_result(search: PromptSearch, report: RunReport) -> SearchResult:
    """Return what a search came to that has ended."""
    best = search.candidates[search.best]
    return SearchResult(
        candidates=len(search.candidates),
        rejected=sum(bool(one.rejected) for one in search.candidates),
        best=best.number,
        validation_tasks=len(search.candidates[0].scores),
        start_score=search.candidates[0].score,
        best_score=best.score,
        reflections=len(search.reflections),
        spent=search.spent(),
        limits=search.limits,
        ended=_why_ended(search, report),
    )


def result_of(state: Any, report: RunReport) -> SearchResult | None:
    """Return what the search in an algorithm's state came to; None for another algorithm."""
    search = _search_in(state)
    return None if search is None else search_result(search, report)


def changed_prompts(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, ChangedPrompt]:
    """Return the prompts that differ, by name."""
    return {
        name: ChangedPrompt(start=before.get(name, ""), text=text, diff=text_diff(before.get(name, ""), text))
        for name, text in after.items()
        if before.get(name) != text
    }


def text_diff(before: str, after: str, names: tuple[str, str] = ("start", "best")) -> str:
    """Return the difference of two texts, line by line, as a unified diff."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))
