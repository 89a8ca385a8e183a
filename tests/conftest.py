"""Fixtures of the end-to-end tests: the command line as a user runs it, on the shipped example."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from observing import CLIENTS
from wanted_tests import are_long_wanted
from warm_process import FORKS, Running, run_leyden, start_leyden

if TYPE_CHECKING:
    from verl_cpu.runs import Runs

ROOT = Path(__file__).parents[1]
EXAMPLE = Path("examples/calculator_langgraph")
LONGEST = (
    *("test_verl_runs.py", "test_documentation.py", "test_serve.py", "test_shared_stores.py", "test_zoo.py"),
    *("test_clients.py", "test_schemathesis.py", "test_faults.py", "test_live_agent.py", "test_store_machine.py"),
    *("test_langchain_structured.py", "test_openai_agents_structured.py"),
)

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_configure(config: pytest.Config) -> None:
    """Fork the workers of commands, too, where the long tests are run."""
    if are_long_wanted(config.option.markexpr):
        os.environ[FORKS] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no other worker waits for the one that has one of them."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leyden.core.cli", *arguments]


@pytest.fixture(name="environment")
def command_environment() -> dict[str, str]:
    return environment()


@pytest.fixture(scope="session")
def leyden() -> Leyden:
    """Run `leyden` in the repository's root and return what it said."""

    def run(*arguments: str, timeout: float = 400, **variables: str) -> "subprocess.CompletedProcess[str]":
        return run_leyden(arguments, cwd=ROOT, environment={**environment(), **variables}, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def start() -> Callable[..., Running]:
    """Start `leyden` in the repository's root."""
    return lambda *arguments: start_leyden(arguments, cwd=ROOT, environment=environment())


def small_training(runs: Path, name: str, *more: str) -> list[str]:
    """Arguments of a run of a few seconds."""
    return [
        "train",
        f"{EXAMPLE}/agent.py:agent",
        *("--tasks", f"{EXAMPLE}/train.jsonl"),
        *("--reward", f"{EXAMPLE}/reward.py:score"),
        *("--policy", f"{EXAMPLE}/policy"),
        *("--learning-rate", "6e-4", "--tasks-per-step", "4", "--group-size", "4"),
        *("--runs", str(runs), "--name", name),
        *more,
    ]


@pytest.fixture(scope="session")
def train_arguments() -> Callable[..., list[str]]:
    return small_training


@pytest.fixture(scope="session")
def node_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the example in JavaScript, its package installed; skips the test where that is not there."""
    if (missing := CLIENTS["node"].missing) is not None:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("examples") / "calculator_node"
    shutil.copytree(ROOT / "examples/calculator_node", folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(ROOT / ".clients/node/node_modules")
    return folder


@pytest.fixture(scope="session")
def few_held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rows that stand in for a held-out set where a test is not about learning."""
    path = tmp_path_factory.mktemp("held_out") / "few.jsonl"
    rows = (ROOT / EXAMPLE / "train.jsonl").read_text().splitlines()[-8:]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="session")
def small_run(leyden: Leyden, few_held_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of three steps, with the engine's own log and every checkpoint."""
    runs = tmp_path_factory.mktemp("runs")
    arguments = small_training(runs, "small", "--steps", "3", "--val", str(few_held_out), "--engine-log")
    done = leyden(*arguments, "--tracker", "tensorboard", "--keep-checkpoints", "9")
    assert done.returncode == 0, done.stderr
    return runs / "small"


@pytest.fixture(scope="session")
def real_policy(leyden: Leyden, trusted_authorities: dict[str, str]) -> Path:
    """The folder of SmolLM2-135M, which stays in the checkout; skips the test where no package index can be reached."""
    folder = ROOT / "policies/smollm2-135m"
    done = leyden("policies", "fetch", "smollm2-135m", timeout=600, **trusted_authorities)
    if done.returncode and "was not fetched" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def verl_runs(tmp_path_factory: pytest.TempPathFactory) -> "Generator[Runs]":
    """Runs with VERL, on a Ray cluster of their own."""
    from verl_cpu.runs import Runs, ray_head, variables

    with tempfile.TemporaryDirectory(prefix="verl-") as temporary:  # VERL leaves a lock there for each checkpoint
        of_all = variables() | {"TMPDIR": temporary}
        with ray_head(tmp_path_factory.mktemp("ray") / "ray.log", of_all) as head:
            started = Runs(head, of_all)
            yield started
            started.end()
