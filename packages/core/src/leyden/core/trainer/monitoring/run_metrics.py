"""Run metrics: exports the metrics in a run's folder for a Prometheus page.

Metrics keep their own names, including VERL's, with unsupported characters replaced.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.monitoring.trackers import numbers
from leyden.core.trainer.run_folder.folder import RunFolder


class RunMetrics:
    """Metrics of the run in `folder`; the file is read again only after it has changed."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._folder, self._config = folder, config
        self._seen: tuple[int, int] | None = None
        self._metrics: list[Metric] = []

    async def measure(self) -> Iterable[Metric]:
        """Return the run's settings, the metrics of its last step and last evaluations, and its alert counts."""
        file = self._folder.metrics_file
        found = file.stat() if file.exists() else None
        seen = None if found is None else (found.st_mtime_ns, found.st_size)
        if seen != self._seen or not self._metrics:
            lines = await asyncio.to_thread(self._folder.metrics)
            self._metrics = [*_of_run(self._config, found and found.st_mtime), *_of_lines(lines)]
            self._seen = seen
        return self._metrics


def _of_run(config: RunConfig, written: float | None) -> list[Metric]:
    labels = {"run": config.name, "algorithm": config.algorithm}
    info = GaugeMetricFamily("leyden_run_info", "Name and algorithm of the run.", labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    planned = GaugeMetricFamily("leyden_run_planned_steps", "Planned number of steps.", value=config.steps)
    if written is None:
        return [info, planned]
    about = "Time of the last write to metrics.jsonl, in seconds since 1970."
    return [info, planned, GaugeMetricFamily("leyden_run_written_timestamp_seconds", about, value=written)]


def _of_lines(lines: Sequence[Mapping[str, Any]]) -> list[Metric]:
    """Return the metrics in the lines of `metrics.jsonl`."""
    steps = [line for line in lines if not line.keys() & {"held_out", "alert"}]
    step = GaugeMetricFamily(
        "leyden_run_step", "Steps that are recorded in metrics.jsonl.", value=steps[-1]["step"] if steps else 0
    )
    about = "Alerts that were raised."
    alerts = CounterMetricFamily("leyden_run_alerts", about, labels=["alert"])
    for name, count in Counter(str(line["alert"]) for line in lines if "alert" in line).items():
        alerts.add_metric([name], count)
    found = [step, alerts, _held_out(lines)]
    for name, value in numbers(steps[-1]).items() if steps else ():
        # the label distinguishes names that become equal once their characters are replaced
        number = GaugeMetricFamily(
            f"leyden_step_{sanitised(name)}", f"Value of {name} in the last step.", labels=["number"]
        )
        number.add_metric([name], value)
        found.append(number)
    return found


def _held_out(lines: Sequence[Mapping[str, Any]]) -> Metric:
    about = "Share of held-out tasks solved in the last evaluation of the set; sampled: with the training sampling."
    shares = GaugeMetricFamily("leyden_run_held_out_success", about, labels=["set", "sampled"])
    latest = {(str(line["held_out"]), "sampled" in line): line for line in lines if "held_out" in line}
    for (name, sampled), line in latest.items():
        share = line["sampled" if sampled else "success"]
        if share is not None:
            shares.add_metric([name, str(sampled).lower()], share)
    return shares


def sanitised(name: str) -> str:
    """Return `name` with underscores for all characters that a metric name cannot contain."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", name)
