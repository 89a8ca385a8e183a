"""Leyden's section of the dictionary, and the versions that are needed, where VERL itself is not asked."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.verl import settings
from leyden.core.algorithm.verl.algorithm import VERL, VERLConfig
from leyden.core.algorithm.verl.driver import versions
from leyden.core.algorithm.verl.driver.owned_settings import ESTIMATORS, INSTEAD
from leyden.core.algorithm.verl.settings import LeydenOptions, compose
from leyden.core.cli.options import read_settings
from leyden.core.errors import UsageError

THERE = {**versions.TESTED, **dict.fromkeys(versions.BESIDE, "1.0")}


def find_only(monkeypatch: pytest.MonkeyPatch, found: dict[str, str]) -> None:
    monkeypatch.setattr(versions, "installed", found.get)


def test_the_tested_versions_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    find_only(monkeypatch, THERE)
    versions.check_versions()


@pytest.mark.parametrize(
    ("config", "overrides", "named"),
    [
        ({"actor_rollout_ref": {"model": {"path": "org/model"}}}, (), "org/model"),
        ({"actor_rollout_ref.model.path": "org/model"}, ("actor_rollout_ref.model.path=other",), "other"),
        ({"trainer": {"nnodes": 2}}, (), None),
    ],
)
def test_verls_dictionary_names_the_policy_of_a_run_that_names_none(
    config: dict[str, Any], overrides: tuple[str, ...], named: str | None
) -> None:
    assert VERL(VERLConfig(config=config, overrides=overrides)).named_policy == named


def test_what_a_command_line_reads_as_a_number_is_a_variable_as_it_is_written() -> None:
    given = read_settings(
        ["environment.NCCL_IB_DISABLE=1", "environment.SHARE=0.5", "environment.A=b", "ray_address=c"]
    )
    found = make_algorithm("verl", given)
    assert isinstance(found, VERL)
    assert found.config.variables == {"NCCL_IB_DISABLE": "1", "SHARE": "0.5", "A": "b"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"verl": None}, r"algorithm verl needs verl, which is not installed: pip install verl==0\.9\.1 Transfer"),
        ({"verl": "0.10.0"}, r"is built on verl 0\.9\.x and finds 0\.10\.0: pip install verl==0\.9\.1"),
        ({"verl": "0.90"}, r"is built on verl 0\.9\.x and finds 0\.90"),
        ({"TransferQueue": "0.2.0"}, r"TransferQueue 0\.1\.x and finds 0\.2\.0: pip install TransferQueue==0\.1\.11"),
        ({"ray": None}, r"needs ray, which is not installed"),
        ({"nvtx": None, "pyzmq": None}, r"VERL does not start without nvtx, pyzmq: pip install nvtx pyzmq"),
    ],
)
def test_another_version_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    find_only(monkeypatch, {name: found for name, found in {**THERE, **changed}.items() if found is not None})
    with pytest.raises(UsageError, match=said):
        compose({})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"normalisation": "constant"}, r"leyden\.tokens_per_rollout: constant normalisation needs this number"),
        ({"tokens_per_rollout": 9}, r"leyden\.tokens_per_rollout has no effect with token normalisation"),
        ({"credit": "nothing"}, r"unknown credit assignment 'nothing'"),
        ({"normalisation": "row"}, r"leyden: Invalid enum value 'row'"),
    ],
)
def test_a_section_that_cannot_work_is_refused(section: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        LeydenOptions.of(section)


def test_an_estimation_needs_an_estimator() -> None:
    assert LeydenOptions.of({"advantage": {"name": "gae", "lam": 0.5}}).estimation().estimator == ADVANTAGE.make(
        {"name": "gae", "lam": 0.5}
    )
    with pytest.raises(UsageError, match=r"leyden\.advantage is missing"):
        LeydenOptions.of({}).estimation()


def test_every_estimator_that_is_taken_exists_here() -> None:
    assert set(ESTIMATORS.values()) <= set(ADVANTAGE.names())
    assert not set(ESTIMATORS) & set(INSTEAD)


def test_only_what_runs_in_processes_of_verl_imports_it() -> None:
    home = Path(str(settings.__file__)).parent
    assert {path.name for path in home.rglob("*.py") if imported(path) & THEIRS} == MODULES


MODULES = {"adjusting_engine.py", "verl_config.py", "verl_queue.py", "verl_trainer.py"}
THEIRS = {"verl", "transfer_queue", "hydra", "omegaconf"}


def imported(path: Path) -> set[str]:
    """The top-level names of what a module imports, in whichever way."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            found |= {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return {name.partition(".")[0] for name in found}


@pytest.mark.integration
def test_nothing_of_verl_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys; from leyden.core.algorithm.verl import settings, rows, advantages;"
        "print(sorted({'torch', 'verl', 'ray', 'hydra', 'transfer_queue'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 100_000])
def test_a_setting_that_no_number_or_list_can_be_is_one_line(value: str) -> None:
    with pytest.raises(
        UsageError, match=r"^--set x: the value of [\d,]+ characters is too long, or nested too deeply$"
    ):
        read_settings([f"x={value}"])
