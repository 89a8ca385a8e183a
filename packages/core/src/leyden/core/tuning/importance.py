"""Importance of the searched keys of a study, by PED-ANOVA (Watanabe et al. 2023, https://arxiv.org/abs/2304.10255)."""

from collections.abc import Mapping, Sequence

from leyden.core.tuning.optuna_library import distribution, quiet
from leyden.core.tuning.space import Space
from leyden.core.tuning.trial import Trial

ENOUGH_FOR_IMPORTANCE = 8
BEST_SHARE = 0.25
"""Share of the trials that importance is about: how much a setting decides whether a trial is among them."""


def importance_of(trials: Sequence[Trial], space: Space) -> Mapping[str, float] | None:
    """Return how much each searched key decides whether a trial is among the best `BEST_SHARE`; they add up to 1.

    None with fewer than `ENOUGH_FOR_IMPORTANCE` finished trials, or if their scores do not differ. Raises ImportError
    without Optuna.
    """
    finished = [trial for trial in trials if trial.state == "finished"]
    if len(finished) < ENOUGH_FOR_IMPORTANCE or len({trial.score for trial in finished}) == 1:
        return None
    with quiet() as optuna:
        study = optuna.create_study(direction="maximize")
        for trial in finished:
            study.add_trial(
                optuna.trial.create_trial(
                    params=dict(trial.values),
                    distributions={key: distribution(space[key]) for key in trial.values},
                    value=trial.score,
                )
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(found.values())
    return {key: value / total for key, value in found.items()} if total > 0 else None
