"""Reader of outcomes: reads the rollouts of a run's own store, and of stores that it learns from, one at a time."""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from leyden.core.data.rollout import Rollout
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig, endpoint_name, load_config
from leyden.core.trainer.rollouts.offline import locate, objection
from leyden.core.trainer.rollouts.recorded import RecordedRollout, find_rollout, no_rollout, read_rollout
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation
from leyden.core.trainer.why.learning import Learning
from leyden.core.trainer.why.trained_or_reason import RolloutExplanation, RunFacts, explain
from leyden.core.trajectory.select import Selector

PAGE = 1000
"""Number of rollouts per query. Spans are queried for each rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSource:
    """Store whose rollouts a run learns from."""

    location: StoreLocation
    name: str = ""
    """Name that the run has for the store; empty for its own store."""
    only: Collection[str] | None = None
    """Ids of the rollouts that the run read from it; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Run, as recorded in its folder."""

    folder: RunFolder
    config: RunConfig
    facts: RunFacts
    report: RunReport | None
    """None while the run has not finished."""
    sources: tuple[RolloutSource, ...]
    unreadable: tuple[str, ...]
    """Sources that no longer exist, each with the reason and the number of its rollouts that the run read."""

    @classmethod
    def open(cls, runs: Path, name: str) -> "RunRecord":
        """Open a run. Raises RunError when there is none, or when it has no store yet."""
        folder, config = RunFolder.open(runs, name)
        sources, unreadable = sources_of(folder)
        return cls(
            folder=folder,
            config=config,
            facts=_run_facts(folder, config),
            report=folder.report(),
            sources=sources,
            unreadable=unreadable,
        )

    async def explanations(self) -> AsyncGenerator[tuple[RolloutSource, RolloutExplanation]]:
        """Yield the outcome of every rollout with its source: the run's own rollouts first, in order of creation."""
        for source in self.sources:
            async with _reading(source.location) as store:
                offset = 0
                while page := (await store.query_rollouts(limit=PAGE, offset=offset)).items:
                    offset += len(page)
                    for rollout in page:
                        if source.only is None or rollout.rollout_id in source.only:
                            yield source, await self._explanation(store, rollout, source)

    async def explanation(self, wanted: str) -> RolloutExplanation:
        """Return the outcome of the rollout whose id is or contains `wanted`.

        Raises RunError unless exactly one matches.
        """
        async with _found(self.folder, self.sources, wanted) as (store, rollout, source):
            return await self._explanation(store, rollout, source)

    async def _explanation(self, store: LightningStore, rollout: Rollout, source: RolloutSource) -> RolloutExplanation:
        # Spans first: for an attempt that starts in between, there are then no spans without an attempt.
        spans = (await store.query_spans(rollout.rollout_id)).items
        attempts = (await store.query_attempts(rollout.rollout_id)).items
        facts = replace(self.facts, is_own=False, objection=objection(rollout)) if source.name else self.facts
        return explain(rollout, attempts, spans, facts)


def sources_of(folder: RunFolder) -> tuple[tuple[RolloutSource, ...], tuple[str, ...]]:
    """Return the stores with a run's rollouts, its own first, and why others cannot be read.

    Finding another run by its address starts an event loop of its own.
    """
    sources, unreadable = [RolloutSource(location=folder.kept_rollouts())], list[str]()
    for source in folder.sources():
        only = folder.read_rollouts(source) or []
        try:
            sources.append(
                RolloutSource(location=locate(source, folder.path.parent), name=source, only=frozenset(only))
            )
        except UsageError as error:
            unreadable.append(f"{len(only)} rollouts of {source} cannot be read: {error}")
    return tuple(sources), tuple(unreadable)


async def recorded_in(folder: RunFolder, sources: Sequence[RolloutSource], wanted: str) -> RecordedRollout:
    """Return the rollout whose id is or contains `wanted`, with its attempts and spans.

    Raises RunError unless exactly one matches.
    """
    async with _found(folder, sources, wanted) as (store, rollout, _):
        return await read_rollout(store, rollout.rollout_id)


@asynccontextmanager
async def _found(
    folder: RunFolder, sources: Sequence[RolloutSource], wanted: str
) -> AsyncGenerator[tuple[LightningStore, Rollout, RolloutSource]]:
    for source in sources:
        async with _reading(source.location) as store:
            found = await find_rollout(store, wanted)
            if found is not None and (source.only is None or found.rollout_id in source.only):
                yield store, found, source
                return
    async with _reading(sources[0].location) as store:
        raise await no_rollout(store, folder.path.name, wanted)


def own_selector(config: RunConfig) -> Selector:
    """Return the run's selector without its predicate: user code is not loaded to inspect a run."""
    return Selector(
        agent_match=config.agent_match, span_match=config.span_match, attribute_match=config.attribute_match
    )


def run_facts_of(folder: RunFolder | None) -> RunFacts:
    """Return the facts about rollouts in a run's store; with None, no facts beyond the store's content."""
    return RunFacts(learning=None) if folder is None else _run_facts(folder, load_config(folder.config_file))


def _run_facts(folder: RunFolder, config: RunConfig) -> RunFacts:
    return RunFacts(
        learning=Learning.of(folder),
        selector=own_selector(config),
        runs_now=folder.is_in_use(),
        ended=" ".join((folder.failure() or "").split()),
        endpoint=endpoint_name(config),
    )


@asynccontextmanager
async def _reading(location: StoreLocation) -> AsyncGenerator[LightningStore]:
    """Open a store for reading only. The clock stands still: reading must not time out attempts that are running."""
    store = await location.open(clock=lambda: 0.0)
    try:
        yield store
    finally:
        await store.close()
