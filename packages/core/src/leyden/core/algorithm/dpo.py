"""DPO (arXiv 2305.18290): learns from pairs of responses to the same state, of which one is preferred.

The reference is the policy that the run begins with.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from leyden.core.algorithm.account import account_of
from leyden.core.algorithm.preference_pairs import pairs_of
from leyden.core.algorithm.supervised_loop import SupervisedLoop, SupervisedOptions, SupervisedUnits
from leyden.core.credit.registry import CREDIT
from leyden.core.data.reasons import IN_NO_PAIR
from leyden.core.data.scheme import SchemeSettings
from leyden.core.data.transition import TrajectoryGroup
from leyden.core.errors import UsageError


class DPOConfig(SupervisedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which pairs are made, in addition to where they come from and how the weights change. A unit is a pair."""

    deals: ClassVar[int | None] = 2

    loss: SchemeSettings = "dpo"
    """A loss of pairs: dpo, or `{name: dpo, beta: ..., label_smoothing: ...}`."""
    credit: SchemeSettings = "uniform"
    """Credit scheme that gives each call the return by which pairs are compared: a name, or a name with options."""
    min_gap: float = 0.0
    """Minimum gap: the preferred response's return must be higher by more than this."""
    pairs_per_state: int | None = None
    """The most pairs of one state; those with the largest gaps are kept. Default: half as many as responses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_gap < float("inf"):
            raise UsageError(f"min_gap must not be negative, got {self.min_gap}")
        if self.pairs_per_state is not None and self.pairs_per_state < 1:
            raise UsageError(f"pairs_per_state must be at least 1, got {self.pairs_per_state}")


class DPO(SupervisedLoop[DPOConfig]):
    """Trains on pairs of calls with the same prompt and different returns; a pair is never split over steps."""

    name = "dpo"
    Config = DPOConfig
    unit = "pairs"

    def __init__(self, config: DPOConfig | None = None) -> None:
        super().__init__(config or DPOConfig())
        self.credit = CREDIT.make(self.config.credit)

    def settings(self) -> dict[str, Any]:
        """Return the configuration as plain values, including every option of its schemes."""
        return super().settings() | {"credit": CREDIT.settings(self.credit)}

    def select_units(self, groups: Sequence[TrajectoryGroup]) -> SupervisedUnits:
        """Return the pairs of each group, each a unit of (chosen, rejected).

        For stored spans, calls of different policies may form a pair, because one policy learns from all of them.
        """
        config, own = self.config, self.config.spans is None
        paired = pairs_of(groups, self.credit, min_gap=config.min_gap, per_state=config.pairs_per_state, apart=own)
        units = [(pair.chosen, pair.rejected) for pair in paired.pairs]
        trained = {call.span_id for unit in units for call in unit}
        account = account_of(groups, trained, unused=IN_NO_PAIR, dropped=paired.reasons)
        return SupervisedUnits(units, paired.dropped, account=account)
