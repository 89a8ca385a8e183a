"""How the process of a run is started: its command, environment and address."""

import socket
from pathlib import Path
from typing import Any

import pytest
from supervised_runs import budget, run_config

from leyden.core.errors import UsageError
from leyden.core.masking import OWN_TOKENS
from leyden.core.server.records import RunRecord
from leyden.core.server.session_command import PROGRAM, SessionPlan, session_command, session_environment
from leyden.core.trainer.agents.placement import RunnerPlacement
from leyden.core.trainer.config import load_config
from leyden.core.trainer.preflight.machine import free_memory
from leyden.core.trainer.run_folder.folder import RunFolder


def record(**more: Any) -> RunRecord:
    return RunRecord(name="calc", order=1, submitted=0.0, budget=budget(128), port=4321, **more)


def remote(**more: Any) -> Any:
    return run_config("calc", runners=RunnerPlacement(where="remote"), **more)


def test_a_session_gets_no_token_of_the_server_and_only_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OWN_TOKENS:
        monkeypatch.setenv(name, f"secret of {name}")
    plan, run = SessionPlan(project=tmp_path), record()
    given = session_environment(run, plan)
    assert OWN_TOKENS & given.keys() == {"LEYDEN_RUN_TOKEN"} and given["LEYDEN_RUN_TOKEN"] == run.token
    assert len(run.token) >= 40 and run.token not in repr(run) and record().token != run.token
    shared = session_environment(run, SessionPlan(project=tmp_path, store="postgresql://me:password@db/runs"))
    assert OWN_TOKENS & shared.keys() == {"LEYDEN_RUN_TOKEN", "LEYDEN_STORE", "LEYDEN_STORE_TOKEN"}
    assert shared["LEYDEN_STORE"] == "postgresql://me:password@db/runs"
    assert "password" not in repr(SessionPlan(project=tmp_path, store="postgresql://me:password@db/runs"))


def test_the_check_of_a_run_sees_its_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in session_environment(record(), SessionPlan(project=tmp_path)).items():
        monkeypatch.setenv(name, value)
    assert free_memory("cpu") == 128 << 20


def test_a_session_resumes_with_other_steps(tmp_path: Path) -> None:
    plan = SessionPlan(project=tmp_path)
    assert session_command(record(), tmp_path, plan) == [*PROGRAM, "train", "--resume", "calc", "--runs", str(tmp_path)]
    assert session_command(record(steps=9), tmp_path, plan)[len(PROGRAM) + 5 :] == ["--steps", "9"]


def test_only_a_run_with_remote_agents_listens_beyond_the_loopback(tmp_path: Path) -> None:
    plan = SessionPlan(project=tmp_path, host="0.0.0.0", advertise="https://train.example:8770", allow_hosts=("a",))
    here = plan.placed(run_config("calc", artifacts="copies"), 4321)
    assert (here.runners.host, here.runners.port, here.runners.advertise) == ("127.0.0.1", 4321, None)
    assert here.artifacts == f"{tmp_path}/copies"
    there = plan.placed(remote(artifacts="s3://bucket/runs"), 4321)
    assert there.runners == RunnerPlacement(
        where="remote", host="0.0.0.0", port=4321, advertise="https://train.example:4321", allow_hosts=("a",)
    )
    assert there.artifacts == "s3://bucket/runs"
    with pytest.raises(UsageError, match="the server chooses the store of its runs"):
        plan.placed(run_config("calc", store="sqlite:///own.db"), 4321)
    with pytest.raises(UsageError, match=r"algorithm own\.py:Own is code"):
        plan.placed(run_config("calc", algorithm="own.py:Own"), 4321)


@pytest.mark.integration
@pytest.mark.parametrize("advertise", [None, "https://train.example"])
def test_a_run_whose_port_is_taken_gets_another_one(tmp_path: Path, advertise: str | None) -> None:
    plan = SessionPlan(project=tmp_path, advertise=advertise)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        folder = RunFolder.create(tmp_path, plan.placed(remote(), taken), ["x"], {})
        run = record()
        run.port = taken
        plan.check_port(folder, run)
        assert run.port != taken
    placement = load_config(folder.config_file).runners
    assert placement.port == run.port
    assert placement.advertise == (None if advertise is None else f"{advertise}:{run.port}")
    before = folder.config_file.stat().st_mtime_ns
    plan.check_port(folder, run)
    assert folder.config_file.stat().st_mtime_ns == before
