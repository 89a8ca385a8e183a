"""Span sampling: decides at the end of each rollout in production whether its spans are kept.

The spans of a rollout with a high reward are always kept. Of the other rollouts, a fraction is kept. The choice depends
on a hash of the rollout id, so repeated decisions and other gateways choose the same rollouts.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.registry import Collector

from leyden.core.data.production import ProductionSampling
from leyden.core.gateway.shared.folder import SharedFolder
from leyden.core.gateway.shared.span_budget import SpanBudget

Decision = Literal["high reward", "base rate", "dropped"]
"""Reason for keeping the spans of a rollout, or `dropped`."""
DROPPED: Final = "dropped"
MINUTE = 60.0


class SpanSampler:
    """Sampler that decides for each rollout whether to keep its spans, and counts its decisions.

    `clock` returns seconds. The limit of spans per minute applies to one gateway; several gateways do not share it. The
    workers of one gateway share it in `shared`, with the counts.
    """

    def __init__(
        self,
        sampling: ProductionSampling,
        clock: Callable[[], float] = time.monotonic,
        shared: SharedFolder | None = None,
    ) -> None:
        self.sampling = sampling
        self._clock = clock
        self._budget = SpanBudget() if shared is None else shared.span_budget
        registry = CollectorRegistry()
        self._metrics: Collector = registry if shared is None else shared.metrics("capture", registry)
        self._rollouts = Counter(
            "leyden_capture_rollouts",
            "Rollouts that ended, by why their spans were kept or dropped.",
            ["decision"],
            registry=registry,
        )
        self._dropped = Counter("leyden_capture_dropped_spans", "Spans that were not kept.", registry=registry)

    def decide(self, rollout_id: str, reward: float | None, spans: int) -> Decision:
        """Return the decision for a rollout with `spans` spans and this reward; None if it has no reward."""
        threshold, limit = self.sampling.reward_threshold, self.sampling.max_span_per_minute
        minute = int(self._clock() // MINUTE)
        decision: Decision = DROPPED
        if threshold is not None and reward is not None and reward >= threshold:
            decision = "high reward"
            self._budget.keep(minute, spans)  # spans of a high reward also count, but are never dropped
        elif _hash_fraction(rollout_id) < self.sampling.base_rate and self._budget.keep(minute, spans, limit):
            decision = "base rate"
        if decision == DROPPED:
            self._dropped.inc(spans)
        self._rollouts.labels(decision).inc()
        return decision

    def render(self) -> bytes:
        """Return the counts of decisions in Prometheus' text format."""
        return generate_latest(self._metrics)


def _hash_fraction(rollout_id: str) -> float:
    """Return a pseudo-random number in [0, 1) that is always the same for this rollout."""
    return int.from_bytes(hashlib.sha256(rollout_id.encode()).digest()[:8]) / 2**64
