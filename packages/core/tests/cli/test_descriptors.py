"""What a command does where its standard descriptors are closed, or cannot be written."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leyden.core.testing.servers.echo_endpoint import Endpoint, echo_endpoint

pytestmark = pytest.mark.integration
FULL = Path("/dev/full")
SAID = "leyden: standard output cannot be written: No space left on device\n"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with echo_endpoint() as found:
        yield found


def leyden(redirection: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "leyden.core.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def dry_run(endpoint: Endpoint, folder: Path, *more: str) -> list[str]:
    (folder / "agent.py").write_text("def agent(task):\n    return 'done'\n")
    (folder / "t.jsonl").write_text('{"question": "?"}\n')
    given = [f"{folder}/agent.py:agent", "--tasks", f"{folder}/t.jsonl", "--endpoint", f"{endpoint.url}/v1"]
    return ["dev", *given, *more]


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has it")
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], [], ["policies", "list"], ["policies", "list", "--json"]]
)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    done = leyden("> /dev/full", *arguments)
    assert (done.returncode, done.stderr) == (1, SAID)


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has it")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_dry_run_on_a_full_disk_is_one_line(endpoint: Endpoint, tmp_path: Path, more: list[str]) -> None:
    done = leyden("> /dev/full", *dry_run(endpoint, tmp_path, *more))
    assert (done.returncode, done.stderr) == (1, SAID)


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_command_works_without_descriptors(endpoint: Endpoint, tmp_path: Path, closed: str) -> None:
    done = leyden(closed, *dry_run(endpoint, tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert ("dev-0  succeeded" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_what_is_printed_reaches_a_file(tmp_path: Path) -> None:
    assert leyden(f"> {tmp_path}/out", "policies", "list").returncode == 0
    assert "million parameters" in (tmp_path / "out").read_text()
