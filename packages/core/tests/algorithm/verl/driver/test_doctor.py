import json
import socket
import subprocess
from pathlib import Path

import pytest

from leyden.core.algorithm.verl.driver import doctor
from leyden.core.algorithm.verl.driver.doctor import DoctorOptions, Finding, examine
from leyden.core.cli.main import run


@pytest.fixture
def nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out Ray, which takes half a minute to begin, and VERL, which takes as long to load."""

    def ray(patient: DoctorOptions) -> list[Finding]:
        return [Finding(check="Ray", status="ok", found="a task ran")]

    monkeypatch.setattr(doctor, "_ray", ray)


def found(patient: DoctorOptions) -> dict[str, Finding]:
    return {finding.check: finding for finding in examine(patient)}


@pytest.mark.usefixtures("nothing_long")
def test_versions_are_held_against_those_that_were_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = {"verl": "0.8.0", "ray": "2.60.0", "tensordict": "0.10.0", "torch": "2.13.0", "transformers": "5.11.0"}
    monkeypatch.setattr(doctor, "installed", there.get)
    findings = found(DoctorOptions(runs=tmp_path, smoke=False))
    assert findings["ray"].status == "ok"
    assert (findings["verl"].status, findings["verl"].fix) == ("failed", "pip install verl==0.9.1")
    assert "0.8.0" in findings["verl"].found
    assert (findings["TransferQueue"].status, findings["TransferQueue"].found) == ("failed", "not installed")
    assert findings["transformers"].fix == "pip install transformers==5.10.*"
    assert findings["vllm"].status == "failed"
    assert findings["vllm"].fix.startswith("pip install vllm==")
    assert "pyzmq" in findings["VERL's own needs"].fix


@pytest.mark.usefixtures("nothing_long")
def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        monkeypatch.setattr(doctor, "PORTS", {port: ("Ray's head", "--port")})
        finding = found(DoctorOptions(runs=tmp_path, smoke=False))[f"port {port}"]
        assert finding.status == "failed"
        assert "in use" in finding.found
        assert "`ray start --head --port=N`" in finding.fix
        assert f"port {port}" not in found(DoctorOptions(runs=tmp_path, smoke=False, ray_address="auto"))
    assert found(DoctorOptions(runs=tmp_path, smoke=False))[f"port {port}"].status == "ok"


@pytest.mark.usefixtures("nothing_long")
def test_a_policy_must_be_whole(tmp_path: Path) -> None:
    def look() -> Finding:
        return found(DoctorOptions(runs=tmp_path, smoke=False, policy=str(tmp_path / "policy")))["policy"]

    assert "is not a folder" in look().found
    (tmp_path / "policy").mkdir()
    assert "config.json" in look().found
    for name, text in {"config.json": "{}", "tokenizer_config.json": "{}", "model.safetensors": ""}.items():
        (tmp_path / "policy" / name).write_text(text)
    assert (look().status, look().found) == ("failed", "without a chat template")
    (tmp_path / "policy/chat_template.jinja").write_text("{{ messages }}")
    assert look().status == "ok"


@pytest.mark.usefixtures("nothing_long")
def test_little_room_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SHARED_BYTES", 1 << 60)
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 60)
    findings = found(DoctorOptions(runs=tmp_path / "not/yet", smoke=False))
    assert "--shm-size" in findings["shared memory"].fix
    assert str(tmp_path) in findings["disk"].found
    assert findings["disk"].status == "failed"


@pytest.mark.usefixtures("nothing_long")
def test_a_check_that_cannot_look_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(patient: DoctorOptions) -> list[Finding]:
        raise PermissionError("not yours to see")

    def nothing(patient: DoctorOptions) -> list[Finding]:
        return []

    for name in ("_versions", "_gpus", "_ports"):
        monkeypatch.setattr(doctor, name, nothing)
    arguments = ["verl", "doctor", "--no-smoke", "--json", "--runs", str(tmp_path)]
    monkeypatch.setattr(doctor, "DISK_BYTES", 0)
    monkeypatch.setattr(doctor, "SHARED_BYTES", 0)
    assert run(arguments) == 0
    monkeypatch.setattr(doctor, "_gpus", breaks)
    capsys.readouterr()
    assert run(arguments) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "check": "GPUs",
        "status": "unknown",
        "found": "the check failed: PermissionError: not yours to see",
        "fix": "fix the error and run this again; if you cannot, report it",
    }
    assert run([word for word in arguments if word != "--json"]) == 1
    assert "1 of 4 checks did not pass" in capsys.readouterr().out


def test_a_cluster_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    patient = DoctorOptions(runs=tmp_path, smoke=False, ray_address="127.0.0.1:9")
    finding = found(patient)["Ray"]
    assert finding.status == "failed"
    assert "no Ray cluster can be joined" in finding.found or "leyden-core[ray]" in finding.found


def on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """Put an `nvidia-smi` that says this before everything else."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.usefixtures("nothing_long")
def test_a_gpu_that_torch_cannot_use_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_SMOKE", "print('a backward pass ran on cpu')")
    assert found(DoctorOptions(runs=tmp_path))["smoke step"].status == "ok"
    on_the_path(tmp_path / "bin", monkeypatch, "NVIDIA H100, 81559, 12")
    findings = found(DoctorOptions(runs=tmp_path))
    assert (findings["GPU 0"].status, findings["GPU 0"].found) == ("ok", "NVIDIA H100, 12 of 81,559 MiB in use")
    assert findings["smoke step"].status == "failed"
    assert "cannot use the GPUs" in findings["smoke step"].fix


@pytest.mark.parametrize(("gpus", "status"), [(0, "failed"), (8, "ok"), (10, "ok")])
def test_a_cluster_that_is_joined_must_have_gpus_and_this_node_need_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int, status: str
) -> None:
    said = f"joined a:6379: 3 nodes, 24 CPUs, {gpus} GPUs; a task ran\n"

    def ran(*args: object, **kwargs: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 0, said, "")

    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = found(DoctorOptions(runs=tmp_path, smoke=False, ray_address="a:6379"))
    assert (findings["Ray"].status, findings["Ray"].found) == (status, said.strip())
    assert bool(findings["Ray"].fix) == (status == "failed")
    assert "GPUs" not in findings
    assert found(DoctorOptions(runs=tmp_path, smoke=False))["GPUs"].status == "failed"


def test_nothing_that_is_wrong_is_without_a_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_SMOKE", "raise SystemExit('no VERL')")
    monkeypatch.setattr(doctor, "installed", dict[str, str]().get)
    monkeypatch.setattr(doctor, "SHARED_BYTES", 1 << 60)
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 60)
    patient = DoctorOptions(runs=tmp_path, ray_address="127.0.0.1:9", policy=str(tmp_path / "none"))
    findings = list(examine(patient))
    assert {finding.status for finding in findings} == {"failed"}
    assert all(finding.fix for finding in findings)


@pytest.mark.usefixtures("nothing_long")
def test_a_long_path_is_shown_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(["verl", "doctor", "--no-smoke", "--runs", str(tmp_path), "--policy", str(tmp_path / ("deep/" * 12 + "end"))])
    assert "…" not in capsys.readouterr().out
