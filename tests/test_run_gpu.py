"""Run files for a GPU: composed and validated by the code that a run uses, without a GPU and without the weights."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from leyden.core.algorithm.registry import make_algorithm
from leyden.core.algorithm.verl.algorithm import VERL
from leyden.core.cli.main import run
from leyden.core.cli.run_file import read_run_file, run_config
from leyden.core.runner.adapters.finding import AgentSource
from leyden.core.runner.user_code.loading import load_object
from leyden.core.trainer.config import RunConfig

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "examples").glob("*/run_gpu*.yaml"))
MODELS = {"Qwen/Qwen2.5-Coder-1.5B-Instruct", "Qwen/Qwen3-1.7B"}

pytestmark = pytest.mark.timeout(600)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT / "examples"))


def configured(path: Path) -> RunConfig:
    """The run's configuration, with the policy that the algorithm names, as `leyden train` makes it."""
    fields = read_run_file(path)
    algorithm = make_algorithm(fields.get("algorithm", "lightning_rl"), fields["algorithm_config"])
    return run_config({**fields, "policy": fields.get("policy") or algorithm.named_policy}, path)


def is_complete(path: Path) -> bool:
    """Whether the agent, the reward and the tasks that a file names are there."""
    fields = read_run_file(path)
    sources = [fields["agent"], fields["reward"], fields["tasks"], *(one["source"] for one in fields["held_out"])]
    return all((ROOT / source.partition(":")[0]).exists() for source in sources)


def with_verl(*, wanted: bool) -> list[Any]:
    found = [path for path in FILES if is_complete(path) or wanted]
    return [
        pytest.param(path, id=named(path))
        for path in found
        if (read_run_file(path).get("algorithm", "") == "verl") is wanted
    ]


def test_each_example_has_a_file_for_all_weights_for_adapters_and_for_verl() -> None:
    folders = {path.parent for path in FILES}
    assert len(folders) >= 5
    wanted = {"run_gpu.yaml", "run_gpu_lora.yaml", "run_gpu_verl.yaml"}
    for folder in folders:
        assert {path.name for path in FILES if path.parent == folder} == wanted
    assert any(is_complete(path) for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=named)
def test_the_settings_make_a_configuration_with_a_public_policy(path: Path) -> None:
    config = configured(path)

    assert set(config.policies.values()) <= MODELS
    assert config.policies, "a policy is named"
    algorithm = make_algorithm(config.algorithm, config.algorithm_config)
    algorithm.check_steps(config.steps)
    folder = f"examples/{path.parent.name}/"
    assert isinstance(config.agent, str)
    assert all(name.startswith(folder) for name in (config.agent, config.tasks, config.reward or ""))
    if not isinstance(algorithm, VERL):
        assert (config.device, config.engine) == ("cuda", "vllm")
        lora: Any = config.algorithm_config.get("lora")
        assert (lora is not None) is ("lora" in path.name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so a run would begin")
@pytest.mark.parametrize("path", with_verl(wanted=False))
def test_only_the_gpu_is_missing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)

    code = run(["train", "--config", named_from_root(path), "--runs", str(tmp_path)])

    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("leyden: ")]
    assert code == 2
    assert len(said) == 1
    assert said[0].startswith("leyden: device cuda cannot be used")


def named_from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.skipif(find_spec("verl") is None, reason="VERL is not installed")
@pytest.mark.filterwarnings("ignore")  # those of VERL's own imports
@pytest.mark.parametrize("path", with_verl(wanted=True))
def test_verls_configuration_composes_with_that_of_the_run(path: Path, tmp_path: Path) -> None:
    from leyden.core.algorithm.verl.driver.derived_settings import TrainerFiles, own_settings, usual_settings
    from leyden.core.algorithm.verl.settings import compose
    from leyden.core.trainer.context.external_loop import loop_plan

    config = configured(path)
    (policy,) = config.policies.values()
    plan = loop_plan(config)
    files = TrainerFiles(training=tmp_path / "t", held_out=tmp_path / "h", checkpoints=tmp_path / "c")
    usual = usual_settings(config.algorithm_config["config"], (), plan.steps, plan)
    composed = compose(usual, (), own_settings(usual, plan, files, 0))

    assert composed["actor_rollout_ref"]["model"]["path"] == policy
    assert composed["actor_rollout_ref"]["rollout"]["n"] == config.group_size
    assert composed["data"]["train_batch_size"] == config.tasks_per_step
    assert composed["trainer"]["total_training_steps"] == config.steps
    assert composed["trainer"]["test_freq"] == config.eval_every


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # those of the frameworks, which an agent causes as it is imported
@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name == "run_gpu.yaml" and is_complete(path)], ids=named
)
def test_the_agent_takes_the_tasks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = configured(path)
    assert isinstance(config.agent, str)
    source = AgentSource.load(config.agent)
    for line in (ROOT / config.tasks).read_text().splitlines()[:3]:
        source.adapter.check(source.agent, json.loads(line))
    assert callable(load_object(str(config.reward)))
