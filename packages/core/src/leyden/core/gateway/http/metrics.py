"""Gateway metrics: counts calls, tokens, refusals and recorded spans, and exports them in Prometheus' text format.

Label values come from the gateway, never from a request, so a client cannot create new time series. No metric contains
an attempt id.
"""

from collections.abc import Callable, Iterable
from typing import Literal

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the histogram buckets in seconds, from an instant engine to a client's longest timeout."""


class GatewayMetrics(Collector):
    """Metrics of one gateway, in their own registry.

    The callbacks `running`, `waiting` and `paused` run only when the metrics are read, so they cost a call nothing.
    """

    def __init__(
        self, *, running: Callable[[], float], waiting: Callable[[], float], paused: Callable[[], float]
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._calls = Counter(
            "leyden_gateway_calls",
            "Model calls answered, by HTTP status; 499 where the client hung up.",
            ["dialect", "policy", "status"],
            registry=registry,
        )
        self._refused = Counter(
            "leyden_gateway_refused", "Requests refused, by error code.", ["reason"], registry=registry
        )
        self._others = Counter(
            "leyden_gateway_other_requests",
            "Requests of attempts that are no model calls, by kind (`models`, `forwarded`) and HTTP status.",
            ["kind", "status"],
            registry=registry,
        )
        self._latency = Histogram(
            "leyden_gateway_latency_seconds",
            "Seconds from a request to the end of its answer.",
            ["dialect"],
            buckets=LATENCY,
            registry=registry,
        )
        self._first_chunk = Histogram(
            "leyden_gateway_first_chunk_seconds",
            "Seconds from a request to the first event of its streamed answer.",
            ["dialect"],
            buckets=LATENCY,
            registry=registry,
        )
        self._tokens = Counter(
            "leyden_gateway_tokens",
            "Tokens read (prompt) and generated (response).",
            ["policy", "kind"],
            registry=registry,
        )
        self._recorded = Counter("leyden_gateway_recorded_spans", "Spans recorded.", registry=registry)
        self._record_failures = Counter(
            "leyden_gateway_record_failures", "Spans that could not be recorded.", registry=registry
        )
        self._version = Gauge(
            "leyden_gateway_policy_version", "Version of the weights that are served.", ["policy"], registry=registry
        )
        for name, description, value in (
            ("running", "Calls being answered.", running),
            ("waiting", "Calls waiting for their turn.", waiting),
            ("paused", "Whether calls have to wait for an update (1) or not (0).", paused),
        ):
            Gauge(f"leyden_gateway_{name}", description, registry=registry).set_function(value)
        Gauge("leyden_gateway_workers", "Processes of the gateway.", registry=registry).set(1)
        self._of_call: dict[tuple[str, str, int], Counter] = {}
        self._of_policy: dict[str, tuple[Counter, Counter]] = {}
        self._of_dialect: dict[str, tuple[Histogram, Histogram]] = {}

    def call(
        self,
        dialect: str,
        policy: str,
        status: int,
        seconds: float,
        *,
        first_chunk: float | None = None,
    ) -> None:
        """Count a call that has ended, with its duration in seconds.

        `first_chunk` is the time to the first event of a streamed response, in seconds.
        """
        calls = self._of_call.get((dialect, policy, status))
        if calls is None:
            calls = self._of_call[dialect, policy, status] = self._calls.labels(dialect, policy, str(status))
        calls.inc()
        times = self._of_dialect.get(dialect)
        if times is None:
            times = self._of_dialect[dialect] = self._latency.labels(dialect), self._first_chunk.labels(dialect)
        times[0].observe(seconds)
        if first_chunk is not None:
            times[1].observe(first_chunk)

    def tokens(self, policy: str, prompt: int, response: int) -> None:
        """Count the tokens of one response: its prompt once, and the sampled tokens of all choices."""
        tokens = self._of_policy.get(policy)
        if tokens is None:
            prompt_counter, response_counter = (
                self._tokens.labels(policy, "prompt"),
                self._tokens.labels(policy, "response"),
            )
            tokens = self._of_policy[policy] = prompt_counter, response_counter
        tokens[0].inc(prompt)
        tokens[1].inc(response)

    def refused(self, reason: str) -> None:
        """Count a refused request; `reason` is the error code of the gateway's refusal."""
        self._refused.labels(reason).inc()

    def other_request(self, kind: Literal["models", "forwarded"], status: int) -> None:
        """Count a request that was no model call: for models, or one that an upstream endpoint answered."""
        self._others.labels(kind, str(status)).inc()

    def recorded(self, spans: int, *, kept: bool = True) -> None:
        """Count spans that were recorded, or with `kept=False` spans that could not be recorded."""
        (self._recorded if kept else self._record_failures).inc(spans)

    def serves(self, policy: str, version: Callable[[], float]) -> None:
        """Export the version of a policy; the callback `version` runs when the metrics are read."""
        self._version.labels(policy).set_function(version)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as objects, for a page that also has other metrics."""
        return self._registry.collect()

    def render(self) -> bytes:
        """Return the metrics as text of the type `CONTENT_TYPE`, for a scraper."""
        return generate_latest(self._registry)

    def snapshot(self) -> dict[str, float]:
        """Return every value by its name and labels, such as `leyden_gateway_refused_total{reason="overloaded"}`."""
        values: dict[str, float] = {}
        for metric in self._registry.collect():
            for sample in metric.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                values[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
        return {name: value for name, value in values.items() if "_created" not in name}
