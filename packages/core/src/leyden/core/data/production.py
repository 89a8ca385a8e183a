"""What a process in production and the gateway tell each other about an implicit rollout.

Knows nothing of how it is sent, or of who may begin one.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from leyden.core.data.rollout import Task
from leyden.core.data.span import Span
from leyden.core.errors import UsageError

CAPTURE = "capture"
"""Key of metadata: of a rollout that was captured, and of its attempt once that has ended."""
PRODUCTION = {CAPTURE: "production"}
"""Metadata of every rollout that was opened around an agent in production."""
COMPLETE, INCOMPLETE = "complete", "incomplete"
"""`CAPTURE` of an ended attempt; incomplete: a model call went to the agent's own provider, and is not recorded."""


def is_capture(metadata: Mapping[str, object]) -> bool:
    """Whether a rollout with this metadata was opened around an agent in production."""
    return all(metadata.get(name) == value for name, value in PRODUCTION.items())


SAMPLING = "sampling"
"""Beside `capture` where production is sampled: why the spans were kept, or `dropped`."""


class ProductionSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Which rollouts of production keep their spans. What is given as it is here keeps all.

    Raises UsageError for numbers that make no sense.
    """

    base_rate: float = 1.0
    """The share of rollouts, of those without a high reward, that are kept."""
    reward_threshold: float | None = None
    """From this reward on, all are kept."""
    max_span_per_minute: int | None = None
    """Of those kept by `base_rate`, no more spans a minute."""

    def __post_init__(self) -> None:
        if not 0 <= self.base_rate <= 1:
            raise UsageError(f"base_rate is {self.base_rate}; it is a share, from 0 to 1")
        if self.reward_threshold is not None and not math.isfinite(self.reward_threshold):
            raise UsageError(f"reward_threshold is {self.reward_threshold}; it must be a finite number")
        if self.max_span_per_minute is not None and self.max_span_per_minute < 1:
            raise UsageError(f"max_span_per_minute is {self.max_span_per_minute}; it must be at least 1")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever dropped."""
        return self.base_rate == 1 and self.max_span_per_minute is None


class CaptureBegin(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a rollout with its first attempt."""

    task: Task = None
    metadata: dict[str, Any] = {}


class CaptureBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that was opened, and the token that its model calls carry."""

    rollout_id: str
    attempt_id: str
    token: str


class CaptureSpans(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt recorded so far: the spans of frameworks, and what the agent emitted."""

    spans: list[Span]


class CaptureEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended, and what the agent noted in it."""

    failed: bool = False
    incomplete: bool = False
    lost_spans: int = 0
    """Spans that were recorded and could not be sent."""
    notes: list[Span] = []
