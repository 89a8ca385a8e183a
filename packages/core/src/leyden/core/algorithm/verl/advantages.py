"""Advantages of VERL's rows: computes them with Leyden's estimators, which count each rollout once.

VERL's estimators get rows. All but one of them count a rollout once for each of its model calls, so the baseline
depends on the length of rollouts. This module joins rows into rollouts before it compares them. It does not import
VERL.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leyden.core.advantage.base import AdvantageEstimator, CreditedRollout, Floats, GroupAdvantages
from leyden.core.errors import TrainingError
from leyden.core.policy.update.entries import Normalisation, normalised

Places = list[int]
"""Indices of a rollout's rows, in the order in which its calls were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCredit:
    """What an estimator needs of one row."""

    key: str
    """`uid_session_place`, as in `rows.Row.key`."""
    credit: float
    """The return of the row."""
    weight: float
    tokens: int
    """Number of response tokens."""
    value: float | None = None
    """Value of VERL's critic before the first response token; None without a critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """The estimator that compares rows, and the normalisation of the loss."""

    estimator: AdvantageEstimator
    normalisation: Normalisation = "token"
    tokens_per_rollout: int | None = None


def is_row(key: str) -> bool:
    """Return whether `key` belongs to a row; keys of rows that VERL pads a batch with have no session."""
    return key.count("_") == 2


def row_advantages(rows: Sequence[RowCredit], estimation: Estimation) -> Floats:
    """Return `advantages_N` of a step's N rows, scaled so that VERL's mean over tokens is the step's normalised loss.

    The result is advantage × weight × share for each row, and 0 in dropped groups. VERL divides by all tokens of the
    step. The share is therefore the weight that Leyden gives each token of the row, × the number of all tokens. With
    normalisation `token` the share is 1, except that VERL also counts the tokens of dropped groups.

    VERL's losses scale with the advantage by any factor that is not negative, so the share reaches the gradient. The
    exceptions in `owned_settings.UNSCALED` are allowed only with normalisation `token`. Raises TrainingError if values
    are missing.
    """
    advantages_N = np.zeros(len(rows))
    groups = _groups(rows)
    estimates = estimation.estimator.estimate([[_credited(rows, places) for places in group] for group in groups])
    kept: list[int] = []
    for group, estimate in zip(groups, estimates, strict=True):
        kept += _assign(advantages_N, group, estimate)
    if kept:
        lengths = [(rows[n].key.rpartition("_")[0], rows[n].tokens) for n in kept]
        weights = normalised(lengths, estimation.normalisation, estimation.tokens_per_rollout)
        total = sum(row.tokens for row in rows)
        strength_K = np.array([rows[n].weight for n in kept]) * np.array(weights) * total
        advantages_N[kept] *= strength_K
    return advantages_N


def _groups(rows: Sequence[RowCredit]) -> list[list[Places]]:
    """Return for each prompt, and for each of its rollouts, the indices of its rows."""
    places: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for number, row in enumerate(rows):
        if not is_row(row.key):
            raise TrainingError(f"{row.key!r} is not a row key: expected uid_session_place")
        uid, session, place = row.key.split("_")
        places.setdefault(uid, {}).setdefault(session, []).append((int(place), number))
    return [
        [[n for _, n in sorted(session_rows)] for session_rows in sessions.values()] for sessions in places.values()
    ]


def _credited(rows: Sequence[RowCredit], places: Places) -> CreditedRollout:
    rollout_rows = [rows[n] for n in places]
    values = [row.value for row in rollout_rows if row.value is not None]
    return CreditedRollout(
        returns_N=np.array([row.credit for row in rollout_rows]),
        values_N=np.array(values) if len(values) == len(rollout_rows) else None,
    )


def _assign(advantages_N: Floats, group: Sequence[Places], estimate: GroupAdvantages) -> list[int]:
    """Write the advantages of one group; return the indices of its rows, or none if the group is dropped."""
    if estimate.dropped is not None:
        return []
    for places, own_N in zip(group, estimate.advantages, strict=True):
        advantages_N[places] = own_N
    return [n for places in group for n in places]
