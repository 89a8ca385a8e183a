"""Every code block of the README and the docs runs: Python as it stands, `leyden` commands in a shortened form."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from observing import node_program
from warm_process import run_leyden, run_script

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "packages").glob("*/README.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHORT = {
    "train": ["--steps", "1", "--tasks-per-step", "4", "--group-size", "4"],
    "dev": ["-n", "1"],
}

pytestmark = pytest.mark.timeout(240)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{number}", text)
        for page in PAGES
        for number, (found, text) in enumerate(BLOCK.findall(page.read_text()), 1)
        if found == language
    ]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the checkout, so that nothing a page does is left in it."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "examples").mkdir()
    for example in (ROOT / "examples").iterdir():
        (folder / "examples" / example.name).symlink_to(example)
    return folder


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


@pytest.fixture
def with_node(checkout: Path, node_example: Path) -> dict[str, str]:
    """The environment of somebody who has installed Node, and the package that the example in JavaScript needs."""
    example = checkout / "examples/calculator_node"
    example.unlink()
    example.symlink_to(node_example)
    return environment() | {"PATH": f"{Path(node_program()).parent}{os.pathsep}{os.environ['PATH']}"}


def test_there_is_something_to_check() -> None:
    assert len(blocks("python")) >= 5
    assert len(blocks("sh")) >= 3


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_python_blocks_run(where: str, code: str, checkout: Path) -> None:
    script = checkout / (re.sub(r"\W", "_", where) + ".py")
    script.write_text(code)
    done = run_script(script, cwd=checkout, environment=environment(), timeout=200)
    assert done.returncode == 0, done.stderr


def commands() -> Iterator[ParameterSet]:
    """Each starts a training of its own, or reads what the one before it has left; the README's are few."""
    for where, text in blocks("sh"):
        for line in text.splitlines():
            if line.startswith("leyden "):
                marks = () if where.startswith("README") else pytest.mark.long
                yield pytest.param(line.split(" #")[0].strip(), id=f"{where} {line[:50]}", marks=marks)


@pytest.mark.parametrize("line", [*commands()])
def test_commands_run(line: str, checkout: Path, few_held_out: Path, request: pytest.FixtureRequest) -> None:
    arguments = shlex.split(line)[1:]
    needs_node = " node " in line
    variables: dict[str, str] = request.getfixturevalue("with_node") if needs_node else environment()
    at = arguments.index("--") if "--" in arguments else len(arguments)
    arguments[at:at] = SHORT.get(arguments[0], [])
    arguments = [str(few_held_out) if argument.endswith("/val.jsonl") else argument for argument in arguments]
    done = run_leyden(arguments, cwd=checkout, environment=variables, timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"`((?:packages|docs|examples|scripts|benchmarks|tests)/[\w/.-]+\w)`", text):
        assert (ROOT / target).exists(), target


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`?\bmake ([a-z]+)\b", "\n".join(text for _, text in BLOCK.findall(page.read_text())))
    }
    assert named <= targets
