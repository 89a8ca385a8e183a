"""Experiment files: what they hold, and one line with file and place for each error."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from leyden.core.cli import main as cli
from leyden.core.cli.experiment_file import find_experiment, read_experiment
from leyden.core.errors import UsageError
from leyden.core.experiments.plan import Plan

RUN = {
    "agent": "agent.py:agent",
    "reward": "reward.py:score",
    "tasks": "train.jsonl",
    "policy": "tiny",
    "held_out": [{"name": "val", "source": "val.jsonl"}],
    "steps": 4,
    "algorithm_config": {"learning_rate": 1e-3},
}
WHOLE: dict[str, Any] = {
    "title": "Two arms",
    "question": "Which?",
    "expected": {"arm": "warm", "because": "It knows more."},
    "run": "run.yaml",
    "settings": {"steps": 7},
    "seeds": [3, 1],
    "measure": {"held_out": "val", "sampling": "sampled", "score": "success", "success_at": 0.5},
    "baseline": "cold",
    "prepare": {
        "expert": {"command": "python record.py --seed {seed} --out {folder}", "seeds": "shared"},
        "taught": {"run": {"algorithm": "sft", "algorithm_config": {"spans": "sqlite:///$expert/store.db"}}},
    },
    "arms": {
        "cold": None,
        "warm": {"policy": "$taught"},
        "same": {"policy": {"a": "$taught"}, "routes": [{"to": "a"}]},
    },
    "metrics": ["loss"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run file, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    Path("experiments").mkdir()
    return tmp_path


def written(changes: dict[str, Any]) -> Path:
    path = Path("experiments/two.yaml")
    kept = {name: value for name, value in (WHOLE | changes).items() if value != "left out"}
    path.write_text(yaml.safe_dump(kept, sort_keys=False))
    return path


def test_an_experiment_is_found_by_name_or_path(folder: Path) -> None:
    written({})
    assert find_experiment("two") == Path("experiments/two.yaml")
    Path("here.yaml").write_text("")
    assert find_experiment("here") == Path("here.yaml")
    assert find_experiment("experiments/two.yaml") == Path("experiments/two.yaml")
    with pytest.raises(UsageError, match=r"no experiment 'twoo': neither .*; did you mean two\?"):
        find_experiment("twoo")


def test_two_experiments_of_one_name_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written({})
    Path("others").mkdir()
    Path("others/two.yaml").write_text(path.read_text())
    assert cli.run(["experiments", "run", "two", "others/two.yaml", "--out", "out"]) == 2
    assert (
        f"two experiments are called two: {folder}/experiments/two.yaml and {folder}/others/two"
        in capsys.readouterr().err
    )
    assert not Path("runs").exists()


def test_jobs_come_after_what_they_need(folder: Path) -> None:
    read = read_experiment(written({}))
    plan = Plan(read.name, read.experiment, read.base, Path("runs/two"))
    jobs = plan.with_preparations(plan.runs(["cold", "warm"], [3, 1]))
    assert [job.name for job in jobs] == [
        *("cold-3", "prepare-expert", "prepare-taught-3", "warm-3"),
        *("cold-1", "prepare-taught-1", "warm-1"),
    ]
    by_name = {job.name: job for job in jobs}
    warm, taught, cold = (by_name[name].settings for name in ("warm-1", "prepare-taught-1", "cold-1"))
    assert warm is not None and taught is not None and cold is not None
    assert (warm["policy"], warm["seed"], warm["steps"]) == ("runs/two/prepare-taught-1/policy", 1, 7)
    assert taught["algorithm_config"] == {"spans": "sqlite:///runs/two/prepare-expert/store.db"}
    assert (cold["policy"], cold["experiment"], cold["check"]) == ("tiny", "two", False)
    command = by_name["prepare-expert"].command
    assert command[1:] == ("record.py", "--seed", "0", "--out", "runs/two/prepare-expert")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"armz": {}}, "there is no setting armz; did you mean arms?"),
        ({"question": "left out"}, "question is missing"),
        ({"arms": {}}, "arms: there is none"),
        ({"arms": {"cold": {"stepz": 3}, "warm": {}}}, "arms.cold: there is no setting stepz; did you mean steps?"),
        ({"arms": {"cold": {"steps": "x"}, "warm": {}}}, "arms.cold: steps: must be a whole number, not text"),
        ({"arms": {"cold": {"steps": -1}, "warm": {}}}, "arms.cold: steps must not be negative"),
        ({"arms": {"cold": {"val": "x"}, "warm": {}}}, "arms.cold: there is no setting val; write held_out"),
        ({"arms": {"cold": {"seed": 3}, "warm": {}}}, "arms.cold: seed cannot be set"),
        ({"arms": {"cold": {"algorithm": "grop"}, "warm": {}}}, "arms.cold: unknown algorithm 'grop'"),
        (
            {"arms": {"cold": {"algorithm_config": {"credits": "uniform"}}, "warm": {}}},
            "arms.cold: configuration of algorithm 'lightning_rl'",
        ),
        (
            {"arms": {"cold": {"policy": "$taugt"}, "warm": {}}},
            "arms.cold: $taugt is not in prepare; did you mean taught?",
        ),
        ({"arms": {"prepare-x": {}, "cold": {}, "warm": {}}}, "arms.prepare-x: the name of an arm must match"),
        ({"arms": {"cold": {"held_out": []}, "warm": {}}}, "arms.cold: it has no held-out set"),
        ({"arms": {"cold": {"evaluate_sampled": False}, "warm": {}}}, "arms.cold: evaluate_sampled is false"),
        ({"baseline": "colt"}, "baseline: there is no arm 'colt'; did you mean cold?"),
        ({"expected": {"arm": "wram", "because": ""}}, "expected.arm: there is no arm 'wram'; did you mean warm?"),
        ({"expected": {"why": ""}}, "there is no setting expected.why"),
        ({"seeds": [1, 1]}, "seeds: give at least one whole number from 0 on, each once, not [1, 1]"),
        ({"seeds": []}, "seeds: give at least one"),
        ({"measure": {"held_out": "vall"}}, "it has no held-out set 'vall'"),
        ({"measure": {"sampling": "hot"}}, "measure.sampling: invalid enum value 'hot'"),
        ({"measure": {"score": 3}}, "measure.score: must be text, not a whole number"),
        ({"arms": {1: {}, "cold": {}, "warm": {}}}, "arms: a key must be text, not a whole number; put it in quotes"),
        ({"arms": {"cold": {"policy": None}, "warm": {}}}, "arms.cold: there is no policy and no endpoint; give one"),
        ({"run": "gone.yaml"}, "run: there is no file gone.yaml"),
        ({"prepare": {"expert": {}, "taught": {"run": {}}}}, "prepare.expert: give either run"),
        ({"prepare": {"taught": {"command": "make it"}}}, "prepare.taught.command: it must name {folder}"),
        ({"prepare": {"taught": {"run": {"policy": "$taught"}}}}, "prepare: taught needs taught, in a circle"),
        (
            {"prepare": {"taught": {"run": {"policy": "$own"}, "seeds": "shared"}, "own": {"run": {}}}},
            "prepare.taught: it is shared by all seeds, but needs $own",
        ),
    ],
)
def test_an_error_is_one_line_with_file_and_place(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    written(changes)
    assert cli.run(["experiments", "run", "two", "--out", "out"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("leyden: experiments/two.yaml: "), line
    assert line.count("\n") == 1
    assert said in line
    assert not Path("runs").exists() and not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arms", "cold,wrm"], "--arms: experiments/two.yaml has no arm 'wrm'; did you mean warm?"),
        (["--seeds", "a"], "--seeds takes whole numbers separated by commas, not 'a'"),
        (["--seeds", "-1"], "--seeds: give at least one whole number"),
        (["--jobs", "0"], "--jobs must be at least 1, not 0"),
        (["--steps", "-1"], "--steps must not be negative"),
    ],
)
def test_an_option_that_cannot_work_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    written({})
    assert cli.run(["experiments", "run", "two", *options]) == 2
    assert said in capsys.readouterr().err


def test_the_list_counts_what_has_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written({})
    assert cli.run(["experiments", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"name": "two", "title": "Two arms", "arms": ["cold", "warm", "same"], "runs": 6, "ended": 0}
