"""Storage of a study: its trials in Optuna's SQLite file, what to try next, and which trial to stop.

Everything that decides is in the file, or computed from it and the sampler's seed. A study that goes on therefore
proposes what it would have proposed without the interruption, if its trials end in the same order.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leyden.core.tuning.optuna_library import check_installed, distribution, library, quiet
from leyden.core.tuning.space import (
    MOST_LISTED,
    Choices,
    Domain,
    Space,
    Value,
    Values,
    combinations,
    space_size,
)
from leyden.core.tuning.stored_trials import STORAGE_FILE
from leyden.core.tuning.trial import DEFAULT, REASON, RUNS, STATES, Trial

if TYPE_CHECKING:
    import optuna

RANDOM_TRIALS = 5
"""Trials before the sampler begins to learn from them."""
TRIALS_BEFORE_PRUNING = 3
"""Finished trials with an evaluation at the same position, before one is stopped for being below their median."""
MOST_DRAWS = 100
"""Draws of the sampler until it gives a setting that was not tried."""
_FIXED = "fixed_params"


class StudyStorage:
    """Trials of the study `name` in `folder`. Raises UsageError where Optuna is not installed."""

    def __init__(self, folder: Path, name: str, space: Space, *, sampler_seed: int = 0) -> None:
        check_installed()
        self._space, self._sampler_seed = space, sampler_seed
        with quiet() as optuna:
            self._storage: Any = optuna.storages.RDBStorage(
                f"sqlite:///{(folder / STORAGE_FILE).resolve()}", engine_kwargs={"connect_args": {"timeout": 30}}
            )
            pruner = optuna.pruners.MedianPruner(
                n_startup_trials=TRIALS_BEFORE_PRUNING, n_min_trials=TRIALS_BEFORE_PRUNING
            )
            self._study = optuna.create_study(
                storage=self._storage, study_name=name, direction="maximize", pruner=pruner, load_if_exists=True
            )
            self._complete_begun()

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def is_seeded(self) -> bool:
        """Whether past runs were looked for."""
        return bool(self._study.user_attrs.get("seeded", False))

    def note_seeded(self) -> None:
        """Record that past runs were looked for."""
        self._study.set_user_attr("seeded", True)

    def trials(self) -> list[Trial]:
        """Return all trials, by number."""
        return [self._trial(one) for one in self._study.get_trials(deepcopy=False)]

    def add_past(
        self, values: Values, score: float, reported: Mapping[int, float], runs: Sequence[str], *, is_default: bool
    ) -> None:
        """Add a finished trial that past runs are; nothing if it was added before."""
        if any(trial.runs == tuple(runs) for trial in self.trials()):
            return
        with quiet() as optuna:
            self._study.add_trial(
                optuna.trial.create_trial(
                    params=dict(values),
                    distributions={key: distribution(self._space[key]) for key in values},
                    value=score,
                    intermediate_values=dict(reported),
                    user_attrs={RUNS: list(runs), DEFAULT: is_default},
                )
            )

    def begin_default(self, values: Values) -> Trial:
        """Begin the trial of the default configuration, whose values are those that are in the search space."""
        return self._begin(values, is_default=True)

    def begin_next(self) -> Trial | None:
        """Begin the trial that the sampler proposes; None if every setting of the space was tried."""
        tried = [dict(trial.values) for trial in self.trials()]
        values = self._proposed(tried)
        return None if values is None else self._begin(values, is_default=False)

    def report(self, number: int, scores: Mapping[int, float]) -> None:
        """Store scores on the way, by position; those that were stored before stay as they are."""
        known = self.trial(number).reported
        if new := {position: score for position, score in scores.items() if position not in known}:
            with quiet() as optuna:
                trial = optuna.trial.Trial(self._study, self._id(number))
                for position, score in sorted(new.items()):
                    trial.report(score, position)

    def below_median(self, number: int) -> str | None:
        """Return why a trial should be stopped, by its latest score; None if it should not."""
        with quiet() as optuna:
            if not optuna.trial.Trial(self._study, self._id(number)).should_prune():
                return None
        own = self.trial(number).reported
        last = max(own)
        others = [one.reported[last] for one in self.trials() if one.state == "finished" and last in one.reported]
        median = statistics.median(others)
        return f"{max(own.values()):.3f} is below {median:.3f}, the median of {len(others)} trials at this point"

    def finish(self, number: int, score: float) -> None:
        """Record that a trial has finished with this score."""
        self._tell(number, score, None)

    def prune(self, number: int, reason: str) -> None:
        """Record that a trial was stopped early."""
        self._tell(number, None, "PRUNED", reason)

    def fail(self, number: int, reason: str) -> None:
        """Record that a trial failed."""
        self._tell(number, None, "FAIL", reason)

    def trial(self, number: int) -> Trial:
        """Return one trial."""
        return self.trials()[number]

    def _begin(self, values: Values, *, is_default: bool) -> Trial:
        with quiet():
            self._study.enqueue_trial(dict(values), user_attrs={DEFAULT: is_default})
            return self._trial_of(self._complete(self._study.ask()))

    def _complete_begun(self) -> None:
        """Give trials that a killed process had begun the values that were chosen for them."""
        optuna = library()
        for one in self._study.get_trials(deepcopy=False):
            if one.state == optuna.trial.TrialState.WAITING:
                self._complete(self._study.ask())
            elif one.state == optuna.trial.TrialState.RUNNING:
                self._complete(optuna.trial.Trial(self._study, self._id(one.number)))

    def _complete(self, trial: "optuna.trial.Trial") -> "optuna.trial.Trial":
        fixed: Mapping[str, Any] = self._study.get_trials(deepcopy=False)[trial.number].system_attrs.get(_FIXED, {})
        for key in fixed:
            _suggest(trial, key, self._space[key])
        return trial

    def _proposed(self, tried: Sequence[Values]) -> dict[str, Value] | None:
        """Return values that were not tried, from a copy of the study in memory, so that no draw is stored."""
        size = space_size(self._space)
        known = {tuple(sorted(values.items())) for values in tried if values.keys() == self._space.keys()}
        if len(known) >= size:
            return None
        number = len(tried)
        with quiet() as optuna:
            sampler = optuna.samplers.TPESampler(
                seed=(self._sampler_seed * 1_000_003 + number) % 2**32, n_startup_trials=RANDOM_TRIALS
            )
            copy = optuna.create_study(direction="maximize", sampler=sampler)
            whole = [one for one in self._study.get_trials() if one.params.keys() == self._space.keys()]
            copy.add_trials([one for one in whole if one.state != optuna.trial.TrialState.FAIL])
            for _ in range(MOST_DRAWS):
                trial = copy.ask()
                values = {key: _suggest(trial, key, domain) for key, domain in self._space.items()}
                if tuple(sorted(values.items())) not in known:
                    return values
        if size > MOST_LISTED:
            return None
        return next(one for one in combinations(self._space) if tuple(sorted(one.items())) not in known)

    def _tell(self, number: int, score: float | None, state: str | None, reason: str | None = None) -> None:
        if reason is not None:
            self._storage.set_trial_user_attr(self._id(number), REASON, reason)
        with quiet() as optuna:
            self._study.tell(number, score, state=None if state is None else optuna.trial.TrialState[state])

    def _id(self, number: int) -> int:
        study: int = self._storage.get_study_id_from_name(self._study.study_name)
        return self._storage.get_trial_id_from_study_id_trial_number(study, number)

    def _trial_of(self, trial: "optuna.trial.Trial") -> Trial:
        return self.trial(trial.number)

    def _trial(self, one: "optuna.trial.FrozenTrial") -> Trial:
        return Trial(
            number=one.number,
            values={key: one.params[key] for key in self._space if key in one.params},
            state=STATES.get(one.state.name, "running"),
            score=one.value,
            reported=one.intermediate_values,
            is_default=bool(one.user_attrs.get(DEFAULT, False)),
            runs=tuple(one.user_attrs.get(RUNS, ())),
            reason=one.user_attrs.get(REASON),
        )


def _suggest(trial: "optuna.trial.Trial", key: str, domain: Domain) -> Value:
    if isinstance(domain, Choices):
        return trial.suggest_categorical(key, list(domain.settings))
    if domain.whole:
        return trial.suggest_int(key, int(domain.low), int(domain.high), log=domain.log)
    return trial.suggest_float(key, domain.low, domain.high, log=domain.log)
