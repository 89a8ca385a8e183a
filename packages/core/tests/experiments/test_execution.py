"""Jobs are run in order, failures keep their reason, and what has ended is not run again."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from leyden.core.errors import UsageError
from leyden.core.experiments import processes
from leyden.core.experiments.definition import Expected, Experiment, Preparation
from leyden.core.experiments.execution import Execution, check_unchanged
from leyden.core.experiments.plan import Job, Plan
from leyden.core.experiments.progress import Progress, ProgressBars
from leyden.core.experiments.record import Records

pytestmark = pytest.mark.integration


def made(tmp_path: Path, scripts: dict[str, str]) -> tuple[Records, list[Job]]:
    """Preparations, each a Python script that gets its folder as an argument; they are all shared."""
    prepare = {
        name: Preparation(command=("python", "-c", script, "{folder}"), seeds="shared")
        for name, script in scripts.items()
    }
    arms = {"all": {"frozen": {name: f"${name}" for name in scripts}}}
    experiment = Experiment(title="t", question="q", expected=Expected(because="b"), arms=dict(arms), prepare=prepare)
    plan = Plan("t", experiment, {}, tmp_path / "t")
    jobs = plan.with_preparations([plan.run("all", 0)])
    return Records(tmp_path / "t"), [job for job in jobs if job.arm is None]


TOUCH = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); (p / 'made').write_text('x')"


def run(records: Records, jobs: list[Job], **options: int) -> dict[str, str]:
    return {**Execution(records, jobs, Progress(len(jobs), quiet=True), **options).run()}


def test_a_job_waits_for_what_it_needs_and_is_run_once(tmp_path: Path) -> None:
    after = "import pathlib, sys; pathlib.Path(sys.argv[1], 'of').write_text('$first'); open('$first/made').close()"
    records, jobs = made(tmp_path, {"first": TOUCH, "second": after})
    assert [job.needs for job in jobs] == [(), ("prepare-first",)]
    assert run(records, jobs, at_once=4) == {"prepare-first": "finished", "prepare-second": "finished"}
    assert (tmp_path / "t/prepare-second/of").read_text() == str(tmp_path / "t/prepare-first")
    os.utime(tmp_path / "t/prepare-first/made", (1, 1))
    assert run(records, jobs) == {"prepare-first": "finished", "prepare-second": "finished"}
    assert (tmp_path / "t/prepare-first/made").stat().st_mtime == 1
    (record,) = [records.read(job) for job in jobs[:1]]
    assert record is not None and record.last is not None
    assert record.last.exit_code == 0
    assert record.last.load_before >= 0 and record.last.ended is not None


def test_a_failure_keeps_its_reason_and_what_needs_it_fails_too(tmp_path: Path) -> None:
    raises = "raise ValueError('no data in $ok')"
    records, jobs = made(tmp_path, {"ok": TOUCH, "bad": raises, "needs": "'$bad'"})
    states = run(records, jobs)
    assert states == {"prepare-ok": "finished", "prepare-bad": "failed", "prepare-needs": "failed"}
    errors = [record.last.error for job in jobs if (record := records.read(job)) is not None and record.last]
    assert errors[0] is None
    assert errors[1] == f"ValueError: no data in {tmp_path}/t/prepare-ok"
    assert errors[2] == "it needs prepare-bad, which failed"


def test_a_program_that_does_not_exist_fails(tmp_path: Path) -> None:
    records = Records(tmp_path / "t")
    job = Job(name="prepare-x", seed=0, folder=tmp_path / "t/prepare-x", command=("no-such-program", "{folder}"))
    assert run(records, [job]) == {"prepare-x": "failed"}
    record = records.read(job)
    assert record is not None and record.last is not None
    assert record.last.error == "no-such-program cannot be started: No such file or directory"


def test_a_command_that_makes_nothing_fails(tmp_path: Path) -> None:
    records, jobs = made(tmp_path, {"nothing": "pass", "needs": "'$nothing'"})
    assert run(records, jobs) == {"prepare-nothing": "failed", "prepare-needs": "failed"}
    record = records.read(jobs[0])
    assert record is not None and record.last is not None
    assert record.last.error == f"the command wrote nothing into {tmp_path}/t/prepare-nothing"


def test_what_was_made_with_another_command_is_refused(tmp_path: Path) -> None:
    records, jobs = made(tmp_path, {"first": TOUCH})
    check_unchanged(records, jobs)
    run(records, jobs)
    check_unchanged(records, jobs)
    _, changed = made(tmp_path, {"first": TOUCH + " "})
    with pytest.raises(UsageError, match=r"prepare-first was made with other settings: the command was .*remove this"):
        check_unchanged(records, changed)


def test_a_moved_experiment_is_the_same(tmp_path: Path) -> None:
    after = "open('$first/made').close(); import pathlib, sys; pathlib.Path(sys.argv[1], 'of').touch()"
    before, after_move = tmp_path / "here", tmp_path / "there" / "deeper"
    before.mkdir()
    records, jobs = made(before, {"first": TOUCH, "second": after})
    run(records, jobs)
    after_move.parent.mkdir()
    before.rename(after_move)
    records, jobs = made(after_move, {"first": TOUCH, "second": after})
    check_unchanged(records, jobs)
    assert [records.state(job) for job in jobs] == ["finished", "finished"]
    records, jobs = made(after_move, {"first": TOUCH, "second": after + " "})
    assert [records.state(job) for job in jobs] == ["finished", "other settings"]


def test_sigterm_stops_the_processes_and_the_next_time_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SECONDS_TO_STOP", 5.0)
    slow = f"import time; {TOUCH}; time.sleep(60)"
    records, jobs = made(tmp_path, {"slow": slow})

    def interrupt() -> None:
        deadline = time.monotonic() + 30
        while not (tmp_path / "t/prepare-slow/made").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(records, jobs)
    thread.join()
    assert time.monotonic() - began < 40
    assert records.state(jobs[0]) == "unfinished"
    _, quick = made(tmp_path, {"slow": TOUCH})
    check_unchanged(records, quick)  # what was interrupted has made nothing
    assert run(records, quick) == {"prepare-slow": "finished"}


def test_the_expected_end_counts_jobs_of_this_command_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    now = [0.0]
    _, jobs = made(tmp_path, {"a": TOUCH, "b": TOUCH, "c": TOUCH})
    for kind in (Progress, ProgressBars):
        now[0] = 0.0
        progress = kind(3, clock=lambda: now[0])
        progress.start()
        progress.end(jobs[0], "finished", None, was_there=True)
        assert progress.seconds_left() is None
        progress.begin(jobs[1], resumes=False)
        now[0] = 60.0
        progress.advance(jobs[1])
        progress.end(jobs[1], "failed", "ValueError: it broke", was_there=False)
        assert progress.seconds_left() == 60.0
        progress.stop()
        shown = " ".join(capsys.readouterr().err.split())
        assert "preparation a: finished, made before" in shown
        assert "preparation b: failed: ValueError: it broke (2 of 3 done, about 1 min left, until" in shown
