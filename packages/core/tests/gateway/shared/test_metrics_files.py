import asyncio
import contextlib
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from leyden.core.gateway.http.metrics import GatewayMetrics
from leyden.core.gateway.shared.folder import SharedFolder, forget_worker
from leyden.core.gateway.shared.metrics_files import MetricsFiles


class Worker:
    def __init__(self, folder: Path, name: str) -> None:
        registry = CollectorRegistry()
        self.calls = Counter("calls", "Calls.", ["status"], registry=registry)
        self.seconds = Histogram("seconds", "Seconds.", buckets=(1, 2), registry=registry)
        self.running = Gauge("running", "Running.", registry=registry)
        self.version = Gauge("leyden_gateway_policy_version", "Version.", registry=registry)
        self.files = MetricsFiles(folder / "metrics" / "gateway", name, registry)

    def page(self) -> dict[str, float]:
        families = text_string_to_metric_families(generate_latest(self.files).decode())
        return {
            sample.name + "".join(sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


def test_a_page_has_the_sum_of_all_workers(tmp_path: Path) -> None:
    first, second = Worker(tmp_path, "worker-1"), Worker(tmp_path, "worker-2")
    first.calls.labels("200").inc(3)
    second.calls.labels("200").inc(4)
    second.calls.labels("500").inc()
    second.seconds.observe(1.5)
    first.seconds.observe(0.5)
    for worker, running in ((first, 1), (second, 2)):
        worker.running.set(running)
        worker.version.set(7)
        worker.files.write()
    first.calls.labels("200").inc()  # its own values are current
    assert first.page() == {
        "calls_total200": 8,
        "calls_total500": 1,
        "seconds_bucket1.0": 1,
        "seconds_bucket2.0": 2,
        "seconds_bucket+Inf": 2,
        "seconds_count": 2,
        "seconds_sum": 2,
        "running": 3,
        "leyden_gateway_policy_version": 7,
    }
    assert second.page() == first.page() | {"calls_total200": 7}


def test_what_a_worker_counted_stays_when_it_ends_and_its_gauges_go(tmp_path: Path) -> None:
    last = Worker(tmp_path, "worker-4")
    for number in (1, 2, 3):
        worker = Worker(tmp_path, f"worker-{number}")
        worker.calls.labels("200").inc()
        worker.running.set(1)
        worker.files.write()
        forget_worker(tmp_path, f"worker-{number}")
        forget_worker(tmp_path, f"worker-{number}")
    page = last.page()
    assert (page["calls_total200"], page["running"]) == (3, 0)
    assert [path.name for path in (tmp_path / "metrics/gateway").iterdir() if path.name[0] != "."] == ["ended"]


async def test_metrics_are_written_regularly_and_at_the_end(tmp_path: Path) -> None:
    folders = [SharedFolder(tmp_path, name) for name in ("worker-1", "worker-2")]
    metrics = [GatewayMetrics(running=lambda: 0, waiting=lambda: 0, paused=lambda: 0) for _ in folders]
    pages = [folder.metrics("gateway", each) for folder, each in zip(folders, metrics, strict=True)]
    writing = asyncio.create_task(folders[0].keep_metrics_written())
    await asyncio.sleep(0)
    metrics[0].refused("overloaded")
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    text = generate_latest(pages[1]).decode()
    assert 'leyden_gateway_refused_total{reason="overloaded"} 1.0' in text
    assert "leyden_gateway_workers 2.0" in text
    for folder in folders:
        folder.close()
