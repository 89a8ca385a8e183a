"""Advantages of VERL's rows, by Leyden's own estimators, each rollout counted once. Imports nothing of VERL.

VERL's estimators see rows. All but one of them count a rollout as often as its agent called the model, so the baseline
depends on how long rollouts go on; here rows become rollouts again before anything is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leyden.core.advantage.base import AdvantageEstimator, CreditedRollout, Floats, GroupAdvantages
from leyden.core.errors import TrainingError
from leyden.core.policy.update.entries import Normalisation, normalised

Places = list[int]
"""Numbers of a rollout's rows, in the order in which its calls were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCredit:
    """What an estimator needs to know of one row."""

    key: str
    """`uid_session_place`, as `rows.Row.key`."""
    credit: float
    """Its return."""
    weight: float
    tokens: int
    """Response tokens."""
    value: float | None = None
    """What VERL's critic expected before the first of them; None where there is no critic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """How rows are compared, and what of them weighs the same."""

    estimator: AdvantageEstimator
    normalisation: Normalisation = "token"
    tokens_per_rollout: int | None = None


def is_row(key: str) -> bool:
    """Whether `key` is a row's; those that VERL pads a batch with have no session."""
    return key.count("_") == 2


def row_advantages(rows: Sequence[RowCredit], estimation: Estimation) -> Floats:
    """Return `advantages_N` of a step's N rows, such that VERL's mean over tokens is the step's normalised loss.

    Advantage × weight of each row, 0 in groups that are dropped, × its share: VERL divides by all of the step's tokens,
    so a row's share is the weight that Leyden gives each of its tokens × their number in all. With `token` that is 1,
    but for dropped groups, whose tokens VERL counts. Every loss of VERL's is proportional to the advantage, where that
    is not negative, so the share reaches the gradient. Raises TrainingError for values that are missing.
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
        every = sum(row.tokens for row in rows)
        strength_K = np.array([rows[n].weight for n in kept]) * np.array(weights) * every
        advantages_N[kept] *= strength_K
    return advantages_N


def _groups(rows: Sequence[RowCredit]) -> list[list[Places]]:
    """Return for each prompt, for each of its rollouts, where its rows are."""
    places: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for number, row in enumerate(rows):
        if not is_row(row.key):
            raise TrainingError(f"{row.key!r} is not the key of a row: uid_session_place is expected")
        uid, session, place = row.key.split("_")
        places.setdefault(uid, {}).setdefault(session, []).append((int(place), number))
    return [[[n for _, n in sorted(own)] for own in sessions.values()] for sessions in places.values()]


def _credited(rows: Sequence[RowCredit], places: Places) -> CreditedRollout:
    own = [rows[n] for n in places]
    values = [row.value for row in own if row.value is not None]
    return CreditedRollout(
        returns_N=np.array([row.credit for row in own]),
        values_N=np.array(values) if len(values) == len(own) else None,
    )


def _assign(advantages_N: Floats, group: Sequence[Places], estimate: GroupAdvantages) -> list[int]:
    """Write the advantages of one group; return its rows, none where it is dropped."""
    if estimate.dropped is not None:
        return []
    for places, own_N in zip(group, estimate.advantages, strict=True):
        advantages_N[places] = own_N
    return [n for places in group for n in places]
