"""A device that cannot be used is refused in one line, before anything is loaded or made."""

from pathlib import Path
from typing import Any

import pytest
import torch

from leyden.core.cli.main import run
from leyden.core.errors import UsageError
from leyden.core.policy.device import bfloat16_warning, check_device
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.launch import ResumeChanges, begin, resume
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.trainer import Trainer

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU that PyTorch can use")
ROWS = '{"question": "?"}\n'
REFUSED = [
    ("tpu", "device must be cpu or cuda, not 'tpu'"),
    ("mps", "device must be cpu or cuda, not 'mps'"),
    ("cuda:1", "choose another with CUDA_VISIBLE_DEVICES=1"),
    pytest.param("cuda", "device cuda cannot be used: ", marks=WITHOUT_GPU),
]


def no_sitting(*given: Any) -> Any:
    pytest.fail(f"a sitting begins: {given}")


def config(**changes: Any) -> RunConfig:
    given: dict[str, Any] = {"name": "r", "agent": "agent.py:agent", "policy": "nowhere/policy", **changes}
    return RunConfig(**given)


@pytest.mark.parametrize(("device", "said"), REFUSED)
@pytest.mark.parametrize("command", ["train", "check", "dev", "exec", "gateway"])
def test_every_command_refuses_it_in_one_line_and_leaves_nothing(
    command: str, device: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.jsonl").write_text(ROWS)
    shared = ["--policy", "nowhere/policy", "--device", device]
    tasks = ["agent:agent", "--tasks", str(tmp_path / "tasks.jsonl")]
    runs = ["--runs", str(tmp_path / "runs"), "--name", "r"]
    arguments = {
        "train": [*tasks, *runs],
        "check": [*tasks, *runs],
        "dev": tasks,
        "exec": [],
        "gateway": ["--store", f"sqlite:///{tmp_path}/captures.db"],
    }[command]
    end = ["--", "true"] if command == "exec" else []
    assert run([command, *arguments, *shared, *end]) == 2
    stderr = capsys.readouterr().err
    assert said in stderr
    assert stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


@WITHOUT_GPU
def test_the_name_of_a_run_stays_free(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="device cuda cannot be used"):
        begin(tmp_path, config(device="cuda"), [{"question": "?"}], {}, no_sitting)
    begun: list[RunConfig] = []

    def run_session(_: RunFolder, given: RunConfig) -> Any:
        begun.append(given)

    begin(tmp_path, config(), [{"question": "?"}], {}, run_session)
    assert [given.device for given in begun] == ["cpu"]


@WITHOUT_GPU
def test_a_run_of_another_machine_goes_on_with_the_device_that_is_here(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, config(device="cuda"), [{"question": "?"}], {})
    with pytest.raises(UsageError, match="use device cpu"):
        resume(tmp_path, "r", no_sitting)
    begun: list[str] = []

    def run_session(_: RunFolder, given: RunConfig) -> Any:
        begun.append(given.device)

    resume(tmp_path, "r", run_session, ResumeChanges(device="cpu"), has_agent=True)
    resume(tmp_path, "r", run_session, has_agent=True)
    assert begun == ["cpu", "cpu"]


@pytest.mark.parametrize(("device", "said"), REFUSED)
def test_the_trainer_refuses_it_too(device: str, said: str, tmp_path: Path) -> None:
    trainer = Trainer(policy="nowhere/policy", device=device, name="r", runs=tmp_path, quiet=True)
    for use in (trainer.fit, trainer.check, trainer.dev):
        with pytest.raises(UsageError, match=said):
            use("agent.py:agent", [{"question": "?"}])
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_a_policy_is_not_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text(ROWS)
    endpoint = ["--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--device", "cuda"]
    assert run(["dev", "agent.py:agent", "--tasks", str(tmp_path / "tasks.jsonl"), *endpoint]) == 2
    assert "--device has no effect with --endpoint" in capsys.readouterr().err


def test_the_cpu_is_there() -> None:
    check_device("cpu")


@pytest.mark.parametrize(
    ("machine", "bf16", "amx", "warns"),
    [
        ("x86_64", False, False, True),
        ("x86_64", True, False, False),
        ("AMD64", False, True, False),
        ("aarch64", False, False, False),
    ],
)
def test_bfloat16_without_instructions_for_it_is_named_with_the_options_that_avoid_it(
    monkeypatch: pytest.MonkeyPatch, machine: str, bf16: bool, amx: bool, warns: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    line = bfloat16_warning("cpu", engine=True, trainer=True)
    assert (line is not None) == warns
    if line is not None:
        assert line.endswith("faster: --set precision=float32 and --engine-precision float32")
        assert bfloat16_warning("cpu", engine=False, trainer=True) == line.partition(" and ")[0]
    assert bfloat16_warning("cpu", engine=False, trainer=False) is None
    assert bfloat16_warning("cuda", engine=True, trainer=True) is None
