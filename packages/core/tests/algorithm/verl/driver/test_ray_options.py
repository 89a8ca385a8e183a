"""How a run joins or starts its Ray cluster, from VERL's own section about it."""

from importlib.util import find_spec

import pytest

from leyden.core.algorithm.verl.driver.launch import ray_options

USUAL = {"env_vars": {"NCCL_DEBUG": "WARN", "A": "verl"}, "working_dir": None}
DEFAULT = {"num_cpus": None, "runtime_env": {"py_executable": None}}


def test_a_cluster_is_started_with_what_the_dictionary_says() -> None:
    assert ray_options(DEFAULT, USUAL, {"A": "run"}, None) == {
        "runtime_env": {"env_vars": {"NCCL_DEBUG": "WARN", "A": "run"}, "working_dir": None}
    }
    given = {"num_cpus": 8, "runtime_env": {"py_executable": "uv run", "env_vars": {"B": "user", "C": "user"}}}
    assert ray_options(given, USUAL, {"C": "run"}, None) == {
        "num_cpus": 8,
        "runtime_env": {
            "env_vars": {"NCCL_DEBUG": "WARN", "A": "verl", "B": "user", "C": "run"},
            "working_dir": None,
            "py_executable": "uv run",
        },
    }


def test_an_existing_cluster_is_joined_with_its_own_size() -> None:
    options = ray_options({"num_cpus": 8, "runtime_env": {"py_executable": "python3"}}, USUAL, {}, "10.0.0.1:6379")
    assert options.keys() == {"address", "runtime_env"}
    assert options["address"] == "10.0.0.1:6379"
    assert options["runtime_env"]["py_executable"] == "python3"


@pytest.mark.skipif(find_spec("verl") is None, reason="VERL is not installed")
@pytest.mark.filterwarnings("ignore")  # those of VERL's own imports
def test_verls_own_section_is_what_this_is_made_of() -> None:
    from leyden.core.algorithm.verl.verl_config import default_config

    given = default_config()["ray_kwargs"]["ray_init"]
    assert ray_options(given, USUAL, {}, None) == {"runtime_env": USUAL}
