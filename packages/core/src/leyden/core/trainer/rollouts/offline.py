"""Reader of stored rollouts: turns rollouts of another run or of a production application into trajectories.

It writes nothing to that store.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from leyden.core.algorithm.base import StoredRollouts
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import log_probs
from leyden.core.data.reasons import (
    CHOICE_NOT_USED,
    FROZEN,
    HELD_OUT_THERE,
    NEVER_BEGUN,
    NOT_SELECTED,
    OTHER_TEMPLATE,
    UNFINISHED,
    UPSTREAM,
    why_not_trained,
)
from leyden.core.data.rollout import FINISHED_ROLLOUT, AttemptedRollout, Rollout, Task
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory, Transition
from leyden.core.errors import RunError, UsageError
from leyden.core.gateway.codec import Codec
from leyden.core.masking import mask_text
from leyden.core.store.base import LightningStore
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.retokenise import CannotRetokenise, retokenise
from leyden.core.trainer.rollouts.selection import make_selector
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import StoredResult
from leyden.core.trainer.run_folder.sharing.store_location import StoreLocation, file_of
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.choices import unused_choices
from leyden.core.trajectory.group import group_by_task
from leyden.core.trajectory.select import Selector

ANSWERED_BY_OTHERS = frozenset({UPSTREAM, FROZEN})
"""Reasons why a call cannot be trained as the policy's own, although the policy can imitate it."""


def locate(source: str, runs: Path) -> StoreLocation:
    """Return the store of `source`; see `located`."""
    return located(source, runs)[0]


def located(source: str, runs: Path) -> tuple[StoreLocation, RunFolder | None]:
    """Return the store of `source`, and the run that its rollouts belong to, or None if unknown.

    `source` is the URI of a store, or the folder, the name or the address URI#RUN of a run. Raises UsageError if no
    store exists. Finding a run by its address starts an event loop of its own.
    """
    run = run_of(source, runs)
    location = StoreLocation(source) if run is None else run.store_location
    if not location.exists and location.uri.startswith("sqlite:"):
        raise UsageError(f"there is no store {file_of(location.uri)}, which {mask_text(source)} names")
    return location, run


def run_of(source: str, runs: Path) -> RunFolder | None:
    """Return the run that the rollouts of `source` belong to, or None if unknown.

    `source` is the name, the folder or the address URI#RUN of a run, or the URI of its own store. Raises RunError for a
    run that does not exist.
    """
    if "://" not in source or "#" in source:
        folder = Path(source)
        return RunFolder(folder) if (folder / "config.yaml").exists() else RunFolder.open(runs, source)[0]
    if not source.startswith("sqlite:"):
        return None
    folder = RunFolder(file_of(source).parent)
    is_own = folder.config_file.exists() and folder.store_file == file_of(source)
    return folder if is_own else None


async def read_stored(source: str, folder: RunFolder, config: RunConfig) -> StoredRollouts:
    """Read the rollouts that the run in `folder` learns from.

    The first call reads all rollouts of the source; later calls read the same rollouts again. Raises UsageError for a
    source that cannot be read.
    """
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec

    location = await asyncio.to_thread(locate, source, folder.path.parent)
    policy, *others = config.policies.values()
    if others:
        names = ", ".join(config.policies)
        raise UsageError(f"spans do not name the policy that learns from a call: give one policy, not {names}")
    codec = await asyncio.to_thread(HuggingFaceCodec, policy)
    found = await read_store(location, codec, make_selector(config), only=folder.read_rollouts(source))
    folder.note_rollouts(source, found.ids)
    return found


def described(found: StoredRollouts) -> StoredResult:
    """Return the counts of the stored rollouts for the report."""
    return StoredResult(
        rollouts=len(found.ids),
        calls=sum(len(trajectory.transitions) for group in found.groups for trajectory in group.trajectories),
        retokenised=dict(found.retokenised),
        rollouts_left_out=dict(found.left_out),
        calls_left_out=dict(found.calls_left_out),
    )


async def read_store(
    location: StoreLocation, codec: Codec, selector: Selector, only: Collection[str] | None = None
) -> StoredRollouts:
    """Read the rollouts of a store or of a run, or only those whose ids are in `only`.

    Only the last attempt of each rollout is read. Calls are tokenised for the policy of `codec`. Held-out rollouts are
    left out, because they measure a policy. Raises RunError when a rollout of `only` no longer exists.
    """
    # The clock stands still: reading a store must not time out attempts that are running in it.
    store = await location.open(clock=lambda: 0.0)
    try:
        return await _read(store, codec, selector, only)
    finally:
        await store.close()


async def _read(
    store: LightningStore, codec: Codec, selector: Selector, only: Collection[str] | None
) -> StoredRollouts:
    found = (await store.query_rollouts()).complete()
    rollouts = sorted(found, key=lambda rollout: (rollout.start_time, rollout.rollout_id))
    if only is not None:
        rollouts = [rollout for rollout in rollouts if rollout.rollout_id in only]
        if missing := set(only) - {rollout.rollout_id for rollout in rollouts}:
            raise RunError(f"{len(missing)} rollouts that the run learns from no longer exist, such as {min(missing)}")
    converter = _Converter(codec, selector)
    left_out: Counter[str] = Counter()
    trajectories: list[Trajectory] = []
    for rollout in rollouts:
        reason = objection(rollout)
        if reason is not None or not isinstance(rollout, AttemptedRollout):
            left_out[reason or NEVER_BEGUN] += 1
            continue
        spans = (await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)).items
        trajectories.append(await asyncio.to_thread(converter.trajectory, rollout, spans))
    groups = group_by_task(trajectories, {rollout.rollout_id: _task_id(rollout) for rollout in rollouts})
    ids = tuple(rollout.rollout_id for rollout in rollouts)
    return StoredRollouts(groups, ids, left_out, converter.left_out, converter.retokenised)


def objection(rollout: Rollout) -> str | None:
    """Return the reason why a rollout is left out regardless of its spans, else None."""
    if rollout.mode in ("val", "test"):
        return HELD_OUT_THERE
    return None if rollout.status in FINISHED_ROLLOUT else UNFINISHED


def _task_id(rollout: Rollout) -> str:
    """Return a task id: equal tasks share one; a rollout without a task gets its own id."""
    task: Task = rollout.input
    return rollout.rollout_id if task is None else msgspec.json.encode(task, order="deterministic").decode()


class _Converter:
    """Converter of attempts into the tokens of one policy; counts the calls left out and re-tokenised."""

    def __init__(self, codec: Codec, selector: Selector) -> None:
        self._codec, self._selector = codec, selector
        self.left_out: Counter[str] = Counter()
        self.retokenised: Counter[str] = Counter()

    def trajectory(self, rollout: AttemptedRollout, spans: Sequence[Span]) -> Trajectory:
        """Return the trajectory of a rollout's last attempt."""
        recorded = assemble(rollout, rollout.attempt, spans, self._selector)
        own = {call.span_id: call for call in recorded.transitions}
        calls = sorted(filter(is_recorded_call, spans), key=lambda span: (span.start_time, span.sequence_id))
        by_id, unused = {span.span_id: span for span in spans}, unused_choices(calls, spans)
        transitions: list[Transition] = []
        untrained: dict[str, str] = {}
        for span in calls:
            reason = span.attributes.get(semconv.NOT_TRAINED)
            if reason is not None and reason not in ANSWERED_BY_OTHERS:
                untrained[span.span_id] = why_not_trained(str(reason), recorded.failure)
            elif not self._selector.selects(span, by_id):
                untrained[span.span_id] = NOT_SELECTED
            elif span.span_id in unused:
                untrained[span.span_id] = CHOICE_NOT_USED
            else:
                self._convert(span, own.get(span.span_id), transitions, untrained)
        self.left_out.update(untrained.values())
        return replace(recorded, transitions=tuple(transitions), untrained=untrained)

    def _convert(
        self, span: Span, own: Transition | None, transitions: list[Transition], untrained: dict[str, str]
    ) -> None:
        try:
            transition = retokenise(span, self._codec)
        except CannotRetokenise as reason:
            untrained[span.span_id] = str(reason)
            return
        if transition.retokenised:
            self.retokenised[str(span.attributes.get(semconv.NOT_TRAINED, OTHER_TEMPLATE))] += 1
        elif own is not None:
            # Drop log-probabilities and sampling: they come from other weights and cannot serve as the policy's own.
            transition = replace(own, temperature=1.0, sampling=None, logprobs=log_probs([]))
        transitions.append(transition)
