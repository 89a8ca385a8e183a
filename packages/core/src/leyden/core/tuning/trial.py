"""`Trial`: one trial of a study as it is stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from leyden.core.tuning.space import Values

TrialState = Literal["running", "finished", "pruned", "failed"]
STATES: Mapping[str, TrialState] = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
"""States by Optuna's names; a trial with any other name is running."""
DEFAULT, RUNS, REASON = "default", "runs", "reason"
"""Attributes of a stored trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial as it is stored."""

    number: int
    values: Values
    """Values of the searched keys; of the default configuration those that are in the search space."""
    state: TrialState
    score: float | None = None
    """Mean held-out score over the seeds; None until it has finished. Of a pruned trial, the last one that it had."""
    reported: Mapping[int, float] = field(default_factory=dict[int, float])
    """Scores on the way, by position."""
    is_default: bool = False
    """Whether it is the configuration that the search began with."""
    runs: tuple[str, ...] = ()
    """Folders of the past runs that it was made of, one for each seed; empty for a trial of the study's own."""
    reason: str | None = None
    """Why it failed or was stopped."""

    @property
    def is_past(self) -> bool:
        """Whether it was made of past runs."""
        return bool(self.runs)
