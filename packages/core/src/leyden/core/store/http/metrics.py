"""`StoreMetrics`: metrics of a store's server in Prometheus' text format.

Labels are fixed names, never text of a request, and no metric contains a rollout's id.
"""

import time
from collections.abc import Iterable, Sequence

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric

from leyden.core.data.rollout import AttemptedRollout, RolloutStatus
from leyden.core.store.base import LightningStore
from leyden.core.store.http.admission import RequestAdmission
from leyden.core.store.http.worker_presence import WorkerPresence

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of buckets in seconds: up to the longest wait that a request may have."""
AGE = (0.1, 1, 10, 60, 300, 900, 3_600, 4 * 3_600, 24 * 3_600)
"""Upper bounds of buckets in seconds: from a rollout claimed at once to one that waited overnight."""
_REUSED_SECONDS = 2.0
"""Seconds for which counts of the store are reused, so that many scrapers cost no more than one."""
_STATES: dict[str, tuple[RolloutStatus, ...]] = {
    "queued": ("queuing", "requeuing"),
    "running": ("preparing", "running"),
}


class StoreMetrics:
    """Metrics of one server, in a registry of their own."""

    def __init__(self, admission: RequestAdmission) -> None:
        self.admission = admission
        self.workers = WorkerPresence()
        self._registry = registry = CollectorRegistry()
        self._updated_at = float("-inf")
        self._of_call: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._seconds = Histogram(
            "leyden_store_call_seconds",
            "Seconds from a complete request to its answer, including the wait for rollouts.",
            ["method"],
            buckets=LATENCY,
            registry=registry,
        )
        self._calls = Counter(
            "leyden_store_calls", "Calls answered, by HTTP status.", ["method", "status"], registry=registry
        )
        self._refused = Counter(
            "leyden_store_refused", "Requests refused before they reached a method.", ["status"], registry=registry
        )
        self._claims = Counter("leyden_store_claims", "Rollouts claimed.", registry=registry)
        self._age = Histogram(
            "leyden_store_claim_age_seconds",
            "Age of a rollout when it was claimed.",
            buckets=AGE,
            registry=registry,
        )
        self._spans = Counter("leyden_store_spans", "Spans stored, duplicates not counted.", registry=registry)
        self._refused_spans = Counter(
            "leyden_store_refused_spans", "Spans that arrived over OTLP and were refused.", registry=registry
        )
        self._counts = Gauge("leyden_store_stored", "Numbers of the objects in the store.", ["what"], registry=registry)
        self._queued = Gauge("leyden_store_queue_length", "Rollouts waiting to be claimed.", registry=registry)
        self._oldest = Gauge(
            "leyden_store_oldest_rollout_seconds", "Age of the oldest rollout.", ["state"], registry=registry
        )
        for name, about, value in (
            (
                "span_queue_length",
                "Spans that this server has received and that wait to be written.",
                lambda: admission.spans,
            ),
            (
                "leyden_store_span_queue_threshold",
                "Number of waiting spans from which more servers are requested.",
                lambda: admission.limits.scale_at,
            ),
            ("leyden_store_held_bytes", "Bytes of requests being read or processed.", lambda: admission.held),
            (
                "leyden_store_workers",
                "Workers that claim rollouts from this server, by their heartbeats.",
                lambda: len(self.workers.claiming()),
            ),
        ):
            Gauge(name, about, registry=registry).set_function(value)
        Gauge(
            "leyden_store_scale_out", "1 while span_queue_length is at or above its threshold.", registry=registry
        ).set_function(lambda: admission.spans >= admission.limits.scale_at)

    def call(self, method: str, status: int, seconds: float) -> None:
        """Count an answered call; `method` is a method of the interface."""
        known = self._of_call.get((method, status))
        if known is None:
            known = self._calls.labels(method, str(status)), self._seconds.labels(method)
            self._of_call[method, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def refused(self, status: int) -> None:
        """Count a refused request."""
        self._refused.labels(str(status)).inc()

    def claimed(self, rollouts: Sequence[AttemptedRollout]) -> None:
        """Count claimed rollouts, with their ages."""
        self._claims.inc(len(rollouts))
        for rollout in rollouts:
            self._age.observe(max(time.time() - rollout.start_time, 0.0))

    def stored(self, spans: int, refused: int = 0) -> None:
        """Count stored and refused spans."""
        self._spans.inc(spans)
        self._refused_spans.inc(refused)

    async def render(self, store: LightningStore) -> bytes:
        """Return the metrics as text of `CONTENT_TYPE`, after an update of the store's counts."""
        await self.collect(store)
        return generate_latest(self._registry)

    async def collect(self, store: LightningStore) -> Iterable[Metric]:
        """Return the metrics, after an update of the store's counts, for a page that shows other metrics too."""
        if time.monotonic() - self._updated_at > _REUSED_SECONDS:
            self._updated_at = time.monotonic()
            await self._update(store)
        return self._registry.collect()

    async def _update(self, store: LightningStore) -> None:
        counts = await store.statistics()
        self._queued.set(counts["queue_length"])
        for name, count in counts.items():
            if name.startswith("total_") and isinstance(count, int):
                self._counts.labels(name.removeprefix("total_")).set(count)
        for state, statuses in _STATES.items():
            page = await store.query_rollouts(status_in=statuses, sort_by="start_time", limit=1)
            ages = [time.time() - rollout.start_time for rollout in page]
            self._oldest.labels(state).set(max(ages, default=0.0))
