"""`MetricsPage`: one page for Prometheus out of all that measures itself around a gateway.

The gateway's own numbers, those of whatever lies beside it (a store, a run), and the servers' behind its engines, asked
when somebody looks. A part that does not answer is missing, and `leyden_up` says so; the page never fails for it.
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
from leyden.core.gateway.http.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

Measure = Callable[[], Awaitable[Iterable[Metric]]]
"""Returns the numbers of one part, or raises: the part is then shown as one that does not answer."""

KEPT = 2.0
"""Seconds for which what servers said is shown again: many scrapers cost them no more than one."""
_UP = "leyden_up"


class MetricsPage:
    """The numbers of a gateway, of its `engines` by the names of their policies, and of what is `beside` it by name."""

    def __init__(
        self, own: GatewayMetrics, engines: Mapping[str, Engine], beside: Mapping[str, Measure] | None = None
    ) -> None:
        self._own, self._engines, self._beside = own, engines, beside or {}
        self._asking = asyncio.Lock()
        self._told: Sequence[Metric] = ()
        self._asked = float("-inf")

    async def render(self) -> bytes:
        """Text for a scraper, of `metrics.CONTENT_TYPE`."""
        parts = [list(self._own.collect())]
        for name, measure in self._beside.items():
            parts.append(await _measured(name, measure))
        async with self._asking:
            if time.monotonic() - self._asked > KEPT:
                self._told = await self._ask_servers()
                self._asked = time.monotonic()
        return generate_latest(_Families([*parts, self._told]))

    async def _ask_servers(self) -> list[Metric]:
        """What the servers of every engine say, each with the labels `policy` and `replica`."""
        pages = await asyncio.gather(*(engine.measures() for engine in self._engines.values()))
        found: list[Metric] = []
        for policy, told in zip(self._engines, pages, strict=True):
            for replica, page in told.items():
                labels = {"policy": policy, "replica": replica}
                # in a thread: reading a page takes tens of milliseconds, in which calls are answered
                numbers = None if page is None else await asyncio.to_thread(_read, page, labels, replica)
                found += [_up(part="engine", up=numbers is not None, **labels), *(numbers or ())]
        return found


class _Families(Collector):
    """Metrics of several parts: those of one name are one family, as the format demands."""

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


async def _measured(name: str, measure: Measure) -> list[Metric]:
    try:
        return [_up(part=name, up=True), *await measure()]
    except Exception:
        logger.exception("the %s could not be asked for its numbers", name)
        return [_up(part=name, up=False)]


def _up(*, up: bool, **labels: str) -> Metric:
    metric = Metric(_UP, "Whether a part answered when this page was asked for.", "gauge")
    metric.add_sample(_UP, labels, float(up))
    return metric


def _read(page: bytes, labels: Mapping[str, str], replica: str) -> list[Metric] | None:
    """The numbers of a server's page, with our labels; its own of these names keep them with `exported_` before."""
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
