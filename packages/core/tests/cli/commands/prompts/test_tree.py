"""`leyden prompts tree` on records of searches: finished, under way, killed, and runs without one."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.algorithm.prompts.search import Candidate, Evaluation, PromptSearch, Reflection
from leyden.core.cli.main import run
from leyden.core.data.resources import PromptTemplate
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.algorithm_state import AlgorithmState
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.prompts.search import best_curve, best_scores, read_prompt_search, spent_at
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.serving.endpoint import ModelEndpoint

CONFIG = RunConfig(
    name="run",
    endpoint=ModelEndpoint(url="http://127.0.0.1:9/v1"),
    prompts={"p": PromptTemplate(template="start")},
    agent="agent.py:agent",
    tasks="tasks.jsonl",
    algorithm="gepa",
)
REJECTED = "it is not better than its parent"


def evaluation(version: str, row: int, score: float, step: int = 1) -> Evaluation:
    return Evaluation(
        row=row,
        held_out=None,
        resources_id=version,
        repeat=0,
        step=step,
        score=score,
        rollout_id=f"ro-{step}-{row}-{version}",
        input_tokens=9,
        output_tokens=1,
        cost=0.25,
    )


def searched() -> PromptSearch:
    """A search: tasks 0 and 1 select, tasks 2 and 3 are learned from."""
    candidates = [
        Candidate(number=0, texts={"p": "start"}, resources_id="v0", scores={"train/0": 0.0, "train/1": 0.5}),
        Candidate(
            number=1, texts={"p": "start\nbe good\x1b[31m"}, resources_id="v1", origin="reflection", parents=(0,),
            changed=("p",), step=1, rollouts=("ro-1-2-v0", "ro-1-2-v0"), before=0.0, after=1.0,
            scores={"train/0": 0.5, "train/1": 0.5}, reason="it should be good",
        ),
        Candidate(
            number=2, texts={"p": "worse"}, resources_id="v2", origin="reflection", parents=(0,), changed=("p",),
            step=2, before=0.5, after=0.0, rejected=REJECTED,
        ),
        Candidate(
            number=3, texts={"p": "lost {x}"}, origin="reflection", parents=(1,), changed=("p",), step=2,
            rejected="p: the new text has the variable x, which nothing fills",
        ),
        Candidate(
            number=4, texts={"p": "start\nbe better"}, resources_id="v4", origin="reflection", parents=(1,),
            changed=("p",), step=3, before=0.5, after=1.0, scores={"train/0": 1.0, "train/1": 0.5},
        ),
        Candidate(
            number=5, texts={"p": "start\nmerged"}, resources_id="v5", origin="merge", parents=(1, 4), changed=("p",),
            step=3, scores={"train/0": 0.0, "train/1": 0.0},
        ),
    ]  # fmt: skip
    evaluations = [
        *(evaluation("v0", row, score) for row, score in ((0, 0.0), (1, 0.5), (2, 0.0))),
        *(evaluation("v1", row, score) for row, score in ((2, 1.0), (0, 0.5), (1, 0.5))),
        *(evaluation("v2", row, 0.0, 2) for row in (2, 3)),
        *(evaluation("v4", row, score, 3) for row, score in ((3, 1.0), (0, 1.0), (1, 0.5))),
        *(evaluation("v5", row, 0.0, 3) for row in (0, 1)),
    ]
    return PromptSearch(
        candidates=candidates,
        evaluations=evaluations,
        reflections={"1.0": Reflection(text="x", input_tokens=90, output_tokens=10, cost=0.5)},
        best=4,
        limits={"rollouts": 20.0, "dollars": 5.0},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    found = RunFolder.create(Path("runs"), CONFIG, [{"q": number} for number in range(4)], {})
    for step, reward in ((1, 0.5), (2, 0.5), (3, 0.75)):
        found.append_metrics({"step": step, "reward": reward, "spent_rollouts": 6 + step, "seconds": 1.0})
    return found


def save(folder: RunFolder, search: PromptSearch, step: int = 3) -> None:
    AlgorithmState(folder).save(step, "", msgspec.to_builtins(search))


def printed(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> str:
    assert run(["prompts", "tree", "run", *options]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_the_tree_has_scores_what_changed_and_what_was_spent(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder, searched())
    folder.write_report(RunReport(name="run", seed=0, endpoint="e", steps=3))
    said = printed(capsys)
    assert "Search of run run (gepa)" in said
    kept = [line for line in said.splitlines() if line.startswith("│")]
    assert [line[2:12].rstrip() for line in kept] == ["0", "1", "├ 4", "└ 5"]
    assert "0.750" in kept[2] and "0.500 → 1.000" in kept[2] and "best" in kept[2]
    assert "1 and 4" in kept[3]
    assert "2 of 6 candidates were rejected: --all shows them" in said
    assert "spent: 13 of 20 rollouts, 230 tokens, $3.75 of $5, 1 call of the reflection model" in said
    assert "left: 7 rollouts, $1.25" in said
    assert "finished, after 3 steps: all 3 steps were taken" in said
    assert "best score on the tasks that select candidates" in said
    every = printed(capsys, "--all")
    assert f"rejected: {REJECTED}" in every and "rejected: p: the new text has the variable x" in every
    assert "were rejected" not in every


def test_a_candidate_is_shown_with_its_diffs_its_rollouts_and_its_scores_by_task(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    save(folder, searched())
    said = printed(capsys, "--candidate", "1")
    assert "candidate 1, from candidate 0" in said and "\x1b" not in said
    assert "  it should be good" in said
    assert "changed from its parent, the start:" in said and "  +be good\\x1b[31m" in said
    assert said.count("leyden show run ro-1-2-v0") == 1
    cells = {row[0]: row[1:4] for row in rows(said)}
    assert cells["train/2"] == ["1.000", "0.000", "ro-1-2-v1"]
    assert cells["train/0"] == ["0.500", "0.000", "ro-1-0-v1"]
    other = printed(capsys, "--candidate", "4")
    assert "changed from its parent, candidate 1:" in other and "changed from the start:" in other
    assert "which the run began with" in printed(capsys, "--candidate", "0")
    assert "components of two candidates" in printed(capsys, "--candidate", "5")
    edited = searched()
    edited.candidates[4].after = None
    save(folder, edited)
    assert "its parent's mean score on the tasks it was made from: 0.500\n" in printed(capsys, "--candidate", "4")
    save(folder, searched())
    full = json.loads(printed(capsys, "--candidate", "4", "--json"))
    assert full["score"] == 0.75 and full["is_best"] and full["parents"] == [1]
    assert "-be good" in full["diffs"]["from_parent"]["p"] and "be good" not in full["diffs"]["from_start"]["p"]
    assert [one["task"] for one in full["evaluations"]] == ["train/3", "train/0", "train/1"]


def test_json_has_everything(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    save(folder, searched())
    found = json.loads(printed(capsys, "--json"))
    assert found["state"] == "stopped" and found["best"] == 4
    assert found["spent"] == {"rollouts": 13, "tokens": 230, "dollars": 3.75}
    assert found["left"] == {"rollouts": 7.0, "dollars": 1.25}
    assert [one["number"] for one in found["candidates"]] == list(range(6))
    assert [one["spent_rollouts"] for one in found["candidates"]] == [2, 6, 8, None, 11, 13]
    assert found["best_scores"] == [[2, 0.25], [6, 0.5], [11, 0.75]]


def test_what_was_spent_at_a_score_is_counted_up_to_its_last_rollout() -> None:
    search = searched()
    expected: dict[int, int] = {}
    for one in search.candidates:
        own = [
            at
            for at, each in enumerate(search.evaluations, 1)
            if each.resources_id == one.resources_id and (not one.scores or f"train/{each.row}" in one.scores)
        ]
        expected |= {one.number: max(own)} if own else {}
    assert spent_at(search) == expected
    search.evaluations.append(evaluation("v0", 0, 1.0, 4))  # compared again, after it had its score
    assert spent_at(search) == expected
    assert best_scores(search)[-1] == (11, 0.75)
    assert best_curve(search) == ([2, 6, 6, 11, 11, 14], [0.25, 0.25, 0.5, 0.5, 0.75, 0.75])
    assert best_curve(PromptSearch()) == ([], [])
    search.candidates.append(
        Candidate(
            number=6, texts=search.candidates[1].texts, resources_id="v1", parents=(0,), rejected="known", before=0.5
        )
    )
    assert spent_at(search) == expected, "it never ran"


def test_a_run_that_was_killed_or_is_under_way_shows_what_it_has(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    search = searched()
    search.candidates[5].scores, search.limits = {}, {}
    save(folder, search)
    said = printed(capsys)
    assert "stopped, after 3 steps: continue with: leyden train --resume run" in said
    assert "not scored yet" in said and "the budget has no limit" in said
    with folder.locked():
        assert "under way, after 3 steps: 25 steps are planned" in printed(capsys)


def test_the_latest_state_counts_and_after_a_rollback_that_of_the_checkpoint(folder: RunFolder) -> None:
    checkpoint = folder.checkpoints / "step-00000002"
    checkpoint.mkdir(parents=True)
    earlier = searched()
    earlier.best = 1
    progress: dict[str, Any] = {"step": 2, "lineage": "", "state": msgspec.to_builtins(earlier)}
    (checkpoint / "progress.json").write_text(json.dumps(progress))
    assert read_prompt_search(folder, CONFIG).best == 1
    save(folder, searched(), 1)
    assert read_prompt_search(folder, CONFIG).best == 1, "a state before the checkpoint is not the latest"
    save(folder, searched(), 2)
    assert read_prompt_search(folder, CONFIG).best == 4
    (checkpoint / "progress.json").write_text(json.dumps({**progress, "lineage": "r1-"}))
    assert read_prompt_search(folder, CONFIG).best == 1


def test_a_run_that_takes_turns_has_a_search_for_each_prompt_round(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = searched(), searched()
    first.best = 1
    rounds = [{"step": 1, "search": msgspec.to_builtins(first)}, {"step": 3, "search": msgspec.to_builtins(second)}]
    AlgorithmState(folder).save(3, "", {"rounds": [*rounds, {"step": 5, "search": None}], "empty": []})
    assert json.loads(printed(capsys, "--json"))["best"] == 4
    assert json.loads(printed(capsys, "--json", "--round", "1"))["best"] == 1
    assert "has no prompt round 3; it has 1 to 2" in printed(capsys, "--round", "3", code=2)


def test_the_picture_is_a_png(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    save(folder, searched())
    assert "the picture is in tree.png" in printed(capsys, "--plot", "tree.png")
    assert Path("tree.png").read_bytes().startswith(b"\x89PNG")
    assert "give a file that ends in .png, not tree.pdf" in printed(capsys, "--plot", "tree.pdf", code=2)
    assert "nowhere/tree.png cannot be written: No such file" in printed(capsys, "--plot", "nowhere/tree.png", code=2)


def test_what_cannot_be_shown_is_one_line(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the search of run 'run' has not begun" in printed(capsys, code=2)
    save(folder, searched())
    assert "has no candidate 6; it has 0 to 5" in printed(capsys, "--candidate", "6", code=2)
    assert "--candidate shows one candidate; remove --all" in printed(capsys, "--candidate", "1", "--all", code=2)
    AlgorithmState(folder).save(3, "", ["scores of another algorithm"])
    assert "has not begun" in printed(capsys, code=2)
    other = RunConfig(name="weights", policy="policy", agent="a.py:a", tasks="t")
    RunFolder.create(Path("runs"), other, [{"q": 1}], {})
    assert run(["prompts", "tree", "weights"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "run 'weights' has no search for prompts: its algorithm is lightning_rl" in error
    assert run(["prompts", "tree", "missing"]) == 2
    assert "no run 'missing' in runs" in capsys.readouterr().err


def test_a_long_line_of_candidates_stays_narrow(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    search = PromptSearch(candidates=[Candidate(number=0, texts={"p": "0"}, scores={"train/0": 0.0})])
    for number in range(1, 60):
        search.candidates.append(
            Candidate(number=number, texts={"p": str(number)}, parents=(number - 1,), scores={"train/0": number / 60})
        )
    save(folder, search)
    said = printed(capsys, "--all")
    assert max(len(line) for line in said.splitlines()) < 90
    assert [row[0] for row in rows(said)] == [str(number) for number in range(60)]
