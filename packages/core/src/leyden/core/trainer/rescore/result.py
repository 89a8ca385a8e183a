"""Result of re-scoring a run's rollouts, as frozen structs that JSON can hold."""

from typing import Literal

import msgspec

from leyden.core.data.similar_messages import CountedMessage
from leyden.core.trainer.rescore.messages import ErrorKind

SpreadChange = Literal["gains", "loses", "keeps", "none"]
"""Whether the rollouts of a group have different rewards: only after, only before, before and after, or never."""
FORMAT = "leyden.rescore/1"


class RescoredRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout with both rewards."""

    rollout_id: str
    mode: str | None
    group: str
    """Rollouts with the same value are compared with each other; empty for held-out rollouts."""
    before: float | None
    """The stored reward; None without one."""
    after: float | None
    """The new reward; None where the rollout could not be scored."""
    dimensions_before: dict[str, float] = {}
    dimensions_after: dict[str, float] = {}
    feedback: str = ""
    """What the new reward function says about its reward."""
    error: str = ""
    """Why there is no new reward; empty where there is one."""
    error_kind: ErrorKind | None = None
    own: float | None = None
    """What the run's own reward function returned now; None where it was not called or failed."""
    advantage_before: float | None = None
    """Mean over the trained calls; None where it was not computed."""
    advantage_after: float | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the run's own reward function, called on what is stored, returns the stored rewards."""

    reward: str | None
    """Import string of the run's own reward function; None if it has none."""
    stored: int
    """Number of stored rewards that were compared."""
    reproduced: int = 0
    """Number of them that were returned exactly, with all dimensions."""
    otherwise: int = 0
    """Number of them whose result could be read, and whose reward came out otherwise."""
    differences: list[CountedMessage] = []
    """How the others differ, each with an example."""
    remark: str = ""
    """Why nothing was compared, or what makes the comparison doubtful."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards before and after of the rollouts that have both."""

    rollouts: int
    mean_before: float
    mean_after: float
    deviation_before: float
    """Standard deviation, divided by n."""
    deviation_after: float
    edges: list[float]
    """Edges of the bins, one more than bins. The last bin includes its upper edge."""
    before: list[int]
    after: list[int]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout whose rank changed. Rank 1 is the largest reward; equal rewards share the mean of their ranks."""

    rollout_id: str
    before: float
    after: float
    rank_before: float
    rank_after: float


class RankChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How much the order of rollouts changes."""

    tau: float | None
    """Kendall's tau-b over all rollouts; None where one of the rewards is the same for all."""
    tau_in_groups: float | None
    """Mean of tau-b over the groups in which both rewards differ; None without such a group."""
    groups: int
    """Number of these groups."""
    moved: int
    """Number of rollouts whose rank among all rollouts changed."""
    most: list[Move]
    """The rollouts that moved most."""


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """Spread of the rewards within one group: the largest minus the smallest."""

    group: str
    rollouts: int
    before: float
    after: float
    change: SpreadChange
    dropped_before: str = ""
    """Why the advantage estimator drops the group with the stored rewards; empty if it does not, or was not used."""
    dropped_after: str = ""


class GroupChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes by group."""

    groups: list[GroupChange]
    counts: dict[SpreadChange, int]
    incomplete: int
    """Number of groups left out, because a rollout in them has a stored reward or a result, but no new reward."""


class AdvantageChanges(msgspec.Struct, frozen=True, kw_only=True):
    """How the advantages of trained calls change, by the run's own credit scheme and advantage estimator."""

    estimator: str = ""
    credit: str = ""
    calls: int = 0
    """Number of calls with an advantage before or after; a call without one counts as 0."""
    change_sign: int = 0
    """Number of calls whose advantage is positive with one reward and negative with the other."""
    become_zero: int = 0
    become_nonzero: int = 0
    mean_absolute_before: float = 0.0
    mean_absolute_after: float = 0.0
    unavailable: str = ""
    """Why there are no advantages; empty if there are."""


class Rescored(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that re-scoring found."""

    format: str = FORMAT
    run: str
    reward: str
    """Import string of the new reward function."""
    reward_weights: dict[str, float]
    rollouts_of: str
    """Which rollouts were chosen: train, held-out or all."""
    limit: int | None
    created: float
    """Unix time in seconds."""
    control: Control
    read: int
    """Number of rollouts that were read."""
    scored: int
    """Number of rollouts with a new reward."""
    errors: list[CountedMessage]
    """Why others have none, each with an example."""
    distribution: Distribution | None
    """None if no rollout has both rewards."""
    dimensions: dict[str, Distribution]
    """By dimension that both rewards have."""
    ranks: RankChanges | None
    groups: GroupChanges
    advantages: AdvantageChanges
    rollouts: list[RescoredRollout]
