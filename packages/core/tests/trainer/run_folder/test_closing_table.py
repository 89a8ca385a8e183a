"""What a person reads of held-out rewards: shares where each is 0 or 1, numbers where they are not."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from leyden.core.cli.main import run
from leyden.core.trainer.config import EvaluationSet, RunConfig
from leyden.core.trainer.run_folder.comparison import compare
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.prompts.search import changed_prompts
from leyden.core.trainer.run_folder.report import (
    CombinationResult,
    HeldOutResult,
    RunReport,
    SearchResult,
    closing_prompts,
    closing_table,
    combination_tables,
)
from leyden.core.trainer.run_folder.versions import Evaluation, ModelVersion, VersionFile

SOLVED, WEIGHTED = (1.0, 0.0, 0.0, 1.0), (1.0, 0.2, 0.0, 0.8)


def evaluation(rewards: Sequence[float]) -> Evaluation:
    mean = sum(rewards) / len(rewards)
    return Evaluation(success=mean, rewards={str(task): reward for task, reward in enumerate(rewards)})


def closing(before: Sequence[float], after: Sequence[float]) -> str:
    report = RunReport(name="r", seed=0, held_out={"val": HeldOutResult(tasks=4)})
    report.note_held_out("before", {"val": evaluation(before)}, {})
    report.note_held_out("after", {"val": evaluation(after)}, {"val": evaluation(after)})
    shown = io.StringIO()
    Console(file=shown, width=120).print(closing_table(report))
    return shown.getvalue()


def test_rewards_of_0_and_1_are_success_in_percent() -> None:
    table = closing((0.0, 0.0, 0.0, 1.0), SOLVED)
    assert "success on val (4 tasks)" in table
    assert "25.0 %" in table and "50.0 %" in table


@pytest.mark.parametrize(("before", "after"), [((0.0,) * 4, WEIGHTED), (WEIGHTED, SOLVED)])
def test_other_rewards_are_a_mean_reward_before_and_after(before: Sequence[float], after: Sequence[float]) -> None:
    table = closing(before, after)
    assert "mean reward on val (4 tasks)" in table
    assert "0.500" in table
    assert "success" not in table and "%" not in table


def test_each_dimension_of_the_reward_has_a_line() -> None:
    report = RunReport(name="r", seed=0, held_out={"val": HeldOutResult(tasks=4)})
    means = {"form": 0.75, "goal": 0.25}
    report.note_held_out("before", {"val": Evaluation(success=0.4, rewards={"0": 0.4}, dimensions=means)}, {})
    report.note_held_out("after", {"val": Evaluation(success=0.9, rewards={"0": 0.9}, dimensions={"goal": 0.9})}, {})
    shown = io.StringIO()
    Console(file=shown, width=120).print(closing_table(report))
    lines = [line.replace("│", " ").split() for line in shown.getvalue().splitlines()]
    assert ["form", "0.750", "–"] in lines and ["goal", "0.250", "0.900"] in lines
    assert report.held_out["val"].dimensions == {"before": means, "after": {"goal": 0.9}}


@pytest.mark.parametrize(("rewards", "shown"), [(SOLVED, "val 50.0 %"), (WEIGHTED, "val 0.500")])
def test_versions_are_listed_with_the_same_words(
    rewards: Sequence[float], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig(name="r", agent="a", policy="p", held_out=(EvaluationSet(name="val", source="val.jsonl"),))
    folder = RunFolder.create(tmp_path, config, [{"q": 1}], {"val": [{"q": 1}] * 4})
    version = ModelVersion(
        run="r",
        version=0,
        parent=None,
        created=1.0,
        algorithm="a",
        seed=0,
        policy="p",
        held_out={"val": evaluation(rewards)},
    )
    VersionFile(folder.path).append(version)
    assert run(["models", "list", "--runs", str(tmp_path)]) == 0
    assert shown in capsys.readouterr().out
    assert run(["models", "list", "r", "--runs", str(tmp_path)]) == 0
    assert shown in capsys.readouterr().out


def test_a_comparison_says_whether_its_means_are_shares() -> None:
    def by_task(rewards: Sequence[float]) -> dict[str, float]:
        return evaluation(rewards).rewards

    for a, b, is_share in ((SOLVED, SOLVED, True), (SOLVED, WEIGHTED, False), (WEIGHTED, SOLVED, False)):
        found = compare(by_task(a), by_task(b))
        assert found is not None and found.is_share == is_share


def test_a_list_of_versions_says_how_many_cannot_be_gone_back_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path, RunConfig(name="r", agent="a", policy="p"), [{"q": 1}], {})
    for number in range(5):
        checkpoint = folder.checkpoints / f"step-0000000{number}"
        if number > 2:
            checkpoint.mkdir(parents=True)
            (checkpoint / "progress.json").write_text("{}")
        weights = f"checkpoints/{checkpoint.name}" if number else None
        VersionFile(folder.path).append(
            ModelVersion(
                run="r", version=number, parent=None, created=1.0, algorithm="a", seed=0, policy="p", weights=weights
            )
        )
    assert run(["models", "list", "r", "--runs", str(tmp_path)]) == 0
    assert "the weights of 2 versions are not kept, and the run cannot be rolled back" in capsys.readouterr().out


SEARCH = SearchResult(
    candidates=7,
    rejected=2,
    best=4,
    validation_tasks=5,
    start_score=0.25,
    best_score=0.875,
    reflections=6,
    spent={"rollouts": 60, "tokens": 6000, "dollars": 0.5},
    limits={"rollouts": 80.0},
    ended="60 of 80 rollouts are spent, and the next batch has 30",
)


def test_a_search_shows_scores_what_was_spent_and_why_it_ended() -> None:
    report = RunReport(name="r", seed=0, endpoint="e", search=SEARCH, stopped_early="no rise")
    shown = io.StringIO()
    Console(file=shown, width=120).print(closing_table(report))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.getvalue().splitlines() if "│" in line]
    assert ["score on the 5 tasks that select candidates", "0.250", "0.875"] in rows
    assert ["candidates", "", "7"] in rows and ["of them rejected", "", "2"] in rows
    spent = [row[2] for row in rows if row[0] == "spent by the search"]
    assert spent == ["60 of 80 rollouts", "6,000 tokens", "$0.5"]
    assert f"the search ended: {SEARCH.ended}" in " ".join(shown.getvalue().split())
    assert closing_prompts(report) == ["the kept prompts are those with which the run began"]


def test_changed_prompts_are_shown_as_text_and_as_a_diff_from_the_start() -> None:
    before = {"kept": "same", "system": "first\nsecond"}
    changed = changed_prompts(before, {**before, "system": "first\nother"})
    assert changed.keys() == {"system"}
    report = RunReport(name="r", seed=0, endpoint="e", prompts=changed)
    assert closing_prompts(report) == [
        *("prompt system:", "  first", "  other", "", "changed from the start:"),
        *("  --- start", "  +++ best", "  @@ -1,2 +1,2 @@", "   first", "  -second", "  +other", ""),
    ]
    assert closing_prompts(RunReport(name="r", seed=0)) == []
    assert {"search", "prompts"}.isdisjoint(RunReport(name="r", seed=0).written())
    assert report.written()["prompts"]["system"]["text"] == "first\nother"


def test_a_run_of_weights_and_prompts_shows_each_with_each() -> None:
    found = CombinationResult(
        initial_weights_initial_prompts=0.0,
        initial_weights_final_prompts=0.25,
        final_weights_initial_prompts=None,
        final_weights_final_prompts=1.0,
    )
    shown = io.StringIO()
    for table in combination_tables(RunReport(name="r", seed=0, combinations={"val": found})):
        Console(file=shown, width=120).print(table)
    lines = [line for line in shown.getvalue().splitlines() if "weights" in line]
    assert "success on val" in shown.getvalue()
    assert ["0.0 %" in lines[0], "25.0 %" in lines[0], "–" in lines[1], "100.0 %" in lines[1]] == [True] * 4
    assert combination_tables(RunReport(name="r", seed=0)) == []
