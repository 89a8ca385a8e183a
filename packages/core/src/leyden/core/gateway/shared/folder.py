"""`SharedFolder`: the folder that the workers of one gateway share, as one of them uses it."""

import asyncio
import logging
import socket
from pathlib import Path

from prometheus_client.registry import Collector

from leyden.core.gateway.shared.listener import SharedListener, forget_connections
from leyden.core.gateway.shared.metrics_files import MetricsFiles, fold_ended
from leyden.core.gateway.shared.requests import SharedRequests, forget_requests
from leyden.core.gateway.shared.span_budget import SharedSpanBudget

logger = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
"""Seconds between two writes of a worker's metrics."""


class SharedFolder:
    """Folder at `path`, for the worker `name`; every worker process has a name that no earlier one had."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._metrics: list[MetricsFiles] = []
        self._failing = False
        self.requests = SharedRequests(path, name)
        self.span_budget = SharedSpanBudget(path / "spans")

    def metrics(self, page: str, own: Collector) -> MetricsFiles:
        """Return the metrics of all workers for a page, given the worker's own."""
        files = MetricsFiles(self._path / "metrics" / page, self._name, own)
        self._metrics.append(files)
        return files

    def listener(self, listening: socket.socket) -> SharedListener:
        """Return the worker's listener, given the socket from which all workers accept."""
        return SharedListener(listening, self._path, self._name)

    async def keep_metrics_written(self) -> None:
        """Write the metrics each second, until this is cancelled; then once more."""
        try:
            while True:
                self._write_metrics()
                await asyncio.sleep(WRITE_SECONDS)
        finally:
            self._write_metrics()

    def close(self) -> None:
        """Remove what only a running worker has."""
        self.requests.close()

    def _write_metrics(self) -> None:
        try:
            for files in self._metrics:
                files.write()
        except OSError as error:  # for example a full disk
            if not self._failing:
                logger.warning("the other workers do not see the metrics of this one: %s", error)
            self._failing = True
        else:
            self._failing = False


def forget_worker(path: Path, name: str) -> None:
    """Remove what a worker that has ended had in the folder; its metrics are folded into those of all such workers."""
    forget_requests(path, name)
    forget_connections(path, name)
    for page in (path / "metrics").glob("*/"):
        fold_ended(page, name)
