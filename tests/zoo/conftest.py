"""Options and the campaign of the zoo."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from zoo_harness.agent_file import ZooAgent
from zoo_harness.campaign import Campaign, write_table
from zoo_harness.warm import WarmWorker

from leyden.core.runner.workers import pool


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the table."""
    parser.addoption(
        "--zoo-table", action="append", type=Path, default=[], help="write the table of the zoo: a .json or .md file"
    )


@pytest.fixture(scope="module")
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """The trials of all agents that this session was asked for, begun at once."""
    wanted = [agent for item in request.session.items if (agent := _agent(item)) is not None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "WorkerProcess", WarmWorker)
        running = Campaign(wanted, tmp_path_factory.mktemp("zoo"))
        try:
            yield running
        finally:
            running.close()
    paths: list[Path] = request.config.getoption("--zoo-table") or []
    for path in paths:
        write_table(running.outcomes, path)


def _agent(item: pytest.Item) -> ZooAgent | None:
    """The agent that a test is of."""
    if item.path.name != "test_zoo.py" or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None
    found = item.callspec.params.get("agent")
    return found if isinstance(found, ZooAgent) else None
