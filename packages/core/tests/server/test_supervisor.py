"""What becomes of the runs of a server: the queue, budgets, killed processes, and servers that end and start again."""

import os
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from scripted_session import JOURNAL, PROGRAM
from supervised_runs import budget, run_config, supervising, until, until_step

from leyden.core.errors import RunError, UsageError
from leyden.core.server.records import FOLDER, Records, RunRecord
from leyden.core.server.session_command import SessionPlan
from leyden.core.server.supervisor import MOST_KILLS, Supervisor
from leyden.core.trainer.launch import ResumeChanges
from leyden.core.trainer.run_folder.folder import RunFolder

pytestmark = pytest.mark.integration


def taken(runs: Path) -> Counter[str]:
    return Counter((runs / JOURNAL).read_text().splitlines())


def recorded(runs: Path, name: str) -> RunRecord:
    return msgspec.json.decode((runs / FOLDER / f"{name}.json").read_bytes(), type=RunRecord)


async def test_runs_start_in_order_when_their_budgets_fit(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs", memory=500) as supervisor:
        await supervisor.submit(run_config("slow-a"), ["x"], {}, budget(300))
        await supervisor.submit(run_config("large"), ["x"], {}, budget(400))
        await supervisor.submit(run_config("small"), ["x"], {}, budget(100))
        states = {status.name: (status.state, status.reason) for status in supervisor.statuses()}
        assert states == {
            "slow-a": ("running", None),
            "large": ("queued", "waits for 400 MiB of memory (200 MiB of 500 MiB left)"),
            "small": ("queued", "waits behind run large"),
        }
        for name in states:
            assert (await until(supervisor, name, "finished")).step == 3
        assert set(taken(tmp_path / "runs").values()) == {1}
        with pytest.raises(UsageError, match="has only 500 MiB of memory and 2 cores"):
            await supervisor.submit(run_config("huge"), ["x"], {}, budget(501))
        with pytest.raises(RunError, match="run 'small' exists"):
            await supervisor.submit(run_config("small"), ["x"], {}, budget())


async def test_a_run_has_cores_of_its_own(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs", cores=len(os.sched_getaffinity(0))) as supervisor:
        await supervisor.submit(run_config("slow-a"), ["x"], {}, budget())
        process = recorded(supervisor.runs, "slow-a").session
        assert process is not None
        assert len(os.sched_getaffinity(process.pid)) == 1
        assert len(os.sched_getaffinity(0)) == supervisor.total.cores
        await until(supervisor, "slow-a", "finished")


async def test_a_killed_run_goes_on_and_takes_no_step_twice(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("frail"), ["x"], {}, budget())
        await until(supervisor, "frail", "finished")
        assert taken(supervisor.runs) == {f"frail {step}": 1 for step in (1, 2, 3)}
        assert supervisor.output("frail").read_text().count("session of frail") == 2


async def test_a_run_that_is_killed_again_and_again_is_given_up(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("doomed"), ["x"], {}, budget())
        status = await until(supervisor, "doomed", "interrupted")
        assert status.reason == f"its process was killed {MOST_KILLS} times in a row without a new step"
        assert supervisor.output("doomed").read_text().count("session of doomed") == MOST_KILLS
        assert (await supervisor.resume("doomed", ResumeChanges())).state == "running"
        await until(supervisor, "doomed", "interrupted")


async def test_a_run_that_exceeds_its_memory_fails_and_the_others_go_on(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("hungry"), ["x"], {}, budget(200))
        await supervisor.submit(run_config("calm"), ["x"], {}, budget(200))
        status = await until(supervisor, "hungry", "failed", "finished")
        assert status.reason is not None and "and its budget is 200 MiB: resume it with a larger" in status.reason
        assert (await until(supervisor, "calm", "finished")).step == 3


async def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("broken"), ["x"], {}, budget())
        status = await until(supervisor, "broken", "failed")
        assert status.reason == "this run is broken"
        with pytest.raises(RunError, match="broken' is failed already"):
            supervisor.stop_run("broken")


async def test_a_damaged_run_fails_and_the_others_go_on(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs", cores=1) as supervisor:
        await supervisor.submit(run_config("slow"), ["x"], {}, budget())
        await supervisor.submit(run_config("damaged"), ["x"], {}, budget())
        await supervisor.submit(run_config("calm"), ["x"], {}, budget())
        file = RunFolder(supervisor.runs / "damaged").metrics_file
        file.write_text("no metrics\n")
        await until(supervisor, "calm", "finished")
        with pytest.raises(RunError, match=r"metrics\.jsonl, line 1 cannot be read"):
            supervisor.status("damaged")
        file.unlink()
        status = supervisor.status("damaged")
        assert status.state == "failed" and "could not be started" in (status.reason or "")


async def test_runs_are_stopped_resumed_and_removed(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs", cores=1) as supervisor:
        await supervisor.submit(run_config("slow"), ["x"], {}, budget())
        await supervisor.submit(run_config("next"), ["x"], {}, budget())
        assert supervisor.stop_run("next").state == "stopped"
        with pytest.raises(RunError, match="stop it before you remove it"):
            await supervisor.remove("slow")
        await until_step(supervisor, "slow", 1)
        assert supervisor.stop_run("slow").state == "stopping"
        status = await until(supervisor, "slow", "stopped")
        assert status.reason == "requested by SIGTERM" and 0 < status.step < 3
        assert (await supervisor.resume("slow", ResumeChanges(steps=4))).steps == 4
        assert (await until(supervisor, "slow", "finished")).step == 4
        assert set(taken(supervisor.runs).values()) == {1}
        with pytest.raises(RunError, match="is finished after 4 steps; give --steps above that"):
            await supervisor.resume("slow", ResumeChanges())
        await supervisor.resume("slow", ResumeChanges(steps=5))
        assert (await until(supervisor, "slow", "finished")).step == 5
        await supervisor.remove("slow")
        assert [status.name for status in supervisor.statuses()] == ["next"]
        assert not (supervisor.runs / "slow").exists()
        with pytest.raises(RunError, match="has no run 'slow'; its runs: next"):
            supervisor.status("slow")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ResumeChanges(settings={"nosuch": 1}), "--set nosuch cannot change on --resume"),
        (ResumeChanges(settings={"learning_rate": 1e-3}, steps=4), "--set learning_rate cannot change on --resume"),
        (ResumeChanges(device="banana"), "device must be cpu or cuda, not 'banana'"),
    ],
)
async def test_a_change_that_is_not_allowed_is_refused_at_once_and_forgotten(
    tmp_path: Path, changes: ResumeChanges, message: str
) -> None:
    async with supervising(tmp_path / "runs", cores=1) as supervisor:
        await supervisor.submit(run_config("slow"), ["x"], {}, budget())
        await until_step(supervisor, "slow", 1)
        supervisor.stop_run("slow")
        await until(supervisor, "slow", "stopped")
        before = (supervisor.runs / "slow/config.yaml").read_text()
        with pytest.raises(UsageError, match=message):
            await supervisor.resume("slow", changes, budget(300))
        status = supervisor.status("slow")
        assert (status.state, status.steps, status.memory) == ("stopped", 3, budget().memory)
        assert (supervisor.runs / "slow/config.yaml").read_text() == before
        await supervisor.resume("slow", ResumeChanges())
        assert (await until(supervisor, "slow", "finished")).step == 3


async def test_runs_stop_with_their_server_and_go_on_with_the_next(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("slow"), ["x"], {}, budget())
        await until(supervisor, "slow", "running")
        await until_step(supervisor, "slow", 1)
    assert RunFolder(tmp_path / "runs/slow").session_stop() == "requested by SIGTERM"
    async with supervising(tmp_path / "runs") as supervisor:
        assert supervisor.status("slow").state in ("queued", "running")
        await until(supervisor, "slow", "finished")
    assert taken(tmp_path / "runs") == {f"slow {step}": 1 for step in (1, 2, 3)}
    async with supervising(tmp_path / "runs") as supervisor:
        assert supervisor.status("slow").state == "finished"
    assert set(taken(tmp_path / "runs").values()) == {1}


@pytest.mark.parametrize("ends_between", [False, True])
async def test_a_server_goes_on_with_the_processes_of_one_that_was_killed(tmp_path: Path, ends_between: bool) -> None:
    plan = SessionPlan(project=tmp_path, program=PROGRAM)
    killed = Supervisor(tmp_path / "runs", budget(1000, 2), plan)
    await killed.start()
    await killed.submit(run_config("slow"), ["x"], {}, budget())
    await until_step(killed, "slow", 1)
    session = recorded(killed.runs, "slow").session
    assert session is not None
    await killed.release()
    if ends_between:
        os.kill(session.pid, signal.SIGKILL)
    async with supervising(tmp_path / "runs") as supervisor:
        # where the process has ended already, the next one starts within the supervision's first round
        assert supervisor.status("slow").state in {"running", "queued" if ends_between else "running"}
        await until(supervisor, "slow", "finished")
        assert supervisor.output("slow").read_text().count("session of slow") == 1 + ends_between
    os.waitpid(session.pid, 0)  # as init does, since this process stands in for the killed server
    assert taken(tmp_path / "runs") == {f"slow {step}": 1 for step in (1, 2, 3)}


async def test_a_run_that_another_command_rolled_back_is_stopped_and_goes_on(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("calm"), ["x"], {}, budget())
        await until(supervisor, "calm", "finished")
        folder = RunFolder(supervisor.runs / "calm")
        folder.report_file.unlink()
        folder.rewind_metrics(1)
        folder.note_session_stop("rolled back to version 1")
        status = supervisor.status("calm")
        assert (status.state, status.reason, status.step) == ("stopped", "rolled back to version 1", 1)
        await supervisor.resume("calm", ResumeChanges())
        assert (await until(supervisor, "calm", "finished")).step == 3


async def test_a_run_that_another_command_trains_is_left_alone(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs") as supervisor:
        await supervisor.submit(run_config("calm"), ["x"], {}, budget())
        await until(supervisor, "calm", "finished")
        with RunFolder(supervisor.runs / "calm").locked():
            assert supervisor.status("calm").reason == "another command trains it, outside of its budget here"
            with pytest.raises(RunError, match="being trained by another command"):
                await supervisor.resume("calm", ResumeChanges(steps=4))


async def test_one_server_has_a_folder_of_runs(tmp_path: Path) -> None:
    async with supervising(tmp_path / "runs"):
        with pytest.raises(RunError, match="another leyden serve has the runs in"):
            Supervisor(tmp_path / "runs", budget(), SessionPlan(project=tmp_path))


async def test_a_submission_that_a_server_was_killed_in_is_forgotten(tmp_path: Path) -> None:
    records = Records(tmp_path / "runs")
    records.write(RunRecord(name="half", order=1, submitted=0.0, budget=budget(), port=1))
    async with supervising(tmp_path / "runs") as supervisor:
        assert supervisor.statuses() == []
        await supervisor.submit(run_config("half"), ["x"], {}, budget())
        await until(supervisor, "half", "finished")


async def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    Records(tmp_path / "runs").path.joinpath("a.json").write_text("{")
    supervisor = Supervisor(tmp_path / "runs", budget(), SessionPlan(project=tmp_path))
    with pytest.raises(RunError, match=r"a\.json cannot be read"):
        await supervisor.start()
    await supervisor.release()
