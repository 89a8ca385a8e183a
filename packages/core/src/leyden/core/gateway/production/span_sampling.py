"""`Thinning`: which rollouts of agents in production keep their spans, decided for each when its reward is known.

A rollout that earned much is always kept. Of the others a share is kept, drawn by their ids, so that asking twice, or
asking two gateways, gives the same answer. Knows nothing of stores, or of who may ask.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, generate_latest

from leyden.core.data.production import ProductionSampling

Decision = Literal["high reward", "base rate", "dropped"]
"""Why the spans of a rollout were kept, or that they were not."""
DROPPED: Final = "dropped"
MINUTE = 60.0


class Thinning:
    """Decides, and counts what it decided.

    `clock` gives seconds. The limit of spans is that of one gateway: several share none.
    """

    def __init__(self, sampling: ProductionSampling, clock: Callable[[], float] = time.monotonic) -> None:
        self.sampling = sampling
        self._clock = clock
        self._minute: int | None = None
        self._spans_kept = 0
        self._registry = registry = CollectorRegistry()
        self._rollouts = Counter(
            "leyden_capture_rollouts",
            "Rollouts that ended, by what became of their spans.",
            ["decision"],
            registry=registry,
        )
        self._dropped = Counter("leyden_capture_dropped_spans", "Spans that were not kept.", registry=registry)

    def decide(self, rollout_id: str, reward: float | None, spans: int) -> Decision:
        """Return what becomes of the `spans` of a rollout that earned `reward`; None: nobody said."""
        threshold, most = self.sampling.reward_threshold, self.sampling.max_span_per_minute
        self._begin_minute()
        decision: Decision = DROPPED
        if threshold is not None and reward is not None and reward >= threshold:
            decision = "high reward"
        elif _drawn(rollout_id) < self.sampling.base_rate and (most is None or self._spans_kept + spans <= most):
            decision = "base rate"
        if decision == DROPPED:
            self._dropped.inc(spans)
        else:
            self._spans_kept += spans  # what earned much counts, and is kept all the same
        self._rollouts.labels(decision).inc()
        return decision

    def render(self) -> bytes:
        """The counts, for a scraper, in Prometheus' text format."""
        return generate_latest(self._registry)

    def _begin_minute(self) -> None:
        minute = int(self._clock() // MINUTE)
        if minute != self._minute:
            self._minute, self._spans_kept = minute, 0


def _drawn(rollout_id: str) -> float:
    """A number in [0, 1) that looks random and is always the same for this rollout."""
    return int.from_bytes(hashlib.sha256(rollout_id.encode()).digest()[:8]) / 2**64
