from collections.abc import Generator
from pathlib import Path

import pytest
from scripted_session import PROGRAM
from supervised_runs import MIB, TOKEN

from leyden.core.server.lightning_server import LightningServer
from leyden.core.server.service import ServerPlan


@pytest.fixture
def server(tmp_path: Path) -> Generator[LightningServer]:
    """A server whose runs are scripted."""
    plan = ServerPlan(
        runs=tmp_path / "runs", token=TOKEN, project=tmp_path, memory=8000 * MIB, cores=2, program=PROGRAM
    )
    with LightningServer.of(plan) as started:
        yield started
