"""Advantages before and after: what the run's own credit scheme and estimator make of both rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import WeightedBatch, weigh
from leyden.core.algorithm.lightning_rl import LightningRL
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.credit.registry import CREDIT
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.errors import LeydenError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rescore.result import AdvantageChanges, RescoredRollout
from leyden.core.trainer.rescore.stored_rollouts import StoredRollout
from leyden.core.trainer.run_folder.folder import LearnedLine


@dataclass(slots=True)
class Weighed:
    """Advantages of all groups with one kind of reward."""

    of_calls: dict[str, float] = field(default_factory=dict[str, float])
    """Advantage by the call's span; calls without one are left out."""
    dropped: dict[str, str] = field(default_factory=dict[str, str])
    """By group: why the estimator drops it."""


@dataclass(frozen=True, slots=True)
class AdvantageComparison:
    """Advantages with both rewards."""

    changes: AdvantageChanges
    before: Weighed = field(default_factory=Weighed)
    after: Weighed = field(default_factory=Weighed)

    @property
    def dropped(self) -> dict[str, tuple[str, str]]:
        """By group: why the estimator drops it before and after; empty text where it does not."""
        names = self.before.dropped.keys() | self.after.dropped.keys()
        return {name: (self.before.dropped.get(name, ""), self.after.dropped.get(name, "")) for name in names}

    def of_rollout(self, rollout: StoredRollout) -> tuple[float | None, float | None]:
        """Return the mean advantages of a rollout's calls before and after; None where they were not computed."""
        calls = [call.span_id for call in rollout.trajectory.transitions]
        known = [span for span in calls if span in self.before.of_calls or span in self.after.of_calls]
        if not known:
            return None, None
        before, after = (fmean(one.of_calls.get(span, 0.0) for span in known) for one in (self.before, self.after))
        return before, after


def compare_advantages(
    config: RunConfig,
    learned: Sequence[LearnedLine],
    groups: Mapping[str, Sequence[RescoredRollout]],
    stored: Mapping[str, StoredRollout],
) -> AdvantageComparison:
    """Return the advantages of the calls of complete groups with the stored and with the new rewards.

    `learned` states which groups were one batch, for estimators that compare a whole batch.
    """
    if config.algorithm != "lightning_rl":
        return _unavailable(f"the run's algorithm, {config.algorithm}, is not lightning_rl")
    if config.predicate is not None:
        return _unavailable("the run selects its calls with a predicate, which is not loaded here")
    try:
        algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    except LeydenError as error:
        return _unavailable(f"the run's algorithm cannot be made: {error}")
    assert isinstance(algorithm, LightningRL)
    if algorithm.critic is not None or algorithm.advantage.needs_values:
        return _unavailable("the run's estimator needs the values of a critic, which are not stored")
    before, after = Weighed(), Weighed()
    try:
        for batch in _batches(groups, learned):
            _weigh(algorithm, {key: _trajectories(groups[key], stored, is_new=False) for key in batch}, before)
            _weigh(algorithm, {key: _trajectories(groups[key], stored, is_new=True) for key in batch}, after)
    except LeydenError as error:  # for example a credit scheme that needs dimensions which the new reward lacks
        return _unavailable(str(error))
    return AdvantageComparison(_changes(algorithm, before, after), before, after)


def _unavailable(why: str) -> AdvantageComparison:
    return AdvantageComparison(AdvantageChanges(unavailable=why))


def _batches(groups: Mapping[str, Sequence[RescoredRollout]], learned: Sequence[LearnedLine]) -> list[list[str]]:
    """Return the keys of the groups of each batch. A group that no step recorded is a batch of its own."""
    batch_of: dict[str, int] = {}
    for number, line in enumerate(learned):
        for names in (line.account.trained, *line.account.rollouts.values()):
            batch_of.update(dict.fromkeys(names, number))
    batches: dict[object, list[str]] = {}
    for key, members in groups.items():
        number = next((batch_of[one.rollout_id] for one in members if one.rollout_id in batch_of), None)
        batches.setdefault(key if number is None else number, []).append(key)
    return list(batches.values())


def _trajectories(
    members: Sequence[RescoredRollout], stored: Mapping[str, StoredRollout], *, is_new: bool
) -> tuple[Trajectory, ...]:
    found = [(one, stored[one.rollout_id].trajectory) for one in members]
    if not is_new:
        return tuple(trajectory for _, trajectory in found)
    return tuple(replace(kept, reward=one.after, dimensions=one.dimensions_after) for one, kept in found)


def _weigh(algorithm: LightningRL, groups: Mapping[str, tuple[Trajectory, ...]], found: Weighed) -> None:
    one_per_rollout = algorithm.config.trajectory == "concatenated"
    batch = weigh(
        [TrajectoryGroup(task_id=key, trajectories=members) for key, members in groups.items()],
        algorithm.credit,
        algorithm.advantage,
        one_per_rollout=one_per_rollout,
    )
    found.of_calls |= {item.transition.span_id: item.advantage for item in batch.transitions}
    found.dropped |= _dropped(batch, groups)


def _dropped(batch: WeightedBatch, groups: Mapping[str, tuple[Trajectory, ...]]) -> dict[str, str]:
    """Return the groups of which no rollout is trained, with the commonest reason."""
    trained = set(batch.account.trained)
    reason_of = {name: reason for reason, names in batch.account.rollouts.items() for name in names}
    dropped: dict[str, str] = {}
    for key, members in groups.items():
        names = [one.rollout_id for one in members]
        if trained.isdisjoint(names):
            reasons = [reason_of[name] for name in names if name in reason_of]
            dropped[key] = max(reasons, key=reasons.count, default="")
    return dropped


def _changes(algorithm: LightningRL, before: Weighed, after: Weighed) -> AdvantageChanges:
    spans = [*dict.fromkeys([*before.of_calls, *after.of_calls])]
    pairs = [(before.of_calls.get(span, 0.0), after.of_calls.get(span, 0.0)) for span in spans]
    return AdvantageChanges(
        estimator=str(ADVANTAGE.settings(algorithm.advantage)["name"]),
        credit=str(CREDIT.settings(algorithm.credit)["name"]),
        calls=len(pairs),
        change_sign=sum(one * other < 0 for one, other in pairs),
        become_zero=sum(one != 0 and other == 0 for one, other in pairs),
        become_nonzero=sum(one == 0 and other != 0 for one, other in pairs),
        mean_absolute_before=fmean(abs(one) for one, _ in pairs) if pairs else 0.0,
        mean_absolute_after=fmean(abs(other) for _, other in pairs) if pairs else 0.0,
    )
