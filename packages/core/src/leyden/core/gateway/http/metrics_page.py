"""Metrics page: combines the metrics of a gateway and of the parts around it into one page for Prometheus.

The page has the metrics of the gateway, of other parts (a store, a run), and of the servers behind the engines. They
are read when the page is requested. If a part does not answer, its metrics are missing and its `leyden_up` is 0. The
page itself never fails for that.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from leyden.core.engine.base import Engine

logger = logging.getLogger(__name__)

Measure = Callable[[], Awaitable[Iterable[Metric]]]
"""Function that returns the metrics of one part; if it raises, the page shows the part as not answering."""

CACHE_SECONDS = 2.0
"""Seconds for which the metrics of the engines' servers are cached, so that many scrapers cost no more than one."""
_UP = "leyden_up"


class MetricsPage:
    """Page with the metrics of a gateway, of its `engines` (by policy name), and of other parts (`other_metrics`)."""

    def __init__(
        self,
        gateway_metrics: Collector,
        engines: Mapping[str, Engine],
        other_metrics: Mapping[str, Measure] | None = None,
    ) -> None:
        self._gateway_metrics, self._engines, self._other_metrics = gateway_metrics, engines, other_metrics or {}
        self._lock = asyncio.Lock()
        self._engine_metrics: Sequence[Metric] = ()
        self._read_at = float("-inf")

    async def render(self) -> bytes:
        """Return the page as text of the type `metrics.CONTENT_TYPE`, for a scraper."""
        parts = [list(self._gateway_metrics.collect())]
        for name, measure in self._other_metrics.items():
            parts.append(await _read_part(name, measure))
        async with self._lock:
            if time.monotonic() - self._read_at > CACHE_SECONDS:
                self._engine_metrics = await self._read_engine_metrics()
                self._read_at = time.monotonic()
        return generate_latest(_Families([*parts, self._engine_metrics]))

    async def _read_engine_metrics(self) -> list[Metric]:
        """Return the metrics of the servers of every engine, with the labels `policy` and `replica`."""
        pages = await asyncio.gather(*(engine.measures() for engine in self._engines.values()))
        found: list[Metric] = []
        for policy, replica_pages in zip(self._engines, pages, strict=True):
            for replica, page in replica_pages.items():
                labels = {"policy": policy, "replica": replica}
                # On a thread, because parsing a page takes tens of milliseconds and would block calls.
                numbers = None if page is None else await asyncio.to_thread(_parse_page, page, labels, replica)
                found += [_up(part="engine", up=numbers is not None, **labels), *(numbers or ())]
        return found


class _Families(Collector):
    """Collector that merges the metrics of several parts: the format needs one family for each name."""

    def __init__(self, parts: Iterable[Iterable[Metric]]) -> None:
        self._families: dict[str, Metric] = {}
        for part in parts:
            for metric in part:
                known = self._families.get(metric.name)
                if known is None:
                    known = self._families[metric.name] = Metric(metric.name, metric.documentation, metric.type)
                known.samples += metric.samples

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


async def _read_part(name: str, measure: Measure) -> list[Metric]:
    try:
        return [_up(part=name, up=True), *await measure()]
    except Exception:
        logger.exception("the metrics of the %s could not be read", name)
        return [_up(part=name, up=False)]


def _up(*, up: bool, **labels: str) -> Metric:
    metric = Metric(_UP, "Whether a part returned its metrics for this page (1) or not (0).", "gauge")
    metric.add_sample(_UP, labels, float(up))
    return metric


def _parse_page(page: bytes, labels: Mapping[str, str], replica: str) -> list[Metric] | None:
    """Return the metrics of a server's page with `labels` added, or None if the page cannot be parsed.

    A label of the server with the same name gets the prefix `exported_`.
    """
    try:
        families = list(text_string_to_metric_families(page.decode()))
    except ValueError as error:
        logger.warning("the metrics of %s cannot be read: %s", replica, error)
        return None
    for family in families:
        family.samples = [_labelled(sample, labels) for sample in family.samples]
    return families


def _labelled(sample: Sample, labels: Mapping[str, str]) -> Sample:
    own = {f"exported_{name}" if name in labels else name: value for name, value in sample.labels.items()}
    return sample._replace(labels={**own, **labels})
