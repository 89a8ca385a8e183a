"""Studies of `leyden tune`: what each has tried, which settings are best, and how sure that is; nothing is written."""

import asyncio
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from leyden.console.http.answers import as_json, error_answer
from leyden.console.http.events import event_stream
from leyden.console.plain import one_line
from leyden.console.runs.catalogue import Catalogue, Problem
from leyden.console.runs.run import RunItem
from leyden.core.cli.options import RUNS
from leyden.core.errors import LeydenError, RunError
from leyden.core.experiments.paired_bootstrap import PairedDifference
from leyden.core.tuning.evaluations import described
from leyden.core.tuning.importance import importance_of
from leyden.core.tuning.optuna_library import EXTRA, is_installed
from leyden.core.tuning.plan import STUDY_FILE, StudyPlan
from leyden.core.tuning.report import conclusion, importance_lines, shown_value, train_command
from leyden.core.tuning.results import Confirmation, StudyResult, result_of, run_folders, scores_by_seed
from leyden.core.tuning.space import Range
from leyden.core.tuning.stored_study import BEST_FILE, is_running, read_plan, stored_best, stored_confirmation
from leyden.core.tuning.stored_trials import STORAGE_FILE, stored_trials
from leyden.core.tuning.trial import Trial

StudyState = Literal["running", "interrupted", "ended"]
"""`interrupted`: no command works on it, but a trial has not ended."""
MOST_COMPARED = 8


class TrialRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a trial or of a confirmation."""

    name: str
    seed: int
    key: str | None
    """Key for links; None if the run is not in the folders that the console shows."""
    state: str | None
    step: int
    steps: int | None
    score: float | None
    """Mean score on the held-out set that counts; None before the run has finished."""


class TrialItem(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as one line of a list."""

    number: int
    values: dict[str, float | int | str]
    """Values of the searched keys that are in the search space."""
    shown: dict[str, str]
    """Values of all searched keys as text."""
    score: float | None
    state: str
    reason: str | None
    default: bool
    past: bool
    reported: list[tuple[str, float]]
    """Scores on the way, each with the step that it is of."""
    runs: list[TrialRun]


class SearchedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A searched key and its domain: the ends of a range, or choices."""

    key: str
    domain: str
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: list[str] = []


class ConfirmationItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a confirmation came to."""

    trial: int
    held_out: str
    seeds: list[int]
    best: float | None
    default: float | None
    difference: PairedDifference | None
    failures: list[str]
    runs: list[TrialRun]


class StudyItem(msgspec.Struct, frozen=True, kw_only=True):
    """A study as one line of a list."""

    key: str
    name: str
    folder: str
    state: StudyState
    searched: list[str]
    held_out: str
    is_share: bool
    trials: int
    finished: int
    best: float | None
    default: float | None
    confirmed: PairedDifference | None
    updated: float | None


class StudyDetail(StudyItem, frozen=True, kw_only=True):
    """A study in full."""

    seeds: list[int]
    steps: int
    prunes: bool
    space: list[SearchedKey]
    tried: list[TrialItem]
    best_trial: int | None
    default_trial: int | None
    difference: PairedDifference | None
    conclusion: list[str]
    """What the study came to, in sentences."""
    confirmation: ConfirmationItem | None
    importance: dict[str, float] | None
    importance_note: str
    best_yaml: str | None
    """Settings of the best trial as a run file; None before the study has reported."""
    best_is_current: bool
    train_command: str | None
    compared: list[str]
    """Keys of runs of the best trial and of the default, for a comparison."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of a study, and the state of its files then."""

    stamp: tuple[Any, ...]
    plan: StudyPlan
    result: StudyResult
    confirmation: tuple[int, Confirmation] | None
    best: tuple[str, bool] | None
    scores: dict[int, dict[int, float]]
    """Mean scores by trial and seed."""
    note: str
    """What importance is of, or why there is none."""


class Studies:
    """The studies of a catalogue, and the requests about them."""

    def __init__(self, catalogue: Catalogue, is_stopping: Callable[[], bool]) -> None:
        self._catalogue, self._is_stopping = catalogue, is_stopping
        self._known: dict[Path, _Read] = {}
        self._reading: dict[Path, asyncio.Lock] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/api/studies", as_json(self._listing)),
            Route("/api/studies/{key}", as_json(self._study)),
            Route("/api/studies/{key}/events", self._events),
        ]

    async def _listing(self, request: Request) -> Any:
        del request
        items: list[StudyItem] = []
        problems: list[Problem] = []
        for key, folder in self._catalogue.studies().items():
            try:
                items.append(_item(key, await self._read(folder)))
            except (LeydenError, OSError) as error:
                problems.append(Problem(where=str(folder), error=one_line(error)))
        items.sort(key=lambda item: item.updated or 0.0, reverse=True)
        return {"studies": items, "problems": problems}

    async def _study(self, request: Request) -> StudyDetail:
        return await self.detail(request.path_params["key"])

    async def _events(self, request: Request) -> Response:
        try:
            folder = self._folder(request.path_params["key"])
        except RunError as error:
            return error_answer(404, error)
        return event_stream(request, lambda: self._change(folder), self._is_stopping)

    async def detail(self, key: str) -> StudyDetail:
        """Return a study in full; raises RunError if there is none with this key."""
        read = await self._read(self._folder(key))
        plan, result = read.plan, read.result
        trials = [await self._trial(read, trial) for trial in result.trials]
        confirmation = await self._confirmation(read)
        is_of_best = confirmation is not None and result.best is not None and confirmation.trial == result.best.number
        own = read.confirmation[1] if read.confirmation is not None and is_of_best else None
        lines = conclusion(plan, result, own)
        if confirmation is not None and not is_of_best:
            lines.append(f"the confirmation is of trial {confirmation.trial}, which is no longer the best one")
        words = [] if plan.folder.parent == RUNS else ["--runs", str(plan.folder.parent)]
        return StudyDetail(
            **msgspec.structs.asdict(_item(key, read)),
            seeds=list(plan.seeds),
            steps=plan.steps,
            prunes=plan.prunes,
            space=[_searched(name, plan) for name in plan.space],
            tried=trials,
            best_trial=None if result.best is None else result.best.number,
            default_trial=None if result.default is None else result.default.number,
            difference=result.difference,
            conclusion=lines,
            confirmation=confirmation,
            importance=None if result.importance is None else dict(result.importance),
            importance_note=read.note,
            best_yaml=None if read.best is None else read.best[0],
            best_is_current=read.best is not None and read.best[1],
            train_command=None
            if read.best is None
            else shlex.join(train_command(plan.folder / BEST_FILE, plan, words)),
            compared=_compared(result, trials),
        )

    def _folder(self, key: str) -> Path:
        found = self._catalogue.studies().get(key)
        if found is None:
            raise RunError(f"there is no study {key!r} here")
        return found

    async def _read(self, folder: Path) -> _Read:
        """Return what a study's folder holds; it is read again only if it has changed."""
        async with self._reading.setdefault(folder, asyncio.Lock()):
            stamp = _stamp(folder)
            known = self._known.get(folder)
            if known is None or known.stamp != stamp:
                known = self._known[folder] = await asyncio.to_thread(_read, folder, stamp)
            return known

    async def _trial(self, read: _Read, trial: Trial) -> TrialItem:
        plan = read.plan
        folders = run_folders(plan, trial)
        return TrialItem(
            number=trial.number,
            values=dict(trial.values),
            shown={key: shown_value(plan, trial, key) for key in plan.space},
            score=trial.score,
            state=trial.state,
            reason=trial.reason,
            default=trial.is_default,
            past=trial.is_past,
            reported=[(described(place, plan.seeds), score) for place, score in sorted(trial.reported.items())],
            runs=await self._runs(folders, read.scores.get(trial.number, {})),
        )

    async def _runs(self, folders: dict[int, Path], scores: dict[int, float]) -> list[TrialRun]:
        items = await self._catalogue.items_in(list(folders.values()))
        return [
            _run(folder, seed, item, scores.get(seed))
            for (seed, folder), item in zip(folders.items(), items, strict=True)
            if item is not None or folder.exists() or seed in scores
        ]

    async def _confirmation(self, read: _Read) -> ConfirmationItem | None:
        if read.confirmation is None or read.result.default is None:
            return None
        number, found = read.confirmation
        runs: list[TrialRun] = []
        for one in (number, read.result.default.number):
            runs += await self._runs(
                {seed: read.plan.folder / f"confirm-{one}-seed-{seed}" for seed in found.seeds}, {}
            )
        return ConfirmationItem(
            trial=number,
            held_out=found.held_out.name,
            seeds=list(found.seeds),
            best=found.best,
            default=found.default,
            difference=found.difference,
            failures=list(found.failures),
            runs=runs,
        )

    async def _change(self, folder: Path) -> Any:
        """Return what differs when the study has gone on."""
        read = await self._read(folder)
        running = [trial for trial in read.result.trials if trial.state == "running"]
        folders = [path for trial in running for path in run_folders(read.plan, trial).values()]
        confirming = sorted(folder.glob("confirm-*-seed-*"))
        items = [item for item in await self._catalogue.items_in([*folders, *confirming]) if item is not None]
        return {
            "state": _state(read),
            "trials": len(read.result.trials),
            "finished": read.result.finished,
            "changed": repr(read.stamp),
            "runs": [(item.key, item.state, item.step) for item in items],
        }


def _read(folder: Path, stamp: tuple[Any, ...]) -> _Read:
    plan = read_plan(folder)
    trials = stored_trials(folder, list(plan.space))
    importance, note = None, None
    if is_installed():
        importance = importance_of(trials, plan.space)
    else:
        note = f"importance: it needs the library optuna, which is not installed here: {EXTRA}"
    result = result_of(plan, trials, importance)
    means = {trial.number: _means(plan, trial) for trial in trials}
    return _Read(
        stamp=stamp,
        plan=plan,
        result=result,
        confirmation=stored_confirmation(plan, result),
        best=stored_best(plan, result.best),
        scores=means,
        note=note or importance_lines(result)[0],
    )


def _means(plan: StudyPlan, trial: Trial) -> dict[int, float]:
    if trial.state == "failed":
        return {}
    return {seed: sum(own.values()) / len(own) for seed, own in scores_by_seed(plan, trial).items()}


def _stamp(folder: Path) -> tuple[Any, ...]:
    """Return what differs when a study's folder has changed."""
    files = [folder / name for name in (STUDY_FILE, STORAGE_FILE, BEST_FILE)]
    for run in sorted(folder.glob("confirm-*-seed-*")):
        files += [run / "report.json", run / "versions.jsonl"]
    return (is_running(folder), *(_changed(path) for path in files))


def _changed(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _state(read: _Read) -> StudyState:
    if read.stamp[0]:
        return "running"
    return "interrupted" if any(trial.state == "running" for trial in read.result.trials) else "ended"


def _item(key: str, read: _Read) -> StudyItem:
    plan, result = read.plan, read.result
    storage = _changed(plan.folder / STORAGE_FILE)
    return StudyItem(
        key=key,
        name=plan.name,
        folder=str(plan.folder),
        state=_state(read),
        searched=list(plan.space),
        held_out=plan.measured.name,
        is_share=result.is_share,
        trials=len(result.trials),
        finished=result.finished,
        best=None if result.best is None else result.best.score,
        default=None if result.default is None else result.default.score,
        confirmed=None if read.confirmation is None else read.confirmation[1].difference,
        updated=None if storage is None else storage[0] / 1e9,
    )


def _searched(key: str, plan: StudyPlan) -> SearchedKey:
    domain = plan.space[key]
    if isinstance(domain, Range):
        return SearchedKey(key=key, domain=str(domain), low=domain.low, high=domain.high, log=domain.log)
    return SearchedKey(key=key, domain=str(domain), choices=list(domain.settings))


def _run(folder: Path, seed: int, item: RunItem | None, score: float | None) -> TrialRun:
    return TrialRun(
        name=folder.name,
        seed=seed,
        key=None if item is None else item.key,
        state=None if item is None else item.state,
        step=0 if item is None else item.step,
        steps=None if item is None else item.steps,
        score=score if item is None or item.state == "finished" else None,
    )


def _compared(result: StudyResult, trials: Sequence[TrialItem]) -> list[str]:
    """Return the keys of runs of the best trial and of the default, the same number of each."""
    if result.best is None or result.default is None or not result.is_better:
        return []
    by_number = {trial.number: trial for trial in trials}
    pairs = zip(by_number[result.best.number].runs, by_number[result.default.number].runs, strict=False)
    keys = [(ours.key, theirs.key) for ours, theirs in pairs if ours.key is not None and theirs.key is not None]
    return [key for pair in keys[: MOST_COMPARED // 2] for key in pair]
