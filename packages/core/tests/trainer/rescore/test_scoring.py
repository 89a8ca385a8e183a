import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data.plain.recorded_form import recorded_form
from leyden.core.errors import UsageError
from leyden.core.testing.factories import trajectory
from leyden.core.trainer.rescore.messages import Score
from leyden.core.trainer.rescore.scoring import ScoringLimits, ScoringProcess
from leyden.core.trainer.rescore.stored_rollouts import StoredRollout

pytestmark = pytest.mark.integration

REWARDS = """
import os, time

class Box:
    pass

def score(task, result):
    match task.get("do"):
        case "raise":
            raise LookupError("no luck")
        case "loop":
            while True:
                pass
        case "exit":
            os._exit(3)
        case "abort":
            os.kill(os.getpid(), 9)
        case "allocate":
            return float(len(bytearray(8 << 30)))
        case "swallow":
            try:
                return float(len(result.text))
            except Exception:
                return 0.0
        case "print":
            print("printed")
        case "token":
            return float("LEYDEN_STORE_TOKEN" in os.environ)
        case "child":
            if os.fork() == 0:
                time.sleep(600)
            open(task["file"], "w").write(str(os.getpid()))
            time.sleep(600)
    return result["points"]

async def waits(task, result):
    return {"one": 1, "two": 0.5}, "because"

not_a_function = 3
"""


class Box:
    pass


def rollout(result: Any = None, obstacle: str = "", **task: Any) -> StoredRollout:
    form = recorded_form({"points": 0.25} if result is None else result).text
    return StoredRollout(
        rollout_id="r",
        mode="train",
        group="g",
        task=task,
        result=form,
        obstacle=obstacle,
        trajectory=trajectory(1.0),
    )


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rewards") / "other_reward.py"
    file.write_text(REWARDS)
    return file


@pytest.fixture(scope="module")
def process(rewards: Path) -> Iterator[ScoringProcess]:
    limits = ScoringLimits(seconds=1.0, memory=1 << 30)
    with ScoringProcess(f"{rewards}:score", limits=limits) as found:
        yield found


def test_a_rollout_is_scored_on_its_task_and_result(process: ScoringProcess) -> None:
    assert process.score(rollout()) == Score(value=0.25)
    assert process.score(rollout({"points": -3})) == Score(value=-3.0)


@pytest.mark.parametrize(
    ("do", "kind", "text"),
    [
        ("raise", "reward failed", "raised LookupError: no luck"),
        ("loop", "time limit", "the reward was stopped after 1 s"),
        ("exit", "process ended", "ended with exit code 3"),
        ("abort", "process ended", "was killed by SIGKILL"),
        ("allocate", "reward failed", "MemoryError"),
    ],
)
def test_a_reward_that_fails_is_reported_and_the_next_goes_on(
    process: ScoringProcess, do: str, kind: str, text: str
) -> None:
    found = process.score(rollout(do=do))
    assert (found.value, found.kind) == (None, kind)
    assert text in found.error
    assert "for task" not in found.error
    assert process.score(rollout()) == Score(value=0.25)


def test_what_was_not_stored_is_never_scored_silently(process: ScoringProcess) -> None:
    found = process.score(rollout(Box(), do="swallow"))
    assert (found.value, found.kind) == (None, "not stored")
    assert "Box; the record has its text only, and 'text' was read" in found.error
    assert process.score(rollout(obstacle="too old")) == Score(error="too old", kind="not stored")


def test_what_a_reward_prints_does_not_reach_standard_output(
    process: ScoringProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    assert process.score(rollout(do="print")).value == 0.25
    assert "printed" not in capfd.readouterr().out


def test_the_environment_has_no_token_of_leyden(rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_STORE_TOKEN", "t")
    with ScoringProcess(f"{rewards}:score") as process:
        assert process.score(rollout(do="token")).value == 0.0


def test_processes_that_a_stopped_reward_started_are_ended(process: ScoringProcess, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert process.score(rollout(do="child", file=str(file))).kind == "time limit"
    group = int(file.read_text())
    for _ in range(100):
        try:
            os.killpg(group, signal.SIG_DFL)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")


def test_async_rewards_dimensions_weights_and_feedback(rewards: Path) -> None:
    with ScoringProcess(f"{rewards}:waits", {"one": 2, "two": 2}) as process:
        found = process.score(rollout())
    assert found == Score(value=3.0, dimensions={"one": 1.0, "two": 0.5}, feedback="because")


def test_a_function_that_cannot_be_used_is_refused(rewards: Path) -> None:
    for name, why in (("absent", "has no 'absent'"), ("not_a_function", "must be a function")):
        with pytest.raises(UsageError, match=why), ScoringProcess(f"{rewards}:{name}"):
            pass
