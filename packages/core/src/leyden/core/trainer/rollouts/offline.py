"""Rollouts that another run, or an application in production, left in a store, as trajectories to learn from.

Nothing is written to that store. Knows nothing of what is learned.
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
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.retokenise import CannotTell, retold
from leyden.core.trainer.rollouts.selection import make_selector
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import StoredResult
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.choices import unused_choices
from leyden.core.trajectory.group import group_by_task
from leyden.core.trajectory.select import Selector

ANSWERED_BY_OTHERS = frozenset({UPSTREAM, FROZEN})
"""Calls that a policy could not be trained on as its own, and can imitate all the same."""


def locate(source: str, runs: Path) -> str:
    """The URI of the store that `source` names: itself, or a run's folder or name. Raises UsageError for one unmade."""
    run = run_of(source, runs)
    uri = source if run is None else run.store_uri
    file = Path(uri.partition("://")[2].removeprefix("/"))
    if uri.startswith("sqlite://") and not file.is_file():
        raise UsageError(f"there is no store {file}, which {source} names")
    return uri


def run_of(source: str, runs: Path) -> RunFolder | None:
    """The run whose rollouts `source` holds, where that is known: a run by its name or folder, or the URI of its store.

    Raises RunError for a name that no run has.
    """
    if "://" not in source:
        folder = Path(source)
        return RunFolder(folder) if (folder / "config.yaml").exists() else RunFolder.open(runs, source)[0]
    scheme, _, place = source.partition("://")
    folder = RunFolder(Path(place.removeprefix("/")).parent)
    of_sqlite = scheme.startswith("sqlite") and folder.store_uri == source
    return folder if of_sqlite and folder.config_file.exists() else None


async def read_stored(source: str, folder: RunFolder, config: RunConfig) -> StoredRollouts:
    """Read what the run in `folder` learns from: the first time all there is, later the same rollouts again.

    Raises UsageError for a source that cannot be read.
    """
    from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec

    uri = locate(source, folder.path.parent)
    policy, *others = config.policies.values()
    if others:
        names = ", ".join(config.policies)
        raise UsageError(f"spans do not say which of {names} is to learn from a call; give one policy")
    codec = await asyncio.to_thread(HuggingFaceCodec, policy)
    found = await read_store(uri, codec, make_selector(config), only=folder.read_rollouts(source))
    folder.note_rollouts(source, found.ids)
    return found


def described(found: StoredRollouts) -> StoredResult:
    """What was found, for the report."""
    return StoredResult(
        rollouts=len(found.ids),
        calls=sum(len(trajectory.transitions) for group in found.groups for trajectory in group.trajectories),
        retokenised=dict(found.retokenised),
        rollouts_left_out=dict(found.left_out),
        calls_left_out=dict(found.calls_left_out),
    )


async def read_store(uri: str, codec: Codec, selector: Selector, only: Collection[str] | None = None) -> StoredRollouts:
    """Read what the store at `uri` holds; of several tries at a rollout, the last. `only` these rollouts, if given.

    Calls are told in the tokens of `codec`'s policy. Held-out rollouts are left out: they measure somebody's training.
    Raises RunError when one of `only` is not there any more.
    """
    # Time stands still: to read a store must not end what is under way in it.
    store = await open_store(uri, clock=lambda: 0.0)
    try:
        return await _read(store, codec, selector, only)
    finally:
        await store.close()


async def _read(
    store: LightningStore, codec: Codec, selector: Selector, only: Collection[str] | None
) -> StoredRollouts:
    rollouts = sorted(await store.query_rollouts(), key=lambda rollout: (rollout.start_time, rollout.rollout_id))
    if only is not None:
        rollouts = [rollout for rollout in rollouts if rollout.rollout_id in only]
        if missing := set(only) - {rollout.rollout_id for rollout in rollouts}:
            raise RunError(f"{len(missing)} rollouts that the run learns from are gone, {min(missing)} among them")
    told = _Told(codec, selector)
    left_out: Counter[str] = Counter()
    trajectories: list[Trajectory] = []
    for rollout in rollouts:
        reason = objection(rollout)
        if reason is not None or not isinstance(rollout, AttemptedRollout):
            left_out[reason or NEVER_BEGUN] += 1
            continue
        spans = (await store.query_spans(rollout.rollout_id, rollout.attempt.attempt_id)).items
        trajectories.append(await asyncio.to_thread(told.trajectory, rollout, spans))
    groups = group_by_task(trajectories, {rollout.rollout_id: _task_id(rollout) for rollout in rollouts})
    ids = tuple(rollout.rollout_id for rollout in rollouts)
    return StoredRollouts(groups, ids, left_out, told.left_out, told.retokenised)


def objection(rollout: Rollout) -> str | None:
    """Why a rollout is left out, whatever it holds."""
    if rollout.mode in ("val", "test"):
        return HELD_OUT_THERE
    return None if rollout.status in FINISHED_ROLLOUT else UNFINISHED


def _task_id(rollout: Rollout) -> str:
    """Equal tasks have one id; a rollout without a task has its own."""
    task: Task = rollout.input
    return rollout.rollout_id if task is None else msgspec.json.encode(task, order="deterministic").decode()


class _Told:
    """Tells attempts in the tokens of one policy, and counts what that took."""

    def __init__(self, codec: Codec, selector: Selector) -> None:
        self._codec, self._selector = codec, selector
        self.left_out: Counter[str] = Counter()
        self.retokenised: Counter[str] = Counter()

    def trajectory(self, rollout: AttemptedRollout, spans: Sequence[Span]) -> Trajectory:
        """The trajectory of a rollout's last attempt."""
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
                self._tell(span, own.get(span.span_id), transitions, untrained)
        self.left_out.update(untrained.values())
        return replace(recorded, transitions=tuple(transitions), untrained=untrained)

    def _tell(self, span: Span, own: Transition | None, told: list[Transition], untrained: dict[str, str]) -> None:
        try:
            transition = retold(span, self._codec)
        except CannotTell as reason:
            untrained[span.span_id] = str(reason)
            return
        if transition.retokenised:
            self.retokenised[str(span.attributes.get(semconv.NOT_TRAINED, OTHER_TEMPLATE))] += 1
        elif own is not None:
            # What other weights thought of the tokens, and at which temperature, is nothing to hold a policy against.
            transition = replace(own, temperature=1.0, logprobs=log_probs([]))
        told.append(transition)
