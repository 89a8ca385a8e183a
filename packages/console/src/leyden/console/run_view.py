"""What the console shows of one run: everything that its pages request, put together from the run's readers."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from leyden.console import bottlenecks, health
from leyden.console.call_detail import TrainedTokens, messages_of, prompt_of, response_of, step_totals, trained_in
from leyden.console.plain import one_line, plain
from leyden.console.prompts import prompts_view
from leyden.console.rollout_detail import attempts_of, joined, outcome_of, rollout_view, span_view
from leyden.console.rollout_index import (
    COLUMNS,
    PAGE,
    RolloutIndex,
    Row,
    newest_of,
    row_of,
    set_of,
    task_of,
    training_group,
    with_outcome,
)
from leyden.console.runs.catalogue import Catalogue
from leyden.console.runs.run import Run, RunItem
from leyden.console.steps import Steps, steps_of
from leyden.console.vocabulary import Vocabulary, find_vocabulary
from leyden.core.data import semconv
from leyden.core.data.reasons import HELD_OUT
from leyden.core.data.rollout import Rollout
from leyden.core.data.span import Span
from leyden.core.errors import RunError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import load_config
from leyden.core.trainer.rollouts.recorded import RecordedRollout, read_rollout
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.prompts.search import read_prompt_search
from leyden.core.trainer.why.reading import RunRecord
from leyden.core.trainer.why.summary import Summary, summarise
from leyden.core.trainer.why.trained_or_reason import RolloutExplanation, RunFacts, explain
from leyden.core.trajectory.calls import is_recorded_call

Found = TypeVar("Found")
UNWATCHED = 30.0
"""Seconds after the last request of a page, or the last event to one, in which rollouts are still read."""

log = logging.getLogger(__name__)


class RunView:
    """One run, with the index of its rollouts, which is read in the background as long as someone looks at it."""

    def __init__(self, key: str, run: Run, labelled: Callable[[RunItem], RunItem] = lambda item: item) -> None:
        self.key, self.run, self._labelled = key, run, labelled
        self.index = RolloutIndex(run)
        self._following: asyncio.Task[None] | None = None
        self._watched = 0.0
        """When `follow` was called last, by the monotonic clock."""
        self._vocabularies: dict[str | None, Vocabulary | str] = {}
        self._why: tuple[RunFacts, Summary] | None = None

    def follow(self) -> None:
        """Read the rollouts in the background until this has not been called for `UNWATCHED` seconds."""
        self._watched = time.monotonic()
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self.index.follow(self._is_watched))

    def _is_watched(self) -> bool:
        return time.monotonic() - self._watched < UNWATCHED

    async def close(self) -> None:
        """Stop reading."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    # --- The run as a whole

    async def item(self) -> RunItem:
        """Return the run as one line."""
        return self._labelled(await self.run.item(self.key))

    async def detail(self) -> dict[str, Any]:
        """Return the run with its configuration, report, versions and phases."""
        item = await self.item()
        problems: list[str] = []
        report = await _noting(problems, self.run.report(), None)
        config = await self.run.config()
        policy: str | dict[str, str] | None = config.get("policy")
        versions = [
            {
                "version": one.version,
                "parent": one.parent,
                "created": one.created,
                "held_out": one.held_out,
                "sampled": one.sampled,
                "has_weights": one.has_weights,
                "kept": one.kept,
                "why": one.why,
            }
            for one in await _noting(problems, self.run.versions(), ())
        ]
        problems.append((await self.run.metrics()).damage)
        return {
            **msgspec.to_builtins(item),
            "config": plain(config),
            "report": report,
            "versions": versions,
            "phases": msgspec.to_builtins(bottlenecks.phases(report)),
            "commands": msgspec.to_builtins(list(self.run.commands())),
            "several_policies": list(policy) if isinstance(policy, dict) else [],
            "pages": list(self.run.pages(config)),
            "rollouts": self.index.total,
            "others": self.run.others,
            "problems": [one for one in problems if one not in ("", item.error)],
        }

    async def steps(self, after: int, generation: str | None) -> Steps:
        """Return the steps since line `after` of a generation."""
        return steps_of(await self.run.metrics(), after, generation)

    async def step(self, number: int) -> dict[str, Any]:
        """Return what a step was trained on. Raises RunError if the run has not taken it."""
        record = await asyncio.to_thread(self.run.token_record, number)
        taken = steps_of(await self.run.metrics()).steps
        if record is None and number not in taken:
            last = f"its last one is {taken[-1]}" if taken else "it has taken none"
            raise RunError(f"the run has no step {number}: {last}")
        return {
            "step": number,
            "recorded": record is not None,
            "policies": {} if record is None else step_totals(record),
        }

    async def change(self) -> dict[str, Any]:
        """Return what tells whether something about the run has changed."""
        metrics, item = await self.run.metrics(), await self.run.item(self.key)
        return {
            "lines": len(metrics.lines),
            "generation": metrics.generation,
            "state": item.state,
            "error": item.error,
            "began": item.began,
            "step": item.step,
            "ends": await self.run.expected_end(),
            "rollouts": self.index.total,
            "rows": self.index.changes,
            "problem": self.index.problem,
        }

    async def why(self) -> Summary:
        """Return the counts of `leyden why`; raises RunError for a run without a folder."""
        if self.run.path is None:
            raise RunError("which rollouts were trained is in the run's folder, which is not on this machine")
        facts = await self.run.facts()
        if self._why is None or self._why[0] is not facts:
            record = RunRecord.open(self.run.path.parent, str(self.run.path))
            # in a thread with a loop of its own: it reads every span, and other pages must not wait for it
            self._why = (facts, await asyncio.to_thread(lambda: asyncio.run(summarise(record))))
        return self._why[1]

    async def health(self) -> health.Health:
        """Return signs of life, alerts and signals."""
        self.follow()
        item, metrics = await self.run.item(self.key), await self.run.metrics()
        return health.health_of(item, metrics.lines, self.index)

    async def bottlenecks(self) -> bottlenecks.Bottlenecks:
        """Return where the seconds went."""
        metrics, config = await self.run.metrics(), await self.run.config()
        phases = bottlenecks.phases(await self.run.report())
        seconds = bottlenecks.step_seconds(metrics.lines)
        sample = await self._sample()
        parts = bottlenecks.inside(sample)
        return bottlenecks.Bottlenecks(
            phases=phases,
            steps=seconds,
            inside=parts,
            sampled=len(sample),
            findings=bottlenecks.findings_of(phases, seconds, parts, metrics.lines, bottlenecks.loop_of(config)),
        )

    async def _sample(self) -> list[tuple[Rollout, Sequence[Span]]]:
        """Return some of the newest training rollouts with their spans."""
        store = await self.run.store()
        if store is None:
            return []
        # by its name: held-out rollouts may be by far the most
        page = await store.query_rollouts(
            rollout_id_contains="train-", sort_by="start_time", sort_order="desc", limit=PAGE
        )
        trained = [one for one in page if one.mode == "train" and one.status == "succeeded"][: bottlenecks.SAMPLE]
        return [(rollout, (await store.query_spans(rollout.rollout_id, "latest")).items) for rollout in trained]

    async def prompts(self) -> dict[str, Any]:
        """Return the candidates of a search for prompts, and the texts of the versions."""
        search = None
        if self.run.path is not None:
            folder = RunFolder(self.run.path)
            with suppress(UsageError):
                search = read_prompt_search(folder, load_config(folder.config_file))
        return prompts_view(search, await self.run.versions())

    # --- Rollouts and calls

    def rollouts(self, cursor: int, generation: str | None = None) -> dict[str, Any]:
        """Return the rows that are new or changed since a cursor, as columns."""
        self.follow()
        rows, following = self.index.since(cursor, generation)
        return {
            "generation": self.index.generation,
            "count": len(rows),
            "next": following,
            "total": self.index.total,
            "indexed": len(self.index.rows),
            "problem": self.index.problem or None,
            "columns": columns(rows),
        }

    async def rollout(self, rollout_id: str) -> dict[str, Any]:
        """Return one rollout with its spans, what became of it, and its group. Raises RunError if there is none."""
        recorded, found = await self._recorded(rollout_id)
        latest = recorded.attempts[-1][1] if recorded.attempts else []
        is_gone = self.run.is_process_gone
        return {
            "rollout": {
                **rollout_view(recorded.rollout, is_gone=is_gone),
                "set": set_of(recorded.rollout),
                "task": task_of(recorded.rollout),
                "version": newest_of([span for span in latest if is_recorded_call(span)]),
                "group": training_group(recorded.rollout),
            },
            "reward": found.reward,
            "outcome": outcome_of(found),
            "siblings": await self._siblings(recorded.rollout),
            "attempts": attempts_of(recorded, found, is_gone=is_gone),
        }

    async def call(self, rollout_id: str, span_id: str, attempt: str | None) -> dict[str, Any]:
        """Return one model call with its tokens. Raises RunError if there is none."""
        recorded, found = await self._recorded(rollout_id)
        spans = [
            (span, own)
            for own, all_spans in recorded.attempts
            for span in all_spans
            if attempt in (None, own.attempt_id)
        ]
        span = next((span for span, _ in spans if span.span_id == span_id), None)
        if span is None:
            raise RunError(f"rollout {rollout_id!r} has no span {span_id!r}")
        explained = next((call for call in found.calls if call.span_id == span_id), None)
        parent = next((above for one, above in joined([one for one, _ in spans]) if one is span), None)
        vocabulary = await self._vocabulary(span.text(semconv.POLICY))
        known = vocabulary if isinstance(vocabulary, Vocabulary) else None
        trained = list[TrainedTokens]()
        for step in dict.fromkeys(one.step for one in (explained.steps if explained else ())):
            record = await asyncio.to_thread(self.run.token_record, step)
            trained += [] if record is None else trained_in(step, record, span)
        return {
            "span": span_view(span, parent, explained),
            **messages_of(span),
            "vocabulary": None if known is not None else vocabulary,
            "prompt": prompt_of(span, known),
            "response": response_of(span, known),
            "trained": trained,
            "untrained": found.reason if found.reason == HELD_OUT else None if explained is None else explained.reason,
        }

    async def _recorded(self, rollout_id: str) -> tuple[RecordedRollout, RolloutExplanation]:
        store = await self._store()
        if await store.get_rollout_by_id(rollout_id) is None:
            raise RunError(f"there is no rollout {rollout_id!r} in this run")
        recorded = await read_rollout(store, rollout_id)
        facts = await self.run.facts()
        attempts = [attempt for attempt, _ in recorded.attempts]
        spans = [span for _, own in recorded.attempts for span in own]
        # as a thread: a rollout with thousands of spans must not hold up other pages
        found = await asyncio.to_thread(partial(explain, recorded.rollout, attempts, spans, facts))
        return recorded, found

    async def _siblings(self, rollout: Rollout) -> list[dict[str, Any]]:
        group = training_group(rollout)
        if not group:
            return []
        store = await self._store()
        page = await store.query_rollouts(rollout_id_contains=f"{group}-", limit=PAGE)
        own = [one.rollout_id for one in page if training_group(one) == group]
        rows = [self.index.rows.get(name) or await self._row(store, name) for name in own]
        return [
            {"id": row.id, "reward": row.reward, "status": row.status, "trained": row.trained}
            for row in rows
            if row is not None
        ]

    async def _row(self, store: LightningStore, rollout_id: str) -> Row | None:
        rollout = await store.get_rollout_by_id(rollout_id)
        if rollout is None:
            return None
        spans = (await store.query_spans(rollout_id)).items
        return with_outcome(row_of(rollout, spans, is_gone=self.run.is_process_gone), (await self.run.facts()).learning)

    async def _store(self) -> LightningStore:
        store = await self.run.store()
        if store is None:
            raise RunError("the run has no store yet: it has not begun")
        return store

    async def _vocabulary(self, policy: str | None) -> Vocabulary | str:
        known = self._vocabularies.get(policy)
        if not isinstance(known, Vocabulary):  # an exported policy may have come since
            folders = await self.run.policy_folders()
            known = await asyncio.to_thread(find_vocabulary, folders, policy)
            self._vocabularies[policy] = known
        return known


async def _noting(problems: list[str], read: Awaitable[Found], otherwise: Found) -> Found:
    """Return what was read. If its file is damaged, note that and return `otherwise`: it must hide nothing else."""
    try:
        return await read
    except RunError as error:
        problems.append(one_line(error))
        return otherwise


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return rows as columns."""
    return {name: [getattr(row, name) for row in rows] for name in COLUMNS}


class RunViews:
    """Views of the runs of a catalogue, made when they are first requested."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._views: dict[str, RunView] = {}

    async def view(self, key: str) -> RunView:
        """Return the view of the run with this key; raises RunError if there is none."""
        run = await self.catalogue.run(key)
        known = self._views.get(key)
        if known is None or known.run is not run:
            replaced, known = known, RunView(key, run, self.catalogue.labelled)
            self._views[key] = known
            if replaced is not None:
                await replaced.close()
        return known

    async def close(self) -> None:
        """Close the views; the catalogue stays open."""
        for view in self._views.values():
            await view.close()
