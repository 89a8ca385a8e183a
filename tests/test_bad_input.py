"""What cannot work gets one clear line and exit code 2; nothing half-written stays behind."""

import shutil
from pathlib import Path
from typing import Protocol

import pytest

from leyden.core.cli.main import run
from leyden.core.trainer.run_folder.folder import is_free

ROOT = Path(__file__).parents[1]
EXAMPLE = Path("examples/calculator_langgraph")

pytestmark = pytest.mark.timeout(600)

REWARDS = {
    "raises": ("raise ZeroDivisionError('by zero')", "ZeroDivisionError"),
    "nan": ("return float('nan')", "nan"),
    "none": ("return None", "None"),
    "text": ("return 'good'", "'good'"),
}


LIGHT = '''"""Imports no framework: the example does, for seconds."""


def agent(task):
    return "4"
'''


class Refused(Protocol):
    """Runs a command that must be refused, and returns the one line that says why.

    Where an agent ran before (`ran`), the run's folder stays, `leyden why` names the reason, and the name is free.
    """

    def __call__(self, runs: Path, *arguments: str, ran: bool | None = False) -> str: ...


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    def call(runs: Path, *arguments: str, ran: bool | None = False) -> str:
        """Return the line; `ran` is whether a folder of the run must stay, and None that it may."""
        before = set(runs.glob("*"))
        code = run(list(arguments))
        stderr = capfd.readouterr().err
        assert code == 2, stderr
        assert "Traceback" not in stderr
        said = [line for line in stderr.splitlines() if line.startswith("leyden: ")]
        assert len(said) == 1, stderr
        if ran or (ran is None and set(runs.glob("*")) != before):
            (kept,) = set(runs.glob("*")) - before
            assert is_free(kept)
            assert run(["why", kept.name, "--runs", str(runs)]) == 0
            assert said[0].partition(": ")[2][:60] in " ".join(capfd.readouterr().out.split())
        else:
            assert set(runs.glob("*")) == before, "something half-written stayed behind"
        return said[0]

    return call


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"agent": "nowhere/agent.py:agent"}, "nowhere/agent.py"),
        ({"agent": "FOLDER/agent.py:agnet"}, "agent"),
        ({"agent": f"{EXAMPLE}/agent.py"}, ":"),
        ({"agent": "FOLDER/agent.py:__doc__"}, "adapter"),
        ({"--tasks": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"agent": "FOLDER/agent.py:agent", "--reward": f"{EXAMPLE}/reward.py:scoer"}, "score"),
        ({"--policy": "./nowhere/policy"}, "nowhere/policy"),
        ({"--name": "../escape"}, "must match"),
        ({"--tracker": "ledger"}, "use one of mlflow, tensorboard, wandb"),
        ({"--eval-every": "5"}, "--eval-every has no effect without held-out tasks"),
        ({"--backend": "tpu"}, "--backend must be torch or verl, not 'tpu'"),
        ({"--backend": "verl", "--algorithm": "sft"}, "leave --algorithm out"),
        ({"--backend": "verl", "--config": "nowhere.yaml"}, "nowhere.yaml cannot be read: No such file or directory"),
        ({"--backend": "verl", "--config": f"{EXAMPLE}/train.jsonl"}, "train.jsonl is not YAML"),
        ({"--config": f"{EXAMPLE}/train.jsonl"}, "train.jsonl is not YAML"),
        ({"--config": "nowhere.yaml"}, "nowhere.yaml cannot be read: No such file or directory"),
        ({"--backend": "verl", "--frozen": "judge=./policy"}, "verl trains and serves one policy, and this run has"),
        (
            {"--val": f"{EXAMPLE}/val.jsonl", "--patience": "2"},
            "--patience counts evaluations and has no effect without --eval-every",
        ),
        ({"--group-size": "1"}, "group-size must be at least 2"),
        ({"--agent-match": "("}, "regular expression"),
        ({"--set": "learning_rat=1"}, "learning_rat"),
        ({"--set": "kl_estimator=k3"}, "kl_estimator has no effect without kl_loss"),
        ({"--set": 'loss={"name": "reinforce", "clip_low": 0.1}'}, "loss 'reinforce' has no option 'clip_low'"),
        ({"--steps": "many"}, "--steps"),
        ({"--colour": "blue"}, "--colour"),
    ],
)
def test_one_line_says_what_was_wrong(refused: Refused, tmp_path: Path, changes: dict[str, str], says: str) -> None:
    agents = tmp_path / "agents"  # a folder of its own: Python keeps bytecode beside it
    agents.mkdir()
    (agents / "agent.py").write_text(LIGHT)
    given = {option: value.replace("FOLDER", str(agents)) for option, value in changes.items()}
    assert says in refused(tmp_path, *arguments(tmp_path, **given))


def arguments(runs: Path, **changes: str) -> list[str]:
    options = {
        "agent": f"{EXAMPLE}/agent.py:agent",
        "--tasks": f"{EXAMPLE}/train.jsonl",
        "--reward": f"{EXAMPLE}/reward.py:score",
        "--policy": f"{EXAMPLE}/policy",
        "--name": "bad",
        "--runs": str(runs),
        "--steps": "1",
        **changes,
    }
    agent = options.pop("agent")
    return ["train", agent, *(part for option in options.items() for part in option)]


def test_a_malformed_row_is_named_by_file_and_line(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "What is 2 plus 2?", "answer": "4"}\n{"question": \n')
    assert "rows.jsonl, line 2: not JSON" in refused(
        tmp_path / "runs", *arguments(tmp_path / "runs", **{"--tasks": str(rows)})
    )


def test_a_row_the_agent_cannot_take_is_named_by_its_keys(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"colour": "blue", "shade": "dark"}\n')
    # The folder of the run may stay, because a worker may have logged something in it.
    said = refused(tmp_path / "runs", *arguments(tmp_path / "runs", **{"--tasks": str(rows)}), ran=None)
    assert "colour" in said
    assert "shade" in said


@pytest.mark.long
@pytest.mark.parametrize("kind", REWARDS)
def test_a_reward_that_is_not_a_finite_number_stops_the_run(refused: Refused, tmp_path: Path, kind: str) -> None:
    body, says = REWARDS[kind]
    (tmp_path / "reward.py").write_text(f"def score(task, result):\n    {body}\n")
    changes = {"--reward": f"{tmp_path}/reward.py:score", "--tasks-per-step": "2", "--group-size": "2"}
    assert says in refused(tmp_path / "runs", *arguments(tmp_path / "runs", **changes), ran=True)


def test_a_policy_without_chat_template_is_refused(refused: Refused, tmp_path: Path) -> None:
    shutil.copytree(ROOT / EXAMPLE / "policy", tmp_path / "policy")
    (tmp_path / "policy" / "chat_template.jinja").unlink()
    said = refused(tmp_path / "runs", *arguments(tmp_path / "runs", **{"--policy": str(tmp_path / "policy")}))
    assert "chat template" in said


@pytest.mark.long
def test_a_taken_name_and_an_unknown_run_are_refused(refused: Refused, small_run: Path) -> None:
    runs = small_run.parent
    assert "--resume small" in refused(runs, *arguments(runs, **{"--name": "small"}))
    for command in (["train", "--resume", "none"], ["show", "none"], ["show", "small", "no-such-rollout"]):
        refused(runs, *command, "--runs", str(runs))
    assert (small_run / "report.json").exists()
