"""The state of a run, from how its sessions ended."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from leyden.core.errors import RewardError, RunError
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.event_loop import Terminated
from leyden.core.trainer.launch import resume
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.run_lock import LOCK, Holder
from leyden.core.trainer.run_state import end_recorded, state_and_reason

KILLED = "killed, or its machine went down: no process trains it, and none recorded why it ended"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    config = RunConfig(name="r", policy="p", agent="a.py:a", tasks="tasks.jsonl", steps=3)
    return RunFolder.create(tmp_path, config, [{"question": "?"}], {})


def session(folder: RunFolder, end: BaseException | None) -> None:
    """Resume the run with a session that ends so."""

    def run_session(folder: RunFolder, _: RunConfig) -> RunReport:
        with folder.locked(), end_recorded(folder):
            assert state_and_reason(folder) == ("running", None)
            if end is not None:
                raise end
        return RunReport(name="r", seed=0)

    resume(folder.path.parent, "r", run_session, has_agent=True)


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        (KeyboardInterrupt(), "stopped", "requested by Ctrl-C"),
        (Terminated(), "stopped", "requested by SIGTERM"),
        (RewardError("reward score raised ValueError"), "failed", "reward score raised ValueError"),
    ],
)
def test_a_stop_and_an_error_are_different_ends(folder: RunFolder, end: BaseException, state: str, reason: str) -> None:
    with pytest.raises(type(end)):
        session(folder, end)

    assert state_and_reason(folder) == (state, reason)


def test_the_next_session_forgets_how_the_last_one_ended(folder: RunFolder) -> None:
    for end in (KeyboardInterrupt(), RunError("lost")):
        with pytest.raises(type(end)):
            session(folder, end)
    assert state_and_reason(folder) == ("failed", "lost")

    session(folder, None)

    assert state_and_reason(folder) == ("interrupted", KILLED)  # this session wrote no report


@pytest.mark.integration
def test_a_run_whose_process_was_killed_is_interrupted(folder: RunFolder) -> None:
    code = (
        "import sys, time; from pathlib import Path; from leyden.core.trainer.run_folder.run_lock import run_lock\n"
        "with run_lock(Path(sys.argv[1])): print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert state_and_reason(folder) == ("running", None)
        process.send_signal(signal.SIGKILL)

    assert state_and_reason(folder) == ("interrupted", KILLED)


def test_what_another_machine_trains_is_not_called_interrupted(folder: RunFolder) -> None:
    assert state_and_reason(folder) == ("not finished", None)

    (folder.path / LOCK).write_bytes(msgspec.json.encode(Holder(12, "elsewhere")))

    reason = "process 12 of elsewhere trained it last; whether that still does is not known on this machine"
    assert state_and_reason(folder) == ("not finished", reason)


def test_a_report_and_a_failure_before_the_first_step_count_first(folder: RunFolder) -> None:
    folder.note_session_stop("requested by Ctrl-C")
    folder.write_report(RunReport(name="r", seed=0, stopped_early="no better for 3 evaluations"))
    assert state_and_reason(folder) == ("finished", "no better for 3 evaluations")

    folder.note_failure(RunError("the check failed"))
    assert state_and_reason(folder) == ("ended before its first step", "the check failed")


def test_a_finished_run_that_went_on_and_was_killed_is_not_finished(folder: RunFolder) -> None:
    folder.metrics_file.write_text('{"step": 3}\n')
    folder.write_report(RunReport(name="r", seed=0, steps=3))
    session(folder, None)
    assert state_and_reason(folder) == ("finished", None)  # nothing came of the second session

    folder.metrics_file.write_text('{"step": 3}\n{"step": 4}\n')
    assert state_and_reason(folder) == ("interrupted", KILLED)

    with pytest.raises(KeyboardInterrupt):
        session(folder, KeyboardInterrupt())
    assert state_and_reason(folder) == ("stopped", "requested by Ctrl-C")


def test_a_damaged_record_of_an_end_hides_no_state(folder: RunFolder) -> None:
    folder.session_error_file.write_text("{broken")
    assert state_and_reason(folder) == ("failed", f"{folder.session_error_file} cannot be read")

    folder.report_file.write_text("{broken")
    state, reason = state_and_reason(folder)
    assert state == "finished"
    assert (reason or "").startswith(f"{folder.report_file} cannot be read: ")
