"""Jobs: commands in processes of their own, their progress, their end, and what outlives the console."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from leyden.console.actions import jobs as module
from leyden.console.actions.jobs import Job, Jobs
from leyden.core.errors import RunError

pytestmark = pytest.mark.integration


@pytest.fixture
async def jobs() -> AsyncGenerator[Jobs]:
    """Jobs whose command is Python in place of leyden: `start(kind, title, [PROGRAM])`."""
    own = Jobs([sys.executable, "-c"])
    yield own
    await own.close()


def start(jobs: Jobs, program: str, *, detached: bool = False) -> Job:
    """Start a job that runs a program in place of `leyden`."""
    return jobs.start("test", "a test", [program], detached=detached)


async def test_a_job_of_several_phases_names_the_one_of_its_progress(jobs: Jobs) -> None:
    program = (
        "import sys, json\n"
        "for at in ({'done': 8, 'total': 8, 'phase': 'first'}, {'done': 1, 'total': 9, 'phase': 'second'}):\n"
        "    print(json.dumps({'progress': at}), file=sys.stderr)"
    )
    ended = await jobs.ended(start(jobs, program).id)

    assert (ended.done, ended.total, ended.phase, ended.output) == (1, 9, "second", [])


async def test_a_job_has_progress_output_and_a_result(jobs: Jobs) -> None:
    job = start(
        jobs,
        "import sys, json; print(json.dumps({'progress': {'done': 3, 'total': 9}}), file=sys.stderr);"
        "print('a line for a person', file=sys.stderr); print('{\"a\": 1}')",
    )
    assert job.state == "waiting"

    ended = await jobs.ended(job.id)

    assert (ended.state, ended.exit_code, ended.result) == ("finished", 0, {"a": 1})
    assert (ended.done, ended.total, ended.output) == (3, 9, ["a line for a person"])
    assert jobs.listing()[0].result is None


async def test_a_job_that_fails_keeps_its_reason(jobs: Jobs) -> None:
    ended = await jobs.ended(start(jobs, "import sys; sys.exit('leyden: no such run')").id)

    assert (ended.state, ended.exit_code, ended.output) == ("failed", 1, ["leyden: no such run"])


async def test_a_file_of_a_job_has_the_name_that_pages_know(jobs: Jobs) -> None:
    program = "import sys; sys.exit('leyden: /tmp/job-1/reward.py has no score')"
    job = start(jobs, program)
    jobs.show_as(job.id, {"/tmp/job-1/reward.py": "the edited text"})

    assert (await jobs.ended(job.id)).output == ["leyden: the edited text has no score"]


@pytest.mark.parametrize("code", [130, 143])
async def test_a_training_that_another_command_stops_has_not_failed(jobs: Jobs, code: int) -> None:
    ended = await jobs.ended(start(jobs, f"import sys; sys.exit({code})").id)

    assert (ended.state, ended.exit_code) == ("stopped", code)


async def test_leyden_itself_runs_and_its_text_is_the_output() -> None:
    jobs = Jobs()
    ended = await jobs.ended(jobs.start("version", "the version", ["--version"]).id)
    await jobs.close()

    assert (ended.state, ended.command) == ("finished", "leyden --version")
    assert ended.output[0].startswith("leyden")


async def test_a_job_is_stopped_with_all_that_it_started(jobs: Jobs, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    job = start(
        jobs,
        "import subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f"open({str(pid)!r}, 'w').write(str(child.pid)); time.sleep(60)",
    )
    while not (pid.exists() and pid.read_text()):
        await asyncio.sleep(0.05)

    jobs.stop(job.id)
    ended = await asyncio.wait_for(jobs.ended(job.id), 20)

    assert (ended.state, ended.exit_code) == ("stopped", -signal.SIGTERM)
    for _ in range(100):
        if not Path(f"/proc/{pid.read_text()}").exists():
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("the child still runs")


async def test_a_job_that_ignores_sigterm_is_killed(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.5)
    ready = tmp_path / "ready"
    job = start(
        jobs,
        "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(60)",
    )
    while not ready.exists():
        await asyncio.sleep(0.05)

    jobs.stop(job.id)

    assert (await asyncio.wait_for(jobs.ended(job.id), 20)).exit_code == -signal.SIGKILL


async def test_no_more_than_two_jobs_run_and_a_waiting_one_can_be_stopped(jobs: Jobs) -> None:
    long = [start(jobs, "import time; time.sleep(60)") for _ in range(3)]
    await asyncio.sleep(1.0)
    assert [job.state for job in long] == ["running", "running", "waiting"]

    jobs.stop(long[2].id)

    assert (await jobs.ended(long[2].id)).state == "stopped"


async def test_a_training_outlives_the_console_and_another_job_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its files stay
    jobs, pid = Jobs([sys.executable, "-c"]), tmp_path / "pid"
    program = f"import os, pathlib, time; pathlib.Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(60)"
    training = start(jobs, program, detached=True)
    other = start(jobs, "import time; time.sleep(60)")
    while not (pid.exists() and pid.read_text()):
        await asyncio.sleep(0.05)

    await jobs.close()

    assert (jobs.job(other.id).state, jobs.job(training.id).exit_code) == ("stopped", None)
    os.kill(int(pid.read_text()), signal.SIGKILL)  # it still runs
    assert os.waitpid(int(pid.read_text()), 0)[1] == signal.SIGKILL


async def test_there_is_no_job_of_another_number(jobs: Jobs) -> None:
    with pytest.raises(RunError, match="no job '5'"):
        jobs.job("5")
