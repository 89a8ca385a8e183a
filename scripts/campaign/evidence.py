"""`Evidence`: what is known of a finished campaign, from four independent sources."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from campaign.agents import Outcome
from campaign.plan import RolloutPlan
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.engine.base import EngineRecord


@dataclass(kw_only=True)
class Evidence:
    """A finished campaign."""

    policies: Mapping[str, Path]
    """Folders of the policies that answered, by name."""
    plans: list[RolloutPlan]
    """What was to happen."""
    outcomes: list[Outcome]
    """What became of the calls, as the agents saw it."""
    log: Mapping[str, list[EngineRecord]]
    """What the engine of each policy drew, by the engines' own logs."""
    rollouts: dict[int, AttemptedRollout]
    """By number, as they are stored."""
    spans: dict[int, list[Span]]
    """What the gateway recorded, by rollout."""
    seen: Counter[str] = field(default_factory=Counter[str])
    """Further things that happened, counted."""
