"""What a run keeps, on scripted scores; checkpoints are folders with nothing in them but their progress."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from leyden.core.errors import RunError, TrainingError
from leyden.core.trainer.config import EvaluationSet, RunConfig, save_config
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.model_selection import ModelSelection, VersionScores
from leyden.core.trainer.run_folder.models import Models, compare_versions, export_version, find_version
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.rollback import roll_back
from leyden.core.trainer.run_folder.versions import Evaluation

CONFIG = RunConfig(
    name="r",
    agent="a",
    policy="p",
    held_out=(EvaluationSet(name="val", source="v"),),
    eval_every=2,
    patience=2,
    steps=9,
)


class Run:
    """Takes the steps of a run, each version solving as many of ten tasks as the script says."""

    def __init__(self, runs: Path, solved: list[int], config: RunConfig = CONFIG) -> None:
        self.folder, self.config, self.solved = RunFolder(runs / config.name), config, solved
        self.folder.checkpoints.mkdir(parents=True, exist_ok=True)
        save_config(config, self.folder.config_file)
        rows = b"".join(b'{"question": "%d"}\n' % row for row in range(10))
        self.folder.tasks_file("val").write_bytes(rows)
        self.selection = ModelSelection(self.folder, config)

    def scores(self, version: int) -> VersionScores:
        rewards = {str(task): float(task < self.solved[version]) for task in range(10)}
        return VersionScores(version, {"val": Evaluation(success=self.solved[version] / 10, rewards=rewards)})

    def begin(self) -> None:
        self.selection.begin()
        self.selection.score(self.scores(0))

    def step(self, version: int) -> str | None:
        """As `RunContext.checkpoint` does; returns why the run should stop."""
        why = None
        self.selection.note({"step": version, "reward": version / 10, "name": "text"})
        if self.selection.is_due(version, self.config.steps):
            self.selection.score(self.scores(version))
            why = self.selection.stop_early(version, self.config.steps)
        self.selection.record(version)
        path = self.folder.checkpoints / f"step-{version:08d}"
        path.mkdir()
        (path / "progress.json").write_text(json.dumps({"step": version, **self.selection.progress(version)}))
        self.selection.saved(version, path)
        self.folder.append_metrics({"step": version, "reward": version / 10})
        return why

    def marked(self) -> list[str]:
        return sorted(path.parent.name for path in self.folder.checkpoints.glob("*/KEEP"))

    def models(self) -> Models:
        return Models(self.folder, self.config)


def test_the_best_version_is_kept_and_marked_and_no_other(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 5, 0, 9, 0, 7])
    run.begin()
    marks: list[list[str]] = []
    for version in range(1, 7):
        assert run.step(version) is None
        marks.append(run.marked())
    second, fourth = ["step-00000002"], ["step-00000004"]
    assert marks == [[], second, second, fourth, fourth, fourth]
    kept = run.selection.kept(6)
    assert (kept.version, kept.success) == (4, 0.9)
    assert kept.why == "the best of 4 evaluations on val, with 90.0 %; the last one, 6, is in policy-last/"


def test_every_version_leaves_a_record(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 5, 0])
    run.begin()
    for version in (1, 2, 3):
        run.step(version)
    found = run.models().versions
    assert [(v.version, v.parent) for v in found.values()] == [(0, None), (1, 0), (2, 1), (3, 2)]
    assert [v.weights for v in found.values()] == [None, *(f"checkpoints/step-0000000{n}" for n in (1, 2, 3))]
    assert [list(v.held_out) for v in found.values()] == [["val"], [], ["val"], []]
    assert found[2].metrics == {"step": 2.0, "reward": 0.2}


def test_the_policy_given_is_kept_where_training_only_made_it_worse(tmp_path: Path) -> None:
    run = Run(tmp_path, [8, 0, 3])
    run.begin()
    run.step(1)
    run.step(2)
    assert run.marked() == []
    assert run.selection.kept(2).version == 0


def test_it_stops_after_its_patience_and_stays_stopped_until_more_steps_are_planned(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 8, 0, 8, 0, 7])
    run.begin()
    reasons = [run.step(version) for version in range(1, 7)]
    assert reasons[:5] == [None] * 5
    assert reasons[5] == "no noticeable rise on val in 2 evaluations up to step 6 of 9"
    last = run.folder.checkpoints / "step-00000006"
    progress: dict[str, Any] = json.loads((last / "progress.json").read_text())
    again = ModelSelection(run.folder, run.config)
    assert again.restore(6, last, progress)
    assert again.is_scored(6)
    more = ModelSelection(run.folder, replace(run.config, steps=20))
    assert not more.restore(6, last, progress)
    assert more.stop_early(6, 20) is None


def test_a_later_sitting_forgets_versions_after_its_checkpoint_and_fills_in_a_lost_line(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 5, 0])
    run.begin()
    for version in (1, 2, 3):
        run.step(version)
    run.selection.versions.rewind(1)
    second = run.folder.checkpoints / "step-00000002"
    again = ModelSelection(run.folder, run.config)
    again.restore(2, second, json.loads((second / "progress.json").read_text()))
    assert sorted(run.models().versions) == [0, 1, 2]
    assert run.models().versions[2].weights == "checkpoints/step-00000002"
    assert run.marked() == ["step-00000002"]


def test_without_evaluations_the_last_is_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 9, 0], replace(CONFIG, eval_every=0, patience=None))
    run.begin()
    for version in (1, 2):
        run.step(version)
    assert run.marked() == []
    run.selection.score(run.scores(2))
    kept = run.selection.kept(2)
    assert (kept.version, kept.success) == (2, 0.9)
    assert "--eval-every" in kept.why


def test_versions_cannot_be_told_apart_by_no_reward_at_all(tmp_path: Path) -> None:
    run = Run(tmp_path, [0])
    run.selection.begin()
    with pytest.raises(TrainingError, match="no rollout of the held-out set 'val' has a reward"):
        run.selection.score(VersionScores(0, {"val": Evaluation(success=None)}))


def test_a_rollback_sets_aside_what_came_after(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 5, 0, 9])
    run.begin()
    for version in range(1, 5):
        run.step(version)
    run.folder.write_report(RunReport(name="r", seed=0))
    models = run.models()
    done = roll_back(models, models.find("2"))
    assert (done.version, done.versions) == (2, [3, 4])
    aside = Path(done.set_aside)
    assert sorted(path.name for path in (aside / "checkpoints").iterdir()) == ["step-00000003", "step-00000004"]
    assert [json.loads(line)["step"] for line in (aside / "metrics.jsonl").read_text().splitlines()] == [3, 4]
    assert (aside / "report.json").exists()
    assert [line["step"] for line in run.folder.metrics()] == [1, 2]
    assert sorted(run.models().versions) == [0, 1, 2]
    second = run.folder.checkpoints / "step-00000002"
    progress = json.loads((second / "progress.json").read_text())
    assert progress["lineage"] == "r1-"
    again = ModelSelection(run.folder, run.config)
    again.restore(2, second, progress)
    assert again.kept(2).version == 2
    with pytest.raises(RunError, match="version 2 is the last of run 'r'"):
        roll_back(run.models(), run.models().find("2"))
    assert Path(roll_back(run.models(), run.models().find("1")).set_aside).name == "2"


def test_a_rollback_keeps_no_version_whose_weights_are_gone(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 8, 0, 7, 0, 9])
    run.begin()
    for version in range(1, 7):
        run.step(version)
    best_then = run.folder.checkpoints / "step-00000002"
    (best_then / "progress.json").unlink()
    roll_back(run.models(), run.models().find("4"))
    fourth = run.folder.checkpoints / "step-00000004"
    again = ModelSelection(run.folder, run.config)
    again.restore(4, fourth, json.loads((fourth / "progress.json").read_text()))
    assert (again.kept(4).version, again.kept(4).success) == (4, 0.7)
    with pytest.raises(RunError, match=r"weights of version 2 .* are not kept; weights are kept of versions 1, 3, 4"):
        roll_back(run.models(), run.models().find("2"))


def test_versions_are_found_by_number_and_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0, 5])
    run.begin()
    run.step(1)
    run.step(2)
    for named, number in (("r", 2), ("r:1", 1), ("r:last", 2), ("r:kept", 2)):
        assert find_version(tmp_path, named)[1].version == number
    with pytest.raises(RunError, match="run 'r' has no version '7'; it has 0 to 2, kept and last"):
        find_version(tmp_path, "r:7")
    with pytest.raises(RunError, match="no run 'none'"):
        find_version(tmp_path, "none:1")


def test_tasks_are_matched_by_what_they_say(tmp_path: Path) -> None:
    one, other = Run(tmp_path, [3]), Run(tmp_path, [3], replace(CONFIG, name="s"))
    rows = [{"question": "9"}, {"question": "new"}, *({"question": str(row)} for row in range(8))]
    other.folder.tasks_file("val").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one.begin()
    other.begin()
    found = compare_versions(find_version(tmp_path, "r:0"), find_version(tmp_path, "s:0")).held_out["val"]
    # Of the first, tasks 0, 1 and 2 are solved; of the other, its rows 0 to 2: the tasks "9", "new" and "0".
    assert (found.tasks, found.wins, found.losses, found.ties) == (9, 1, 2, 6)


async def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0])
    run.begin()
    run.step(1)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="already exists; nothing was written"):
        await export_version(run.models(), run.models().find("1"), tmp_path / "there")


@pytest.mark.parametrize("there", ["nothing", "an empty folder"])
async def test_an_export_goes_where_nothing_is(tmp_path: Path, there: str) -> None:
    policy = Path(__file__).parents[5] / "examples/calculator_langgraph/policy"
    run = Run(tmp_path, [2, 0], replace(CONFIG, policy=str(policy)))
    run.begin()
    target = tmp_path / "to"
    if there != "nothing":
        target.mkdir()
    await export_version(run.models(), run.models().find("0"), target)
    assert (target / "config.json").is_file()


async def test_an_export_takes_no_files_place(tmp_path: Path) -> None:
    run = Run(tmp_path, [2, 0])
    run.begin()
    (tmp_path / "to").write_text("mine")
    with pytest.raises(RunError, match="to already exists; nothing was written"):
        await export_version(run.models(), run.models().find("0"), tmp_path / "to")
