"""Messages between a production process and the gateway about a rollout that records a production agent.

Does not handle the HTTP requests themselves, or which clients may begin a rollout.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.data.span import Span
from leyden.core.errors import UsageError

CAPTURE = "capture"
"""Metadata key of a rollout that was captured in production, and of its attempt once the attempt has ended."""
PRODUCTION = {CAPTURE: "production"}
"""Metadata of every rollout that records an agent in production."""
COMPLETE, INCOMPLETE = "complete", "incomplete"
"""Values of `CAPTURE` for an ended attempt.

Incomplete: a model call went to the agent's own provider and is not recorded.
"""


def is_capture(metadata: Mapping[str, object]) -> bool:
    """Whether a rollout with this metadata records an agent in production."""
    return all(metadata.get(name) == value for name, value in PRODUCTION.items())


SAMPLING = "sampling"
"""Metadata key beside `capture` where production is sampled: why the spans were kept, or `dropped`."""


class ProductionSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling of production: decides which rollouts keep their spans. The defaults keep all.

    Raises UsageError for a share outside 0 to 1, an infinite threshold, or fewer than 1 span a minute.
    """

    base_rate: float = 1.0
    """Share of the rollouts without a high reward that is kept, from 0 to 1."""
    reward_threshold: float | None = None
    """All rollouts with at least this reward are kept."""
    max_span_per_minute: int | None = None
    """Largest number of spans a minute from the rollouts that `base_rate` keeps."""

    def __post_init__(self) -> None:
        if not 0 <= self.base_rate <= 1:
            raise UsageError(f"base_rate is {self.base_rate}; it must be between 0 and 1")
        if self.reward_threshold is not None and not math.isfinite(self.reward_threshold):
            raise UsageError(f"reward_threshold is {self.reward_threshold}; it must be a finite number")
        if self.max_span_per_minute is not None and self.max_span_per_minute < 1:
            raise UsageError(f"max_span_per_minute is {self.max_span_per_minute}; it must be at least 1")

    @property
    def keeps_all(self) -> bool:
        """Whether no rollout's spans are ever dropped."""
        return self.base_rate == 1 and self.max_span_per_minute is None


class CaptureBegin(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a new rollout with its first attempt."""

    task: Task = None
    metadata: dict[str, Any] = {}


class CaptureBegun(msgspec.Struct, frozen=True, kw_only=True):
    """Response to `CaptureBegin`: the new attempt, and the token that its model calls carry."""

    rollout_id: str
    attempt_id: str
    token: str


class CaptureSpans(msgspec.Struct, frozen=True, kw_only=True):
    """Spans that an attempt has recorded so far: those of frameworks, and those that the agent emitted."""

    spans: list[Span]


class CaptureEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of an attempt: how it ended, and the spans that the agent emitted in it."""

    failed: bool = False
    incomplete: bool = False
    lost_spans: int = 0
    """Number of spans that were recorded and could not be sent."""
    notes: list[Span] = []
