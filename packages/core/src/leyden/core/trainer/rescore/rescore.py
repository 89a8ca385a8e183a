"""`rescore`: scores a run's stored rollouts with another reward, and compares both. Changes nothing in the run."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from leyden.core.data.similar_messages import Tally
from leyden.core.errors import UsageError
from leyden.core.policy.checkpoints.atomic import replace_file
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rescore.advantages import AdvantageComparison, compare_advantages
from leyden.core.trainer.rescore.comparison import (
    complete_groups,
    dimension_distributions,
    distribution,
    group_changes,
    pairs_of,
    rank_changes,
)
from leyden.core.trainer.rescore.control import ScoreAll, own_scores
from leyden.core.trainer.rescore.messages import Score
from leyden.core.trainer.rescore.result import FORMAT, Control, Rescored, RescoredRollout
from leyden.core.trainer.rescore.scoring import ScoringLimits, ScoringProcess
from leyden.core.trainer.rescore.stored_rollouts import NO_RESULT, StoredRollout, Which, check_which, stored_rollouts
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.why.reading import own_selector

MOST_ERRORS = 10
Progress = Callable[[int, int, str], None]
"""Callback that receives the number of scored rollouts, the number of those to be scored, and the name of the phase."""
CONTROL, OTHER = "1 of 2, control: the run's own reward", "2 of 2: the other reward"
"""The phases, where there are two; the only one has no name."""


class RescoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is scored, and with what."""

    reward: str
    """Import string of the new reward function."""
    weights: dict[str, float] = {}
    """Weight of each dimension of the new reward.

    Where it is empty, the run's own weights count for the run's own function; otherwise each dimension has weight 1.
    """
    which: Which = "train"
    limit: int | None = None
    """Number of rollouts, the oldest first, after which no other group is begun; None: all."""
    limits: ScoringLimits = ScoringLimits()

    def __post_init__(self) -> None:
        """Raise UsageError for a value that cannot work."""
        check_which(self.which)


def rescore(runs: Path, name: str, options: RescoreOptions, progress: Progress | None = None) -> Rescored:
    """Score the stored rollouts of a run with another reward, and return what would change.

    The run's own reward function is called first, to prove that the stored results reproduce the stored rewards. Both
    functions run in processes of their own. Raises RunError for a run without rollouts, and UsageError for a reward
    that cannot be loaded or if no rollout can be scored.
    """
    folder, config = RunFolder.open(runs, name)
    folder.kept_rollouts()
    rollouts = asyncio.run(_read(folder, config, options))
    if not rollouts:
        raise UsageError(f"run {folder.path.name!r} has no finished rollouts of the kind {options.which!r}")
    _check_some_result(rollouts)
    weights = _weights(options, config)
    is_own = options.reward == config.reward and weights == config.reward_weights
    calls = _Calls(options.limits, progress)
    with ScoringProcess(options.reward, weights, options.limits):
        pass  # an error in the new reward is reported before the run's own takes its time
    if is_own:
        scores = calls.score_all(options.reward, weights, rollouts)
        control, own = own_scores(folder, config, rollouts, _returning(scores))
    else:
        calls.phase = "" if config.reward is None else CONTROL
        control, own = own_scores(folder, config, rollouts, calls.score_all)
        calls.phase = calls.phase and OTHER
        scores = calls.score_all(options.reward, weights, rollouts)
    _check_some_score(scores)
    rescored = [_rescored(one, scores[one.rollout_id], own.get(one.rollout_id)) for one in rollouts]
    options = msgspec.structs.replace(options, weights=weights)
    return _result(folder, config, options, control, rollouts, rescored)


def save(result: Rescored, path: Path) -> None:
    """Write the result as JSON.

    Raises UsageError if the file cannot be written, or if it exists and is no result of re-scoring.
    """
    if path.exists() and not _is_result(path):
        raise UsageError(f"{path} exists and is no result of leyden rescore; choose another file")
    try:
        replace_file(path, msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def load(path: Path) -> Rescored:
    """Read a result that `save` wrote; raises UsageError for any other file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Rescored)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is no result of leyden rescore: {error}") from None


class _Calls:
    """Calls of reward functions, one rollout after the other."""

    phase = ""

    def __init__(self, limits: ScoringLimits, progress: Progress | None) -> None:
        self._limits, self._progress = limits, progress

    def score_all(
        self, reward: str, weights: Mapping[str, float], rollouts: Sequence[StoredRollout]
    ) -> dict[str, Score]:
        """Return the scores of rollouts by id."""
        scores: dict[str, Score] = {}
        with ScoringProcess(reward, weights, self._limits) as process:
            for rollout in rollouts:
                scores[rollout.rollout_id] = process.score(rollout)
                if self._progress is not None:
                    self._progress(len(scores), len(rollouts), self.phase)
        return scores


async def _read(folder: RunFolder, config: RunConfig, options: RescoreOptions) -> list[StoredRollout]:
    # The clock stands still: reading a store must not time out attempts that are running in it.
    store = await folder.store_location.open(clock=lambda: 0.0)
    try:
        found = stored_rollouts(store, own_selector(config), options.which, options.limit)
        return [rollout async for rollout in found]
    finally:
        await store.close()


def _check_some_result(rollouts: Sequence[StoredRollout]) -> None:
    if any(not one.obstacle for one in rollouts):
        return
    tally = Tally()
    for one in rollouts:
        tally.add(one.obstacle, one.rollout_id)
    raise UsageError(f"none of {len(rollouts):,} rollouts can be scored again: {tally.line()}")


def _check_some_score(scores: Mapping[str, Score]) -> None:
    if any(score.value is not None for score in scores.values()):
        return
    tally = Tally()
    for name, score in scores.items():
        tally.add(f"{score.kind}: {score.error}", name)
    raise UsageError(f"none of {len(scores):,} rollouts has a new reward: {tally.line()}")


def _returning(scores: dict[str, Score]) -> ScoreAll:
    """Return a function that has the scores already: those of the new reward, which is the run's own."""

    def score_all(reward: str, weights: Mapping[str, float], rollouts: Sequence[StoredRollout]) -> dict[str, Score]:
        return scores

    return score_all


def _weights(options: RescoreOptions, config: RunConfig) -> dict[str, float]:
    return dict(options.weights or (config.reward_weights if options.reward == config.reward else {}))


def _rescored(rollout: StoredRollout, score: Score, own: Score | None) -> RescoredRollout:
    return RescoredRollout(
        rollout_id=rollout.rollout_id,
        mode=rollout.mode,
        group=rollout.group,
        before=rollout.reward,
        after=score.value,
        dimensions_before=dict(rollout.dimensions),
        dimensions_after=score.dimensions,
        feedback=score.feedback,
        error=score.error,
        error_kind=score.kind,
        own=None if own is None else own.value,
    )


def _result(
    folder: RunFolder,
    config: RunConfig,
    options: RescoreOptions,
    control: Control,
    stored: Sequence[StoredRollout],
    rescored: Sequence[RescoredRollout],
) -> Rescored:
    groups, incomplete = complete_groups(rescored, [one.rollout_id for one in stored if one.obstacle == NO_RESULT])
    by_id = {one.rollout_id: one for one in stored}
    advantages = compare_advantages(config, folder.learned(), groups, by_id)
    errors = Tally()
    for one in rescored:
        if one.error:
            errors.add(f"{one.error_kind}: {one.error}", one.rollout_id)
    return Rescored(
        run=folder.path.name,
        reward=options.reward,
        reward_weights=options.weights,
        rollouts_of=options.which,
        limit=options.limit,
        created=time.time(),
        control=control,
        read=len(rescored),
        scored=sum(one.after is not None for one in rescored),
        errors=errors.grouped(MOST_ERRORS),
        distribution=distribution(list(pairs_of(rescored).values())),
        dimensions=dimension_distributions(rescored),
        ranks=rank_changes(rescored),
        groups=group_changes(groups, incomplete, advantages.dropped),
        advantages=advantages.changes,
        rollouts=[_with_advantages(one, by_id[one.rollout_id], advantages) for one in rescored],
    )


def _with_advantages(one: RescoredRollout, stored: StoredRollout, found: AdvantageComparison) -> RescoredRollout:
    before, after = found.of_rollout(stored)
    return msgspec.structs.replace(one, advantage_before=before, advantage_after=after)


def _is_result(path: Path) -> bool:
    try:
        return load(path).format == FORMAT
    except UsageError:
        return False
