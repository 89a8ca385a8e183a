"""Control: the run's own reward function on the stored results must return the stored rewards."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leyden.core.data.similar_messages import Tally
from leyden.core.errors import UsageError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rescore.messages import Score
from leyden.core.trainer.rescore.result import Control
from leyden.core.trainer.rescore.stored_rollouts import StoredRollout
from leyden.core.trainer.run_folder.folder import RunFolder

MOST_DIFFERENCES = 10
AGENT_SCORED = "the run has no reward function: its agent returned or emitted the rewards"

ScoreAll = Callable[[str, Mapping[str, float], Sequence[StoredRollout]], dict[str, Score]]
"""Scores rollouts with the function of an import string and weights of its dimensions; returns scores by rollout."""


def own_scores(
    folder: RunFolder, config: RunConfig, rollouts: list[StoredRollout], score_all: ScoreAll
) -> tuple[Control, dict[str, Score]]:
    """Score the rollouts that have a stored reward with the run's own function.

    Returns how many stored rewards it reproduces, and the scores by rollout. An own function that cannot be loaded is
    a remark of the control.
    """
    rewarded = [one for one in rollouts if one.reward is not None]
    if config.reward is None:
        return Control(reward=None, stored=len(rewarded), remark=AGENT_SCORED), {}
    try:
        scores = score_all(config.reward, config.reward_weights, rewarded)
    except UsageError as error:
        remark = f"the run's own reward function cannot be called: {error}"
        return Control(reward=config.reward, stored=len(rewarded), remark=remark), {}
    return compared(config.reward, rewarded, scores, _changed_since(config.reward, folder)), scores


def compared(reward: str, rewarded: list[StoredRollout], scores: Mapping[str, Score], remark: str = "") -> Control:
    """Return the control for stored rewards and the scores of the run's own function now."""
    tally, reproduced, otherwise = Tally(), 0, 0
    for one in rewarded:
        score = scores[one.rollout_id]
        difference = difference_of(one, score)
        if difference:
            tally.add(difference, one.rollout_id)
            otherwise += score.kind != "not stored"
        else:
            reproduced += 1
    return Control(
        reward=reward,
        stored=len(rewarded),
        reproduced=reproduced,
        otherwise=otherwise,
        differences=tally.grouped(MOST_DIFFERENCES),
        remark=remark if otherwise else "",
    )


def difference_of(rollout: StoredRollout, score: Score) -> str:
    """Return how a score differs from the stored reward and its dimensions; empty where they are equal."""
    if score.value is None:
        return f"{score.kind}: {score.error}"
    if score.value != rollout.reward:
        return f"other reward: {score.value:g} instead of {rollout.reward:g}"
    if score.dimensions != dict(rollout.dimensions):
        return "the same reward with other dimensions"
    return ""


def _changed_since(reward: str, folder: RunFolder) -> str:
    """Return a remark if the function's file is newer than the run, so that it may not be what scored the run."""
    file = Path(reward.rpartition(":")[0])
    if file.suffix != ".py" or not file.is_file():
        return ""
    is_newer = file.stat().st_mtime > folder.config_file.stat().st_mtime
    return f"{file.name} has changed since the run began" if is_newer else ""
