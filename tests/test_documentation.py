"""Every code block of the README and the docs runs: Python as it stands, `leyden` commands in a shortened form."""

import os
import re
import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from observing import node_program
from provider_formats import PROVIDERS
from provider_servers import provider_server
from typer.main import get_command
from warm_process import run_leyden, run_script

from leyden.core.cli.main import app
from leyden.core.data.reasons import TABLE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "packages").glob("*/README.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHORT = {
    "train": ["--steps", "1", "--tasks-per-step", "4", "--group-size", "4"],
    "tune": ["--steps", "1", "--trials", "1", "--seeds", "0"],
    "dev": ["-n", "1"],
}

SHORT_REAL = ["--steps", "1", "--no-check"]
"""A pretrained model is seldom right at first: it needs whole batches to learn from."""
REAL_MODEL = "smollm2-135m"
"""Commands that name it take minutes."""

pytestmark = pytest.mark.timeout(600)


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


@pytest.mark.long
@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_python_blocks_run(where: str, code: str, checkout: Path) -> None:
    script = checkout / (re.sub(r"\W", "_", where) + ".py")
    script.write_text(code)
    with provider_of(code) as variables:
        done = run_script(script, cwd=checkout, environment=environment() | variables, timeout=400)
    assert done.returncode == 0, done.stderr


def commands() -> Iterator[ParameterSet]:
    """Each starts a training of its own, or reads what the one before it has left."""
    for where, text in blocks("sh"):
        for line in text.splitlines():
            if line.startswith("leyden "):
                marks = [pytest.mark.timeout(900)] if REAL_MODEL in line else []
                if REAL_MODEL in line and line.startswith("leyden train"):
                    marks.append(pytest.mark.campaign)  # `test_real_model.py` trains it
                yield pytest.param(line.split(" #")[0].strip(), id=f"{where} {line[:50]}", marks=marks)


@pytest.mark.parametrize("line", [*commands()])
def test_commands_and_their_options_exist(line: str) -> None:
    command: Any = get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = words[: words.index("--")] if "--" in words else words
    assert {word.partition("=")[0] for word in given if word.startswith("-")} <= known


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_python_blocks_are_python(where: str, code: str) -> None:
    compile(code, where, "exec")


@pytest.mark.long
@pytest.mark.parametrize("line", [*commands()])
def test_commands_run(line: str, checkout: Path, few_held_out: Path, request: pytest.FixtureRequest) -> None:
    arguments = shlex.split(line)[1:]
    needs_node = " node " in line
    variables: dict[str, str] = request.getfixturevalue("with_node") if needs_node else environment()
    if REAL_MODEL in line:
        with_real_model(checkout, request)
        variables = {**variables, **request.getfixturevalue("trusted_authorities")}
    at = arguments.index("--") if "--" in arguments else len(arguments)
    arguments[at:at] = SHORT_REAL if REAL_MODEL in line and arguments[0] == "train" else SHORT.get(arguments[0], [])
    arguments = [str(few_held_out) if argument.endswith("/val.jsonl") else argument for argument in arguments]
    if "--config" in arguments and "verl" not in arguments:  # the file names all held-out tasks
        arguments += ["--val", str(few_held_out)]
    with provider_of(line) as more:
        seconds = 800 if REAL_MODEL in line else 400
        done = run_leyden(arguments, cwd=checkout, environment={**variables, **more}, timeout=seconds)
    assert done.returncode == 0, done.stderr


@contextmanager
def provider_of(text: str) -> Generator[dict[str, str]]:
    """Let a server stand in for the provider that a block calls; yields the environment in which it is called."""
    if "anthropic/" not in text:
        yield {}
        return
    with provider_server("anthropic") as server:
        yield PROVIDERS["anthropic"].variables(server.url, "a-key-of-the-documentation-1")


def with_real_model(checkout: Path, request: pytest.FixtureRequest) -> None:
    """Let the pretrained policy be where its page says, fetched once for all tests."""
    policy: Path = request.getfixturevalue("real_policy")
    if not (checkout / "policies").exists():
        (checkout / "policies").symlink_to(policy.parent)


def test_the_run_in_a_file_is_the_examples() -> None:
    text = (ROOT / "examples/calculator_langgraph/run.yaml").read_text()
    assert text in [block for where, block in blocks("yaml") if where.startswith("docs/train.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"`((?:packages|docs|examples|scripts|benchmarks|tests)/[\w/.-]+\w)`", text):
        assert (ROOT / target).exists(), target


def test_the_page_of_leyden_why_has_every_reason_as_it_is_shown() -> None:
    text = (ROOT / "docs/why.md").read_text()
    missing = [one.name for one in TABLE if f"| {one.name} | {one.means} | {one.change} |" not in text]
    assert not missing, "docs/why.md lacks them, or says something else of them than `leyden why`"


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`?\bmake ([a-z]+)\b", "\n".join(text for _, text in BLOCK.findall(page.read_text())))
    }
    assert named <= targets
