"""`Trainer.fit` with a live agent is two processes: whichever is killed, the other one ends and the run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_state import state_and_reason

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "calculator_langgraph"
STEPS = 3
PATIENCE_SECONDS = 60

SCRIPT = """
import json, sys
from pathlib import Path

example, runs, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
sys.path.insert(0, str(example))
from agent import agent
from reward import score

from leyden.core import LightningRL, Trainer
from leyden.core.algorithm.lightning_rl import LightningRLConfig

trainer = Trainer(
    algorithm=LightningRL(LightningRLConfig(learning_rate=6e-4)),
    policy=example / "policy",
    name="live",
    runs=runs,
    steps=int(sys.argv[4]),
    tasks_per_step=4,
    group_size=4,
    quiet=True,
)
if how == "fit":
    trainer.fit(agent, [json.loads(line) for line in (example / "train.jsonl").open()], reward=score)
else:
    trainer.resume(agent, "live", reward=score)
"""

pytestmark = [pytest.mark.timeout(600)]
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Begin or go on with the run, in a process that holds the agent."""
    script = tmp_path / "live.py"
    script.write_text(SCRIPT)

    def go(how: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(script), str(EXAMPLE), str(tmp_path), how, str(STEPS)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stderr=subprocess.PIPE,
            text=True,
        )

    return go


def steps_taken(runs: Path) -> list[int]:
    file = runs / "live" / "metrics.jsonl"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [json.loads(line)["step"] for line in lines]


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def learner(parent: "subprocess.Popen[str]") -> int | None:
    """The process in which the agent's process has learning done, once there is one."""
    for child in children(parent.pid) if parent.poll() is None else []:
        with suppress(OSError):  # it has ended meanwhile
            if b"leyden.core.trainer.agents.learner_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def assert_goes_on(start: Start, runs: Path) -> None:
    again = start("resume")
    _, said = again.communicate(timeout=2 * PATIENCE_SECONDS)
    assert again.returncode == 0, said
    assert steps_taken(runs) == list(range(1, STEPS + 1))


def test_when_learning_is_killed_the_agents_process_says_so_and_the_run_goes_on(start: Start, tmp_path: Path) -> None:
    parent = start("fit")
    wait_until(lambda: steps_taken(tmp_path), "no step was taken")
    child = learner(parent)
    assert child is not None
    os.kill(child, signal.SIGKILL)
    _, said = parent.communicate(timeout=PATIENCE_SECONDS)
    assert parent.returncode == 1
    assert said.count("Traceback") == 1, said
    assert said.splitlines()[-1].endswith("the learning process was killed by SIGKILL; continue with `Trainer.resume`")
    assert_goes_on(start, tmp_path)


@pytest.mark.parametrize("steps", [pytest.param(0, marks=pytest.mark.campaign), 1])
def test_when_the_agents_process_is_killed_learning_ends_by_itself(start: Start, tmp_path: Path, steps: int) -> None:
    parent = start("fit")
    wait_until(lambda: learner(parent) is not None and len(steps_taken(tmp_path)) >= steps, "nothing was learned")
    child = learner(parent)
    assert child is not None
    parent.kill()
    parent.communicate()
    wait_until(lambda: not alive(child), "learning goes on with nobody to run the agent")
    assert_goes_on(start, tmp_path)


def test_sigterm_to_the_learning_process_stops_the_run(start: Start, tmp_path: Path) -> None:
    parent = start("fit")
    wait_until(lambda: steps_taken(tmp_path), "no step was taken")
    child = learner(parent)
    assert child is not None
    os.kill(child, signal.SIGTERM)
    _, said = parent.communicate(timeout=PATIENCE_SECONDS)
    assert parent.returncode == 1 and "ended with code 143" in said, said
    assert state_and_reason(RunFolder(tmp_path / "live")) == ("stopped", "requested by SIGTERM")
    assert_goes_on(start, tmp_path)
