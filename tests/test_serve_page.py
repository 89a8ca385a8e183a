"""The commands of `docs/serve.md` exist with their options, and so does that of the unit, which systemd reads."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from leyden.core.cli.main import app

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/serve.md").read_text()
UNIT = ROOT / "templates/systemd/leyden-serve.service"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def commands() -> list[list[str]]:
    """Every `leyden` command of the page and of the unit."""
    found = [shlex.split(unit()["Service"]["ExecStart"])]
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        found += [shlex.split(line[2:]) for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    found += [
        shlex.split(words.replace("NAME VERSION", "r 1")) for words in re.findall(r"^\| `(leyden .*?)`", PAGE, re.M)
    ]
    return [["leyden", *words[1:]] for words in found if Path(words[0]).name == "leyden"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_page_exists_with_its_options(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in rest if word.startswith("--")} <= known


def test_there_is_something_to_check() -> None:
    assert len(commands()) >= 11


def test_every_option_of_the_server_is_on_the_page() -> None:
    command: Any = typer.main.get_command(app)
    options = {max(parameter.opts, key=len) for parameter in command.commands["serve"].params} - {"--help"}
    assert {name for name in options if f"`{name}" not in PAGE} == set()


def test_the_unit_starts_the_server_again_and_lets_its_runs_live() -> None:
    service = unit()["Service"]
    assert (service["Restart"], service["KillMode"]) == ("always", "process")
    assert int(service["TimeoutStopSec"]) > 60


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/srv/leyden/venv/bin/leyden", "/bin/true").replace("User=leyden\n", "")
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert own == []
