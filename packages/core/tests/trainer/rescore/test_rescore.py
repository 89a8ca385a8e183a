"""Re-scoring of runs whose stores a real runner has filled."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.errors import UsageError
from leyden.core.runner.user_code.loading import load_object
from leyden.core.testing.running import finished, running
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rescore.rescore import RescoreOptions, load, rescore, save
from leyden.core.trainer.run_folder.folder import RunFolder

pytestmark = pytest.mark.integration


OWN = '''
def score(task, result):
    """Points, of which the first rollout of a task gets none."""
    return {"right": float(result["number"] == task["answer"]), "short": 0.5}
'''
OTHER = """
class Raises(Exception):
    pass

def near(task, result):
    return 1 / (1 + abs(result["number"] - task["answer"]))

def flat(task, result):
    return 1.0

def nothing(task, result):
    return None

def reads_more(task, result):
    return len(result["box"].label)

def picky(task, result):
    if result["number"] == 3:
        raise Raises("not three")
    return result["number"]
"""


class Box:
    label = "a"


async def agent(task: dict[str, Any]) -> dict[str, Any]:
    """Return the number that the task says; a negative one is a failure."""
    if task["says"] < 0:
        raise LookupError("no number")
    return {"number": task["says"], "box": Box()}


SAID = {"train-v0-b0-0": [3, 4, 4], "train-v0-b0-1": [1, 2, -1], "train-v0-b0-2": [4, 4, 4]}


async def filled(folder: RunFolder, config: RunConfig) -> None:
    store = await folder.store_location.open()
    requests = [
        EnqueueRollout(rollout_id=f"{group}-{copy}", input={"answer": 4, "says": says}, mode="train")
        for group, said in SAID.items()
        for copy, says in enumerate(said)
    ]
    requests.append(EnqueueRollout(rollout_id="val-0", input={"answer": 4, "says": 4}, mode="val"))
    await store.enqueue_many_rollouts(requests)
    reward = load_object(config.reward or "")
    async with running(store, agent, reward=reward, reward_weights=config.reward_weights):
        await finished(store, [request.rollout_id or "" for request in requests])
    await store.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Folder with a run called `mine`, and the files own.py and other.py."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "other.py").write_text(OTHER)
    config = RunConfig(
        name="mine",
        policy="p",
        agent="a",
        reward=f"{tmp_path / 'own.py'}:score",
        reward_weights={"right": 1.0, "short": 0.5},
    )
    folder = RunFolder.create(tmp_path / "runs", config, [{"answer": 4}], {})
    asyncio.run(filled(folder, config))
    return tmp_path / "runs"


def options(runs: Path, name: str, **given: Any) -> RescoreOptions:
    return RescoreOptions(reward=f"{runs.parent / name}", **given)


def test_the_own_reward_reproduces_and_the_other_is_compared(runs: Path) -> None:
    done: list[tuple[int, int, str]] = []

    def report(so_far: int, total: int, phase: str) -> None:
        done.append((so_far, total, phase))

    found = rescore(runs, "mine", options(runs, "other.py:near"), report)
    assert (found.control.reproduced, found.control.stored, found.control.remark) == (8, 8, "")
    assert (found.read, found.scored) == (9, 8)
    assert [(one.count, one.text, one.example) for one in found.errors] == [
        (1, "not stored: the agent returned no result", "train-v0-b0-1-2")
    ]
    control = [(number, 8, "1 of 2, control: the run's own reward") for number in range(1, 9)]
    assert done == [*control, *((number, 9, "2 of 2: the other reward") for number in range(1, 10))]
    assert found.distribution is not None
    assert found.distribution.mean_before == pytest.approx((5 * 1.25 + 3 * 0.25) / 8)
    changes = {one.group: (one.rollouts, one.before, one.after, one.change) for one in found.groups.groups}
    assert changes == {
        "train-v0-b0-0": (3, 1.0, 0.5, "keeps"),
        "train-v0-b0-1": (3, 0.0, pytest.approx(1 / 3 - 1 / 4), "gains"),
        "train-v0-b0-2": (3, 0.0, 0.0, "none"),
    }
    assert found.ranks is not None
    assert found.ranks.tau_in_groups == 1.0
    assert found.advantages.unavailable == ""
    assert found.advantages.calls == 0


def test_groups_lose_their_spread_and_incomplete_ones_are_not_compared(runs: Path) -> None:
    flat = rescore(runs, "mine", options(runs, "other.py:flat"))
    assert flat.groups.counts == {"gains": 0, "loses": 1, "keeps": 0, "none": 2}
    picky = rescore(runs, "mine", options(runs, "other.py:picky"))
    assert (picky.groups.incomplete, len(picky.groups.groups)) == (1, 2)
    assert picky.errors[0].text.startswith("reward failed: reward picky raised Raises: not three")


def test_the_own_reward_is_called_once_with_the_runs_weights(runs: Path) -> None:
    phases: list[str] = []
    given = options(runs, "own.py:score", which="all")
    found = rescore(runs, "mine", given, lambda done, total, phase: phases.append(phase))
    assert set(phases) == {""}
    assert (found.control.reproduced, found.read) == (9, 10)
    assert found.reward_weights == {"right": 1.0, "short": 0.5}
    assert found.ranks is not None
    assert found.ranks.moved == 0
    assert list(found.dimensions) == ["right", "short"]


def test_an_own_reward_that_has_changed_is_reported(runs: Path) -> None:
    own = runs.parent / "own.py"
    own.write_text(OWN.replace("0.5", "0.25"))
    os.utime(own, (2e9, 2e9))
    found = rescore(runs, "mine", options(runs, "other.py:near"))
    assert (found.control.reproduced, found.control.remark) == (0, "own.py has changed since the run began")
    assert [one.count for one in found.control.differences] == [8]
    own.unlink()
    found = rescore(runs, "mine", options(runs, "other.py:near"))
    assert "cannot be called" in found.control.remark
    assert found.scored == 8


def test_rollouts_of_an_earlier_version_are_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semconv, "RESULT_TYPE", "leyden.result.type_of_a_later_version")
    with pytest.raises(UsageError, match="none of 9 rollouts can be scored again: 8 × recorded by an earlier version"):
        rescore(runs, "mine", options(runs, "other.py:near"))


def test_a_result_is_saved_and_read_again(runs: Path, tmp_path: Path) -> None:
    found = rescore(runs, "mine", options(runs, "other.py:near", limit=1))
    assert found.read == 3
    save(found, tmp_path / "found.json")
    save(found, tmp_path / "found.json")
    assert load(tmp_path / "found.json") == found
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(UsageError, match="is no result of leyden rescore; choose another file"):
        save(found, tmp_path / "notes.json")


def test_the_command_prints_the_control_and_tables(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["rescore", "mine", "--runs", str(runs), "--reward", f"{tmp_path / 'other.py'}:near"]
    assert run([*given, "--out", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert "control: own reward reproduces 8 of 8 stored rewards" in printed
    assert "gain spread: would be trained now" in printed
    assert run([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    saved = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert {**found, "created": 0} == {**saved, "created": 0}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing", "8 × reward failed: reward nothing returned None"),
        ("reads_more", "Box; the record has its text only, and 'label' was read"),
    ],
)
def test_no_new_reward_at_all_is_one_line_with_the_reason(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    reward = ["--reward", f"{tmp_path / 'other.py'}:{name}"]
    assert run(["rescore", "mine", "--runs", str(runs), *reward, "--out", str(tmp_path / "out.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none of 9 rollouts has a new reward: " in line
    assert why in line
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--rollouts", "some"], "--rollouts must be one of train, held-out, all"),
        (["--limit", "0"], "--limit must be at least 1"),
        (["--reward-weight", "x"], "--reward-weight takes dimension=number"),
        (["--reward", "absent.py:score"], "absent.py does not exist"),
        (["--memory", "1"], "--memory must be at least 16"),
    ],
)
def test_bad_input_is_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], why: str
) -> None:
    reward = ["--reward", f"{tmp_path / 'other.py'}:near"]
    assert run(["rescore", "mine", "--runs", str(runs), *reward, *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line
