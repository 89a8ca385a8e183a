"""`MetricsFiles`: the sum of the metrics of all workers of a gateway, of which each writes its own to a file.

The file of a worker that has ended is folded into one file of all such workers, without its gauges. The counters
therefore never fall, except for what a killed worker counted after its last write.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from leyden.core.gateway.shared.file_lock import locked

logger = logging.getLogger(__name__)

ENDED = "ended"
"""Name of the file that sums the workers that have ended."""
LOCK = ".lock"
LARGEST = frozenset({"leyden_gateway_paused", "leyden_gateway_policy_version"})
"""Gauges of which the largest value is shown; other gauges are added."""


class _Family(msgspec.Struct, array_like=True):
    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]


_Page = list[_Family]
_decoder = msgspec.msgpack.Decoder(_Page)


class MetricsFiles(Collector):
    """Metrics of `own`, those of one worker, with those of the other workers added.

    `folder` belongs to one page of metrics, and `name` is that of the worker.
    """

    def __init__(self, folder: Path, name: str, own: Collector) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name, self._own = folder, name, own

    def write(self) -> None:
        """Write the worker's own metrics for the others."""
        _write(self._folder / self._name, _page(self._own.collect()))

    def collect(self) -> Iterable[Metric]:
        """Return the sum over all workers; values of others are those of their last write."""
        pages = [_page(self._own.collect())]
        try:
            with locked(self._folder / LOCK):
                pages += [_read(path) for path in _files(self._folder) if path.name != self._name]
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("the metrics of other workers cannot be read: %s", error)
        return [_metric(family) for family in _added(pages)]


def fold_ended(folder: Path, name: str) -> None:
    """Fold the metrics of a worker that has ended into those of the workers that ended before."""
    with locked(folder / LOCK):
        own, ended = folder / name, folder / ENDED
        if own.exists():
            pages = [_read(path) for path in (ended, own) if path.exists()]
            _write(ended, [family for family in _added(pages) if family.type != "gauge"])
            own.unlink()


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _page(metrics: Iterable[Metric]) -> _Page:
    return [
        _Family(
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, dict(sample.labels), sample.value) for sample in metric.samples],
        )
        for metric in metrics
    ]


def _metric(family: _Family) -> Metric:
    metric = Metric(family.name, family.documentation, family.type)
    for name, labels, value in family.samples:
        metric.add_sample(name, labels, value)
    return metric


def _added(pages: Iterable[_Page]) -> _Page:
    """Return one page with the sums of all pages; of creation times, the earliest."""
    families: dict[str, _Family] = {}
    samples: dict[str, dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, dict[str, str], float]]] = {}
    for family in (family for page in pages for family in page):
        families.setdefault(family.name, family)
        known = samples.setdefault(family.name, {})
        for name, labels, value in family.samples:
            key = name, frozenset(labels.items())
            if key in known:
                values = known[key][2], value
                value = min(values) if name.endswith("_created") else sum(values)
                value = max(values) if family.name in LARGEST else value
            known[key] = name, labels, value
    return [
        _Family(family.name, family.documentation, family.type, [*samples[family.name].values()])
        for family in families.values()
    ]


def _read(path: Path) -> _Page:
    return _decoder.decode(path.read_bytes())


def _write(path: Path, page: _Page) -> None:
    new = path.with_name(f".{path.name}")
    new.write_bytes(msgspec.msgpack.encode(page))
    new.replace(path)
