"""Fixtures of the console's tests."""

from collections.abc import Generator
from pathlib import Path

import pytest
from console_runs import made_run
from starlette.testclient import TestClient

from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console
from leyden.core.trainer.run_folder.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run."""
    return made_run(tmp_path / "runs")


@pytest.fixture
def console(folder: RunFolder) -> Generator[TestClient]:
    """A client of a console that shows the folder's runs, without the checks of `access`."""
    with TestClient(Console(Catalogue([folder.path.parent])).application()) as client:
        yield client
