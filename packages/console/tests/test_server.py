"""What the server sends about a run."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from console_runs import CALL, GROUP, made_run
from starlette.testclient import TestClient

from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console
from leyden.core.errors import RunError
from leyden.core.trainer.event_loop import Terminated
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_state import KILLED, note_end


def get(client: TestClient, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def rows(client: TestClient) -> dict[str, dict[str, Any]]:
    """All rows by id, as soon as the rollouts have been read."""
    found: dict[str, Any] = {}
    for _ in range(100):
        found = get(client, "runs/small/rollouts")
        if found["indexed"] == found["total"] == 5:
            break
        time.sleep(0.05)
    columns: dict[str, list[Any]] = found["columns"]
    return {name: {key: values[at] for key, values in columns.items()} for at, name in enumerate(columns["id"])}


def test_a_run_is_listed_with_its_state_and_results(console: TestClient) -> None:
    (run,) = get(console, "runs")["runs"]

    assert (run["key"], run["state"], run["step"], run["steps"]) == ("small", "finished", 2, 2)
    assert (run["reward"], run["experiment"]) == (0.5, "first")
    assert run["held_out"] == [{"name": "val", "tasks": 4, "is_share": True, "before": 0.25, "after": 0.75}]


def test_a_run_that_is_trained_now_is_running(folder: RunFolder, console: TestClient) -> None:
    with folder.locked():
        (run,) = get(console, "runs")["runs"]
        assert run["state"] == "running"
    time.sleep(1.1)
    assert get(console, "runs")["runs"][0]["state"] == "finished"


def test_a_run_that_cannot_be_read_hides_no_other(folder: RunFolder, console: TestClient) -> None:
    broken = folder.path.parent / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("name: [")
    time.sleep(1.1)

    found = get(console, "runs")

    assert [run["key"] for run in found["runs"]] == ["small"]
    assert "cannot be read" in found["problems"][0]["error"]
    get(console, "runs/broken", 404)


def test_two_runs_of_one_name_have_keys_of_their_own(folder: RunFolder, tmp_path: Path) -> None:
    other = made_run(tmp_path / "others")
    with TestClient(Console(Catalogue([folder.path.parent, other.path.parent])).application()) as client:
        found = get(client, "runs")["runs"]
        assert sorted(run["key"] for run in found) == ["small", "small~2"]
        folders = {get(client, f"runs/{run['key']}")["folder"] for run in found}
        assert folders == {str(folder.path), str(other.path)}


def test_runs_of_one_name_are_distinguished_by_their_folders(folder: RunFolder, tmp_path: Path) -> None:
    other = made_run(tmp_path / "others")
    renamed = shutil.copytree(folder.path, tmp_path / "runs/renamed")
    with TestClient(
        Console(Catalogue([folder.path.parent, other.path.parent, renamed.parent])).application()
    ) as client:
        labels = {run["key"]: run["label"] for run in get(client, "runs")["runs"]}
        assert labels == {
            "small": f"small ({folder.path})",
            "small~2": f"small ({other.path})",
            "renamed": "small (renamed)",
        }
        assert [get(client, f"runs/{key}")["label"] for key in labels] == list(labels.values())
        compared = get(client, "compare?runs=renamed,small~2")
        assert [run["label"] for run in compared["runs"]] == ["small (renamed)", f"small ({other.path})"]
    with TestClient(Console(Catalogue([folder.path])).application()) as client:
        assert get(client, "runs/small")["label"] == "small"


def test_a_run_has_its_settings_versions_and_commands(console: TestClient) -> None:
    run = get(console, "runs/small")

    assert run["config"]["algorithm_config"] == {"learning_rate": 1e-4}
    assert [(one["version"], one["kept"], one["held_out"]) for one in run["versions"]] == [
        (0, False, {"val": 0.25}),
        (2, True, {"val": 0.75}),
    ]
    assert any("models rollback small VERSION" in one["command"] for one in run["commands"])
    assert run["phases"] == get(console, "runs/small/bottlenecks")["phases"]


def test_rollouts_have_their_reward_and_what_became_of_them(console: TestClient) -> None:
    found = rows(console)

    assert {name: (row["reward"], row["trained"], row["step"], row["reason"]) for name, row in found.items()} == {
        "val-val-before-v0-agent-0": (0.0, False, None, "held out"),
        f"{GROUP}-0": (1.0, True, 1, ""),
        f"{GROUP}-1": (0.0, True, 1, ""),
        f"{GROUP}-2": (None, False, 1, "no reward"),
        f"{GROUP}-3": (None, False, None, "agent error"),
    }
    one = found[f"{GROUP}-0"]
    assert (one["group"], one["task"], one["version"], one["calls"], one["tokens"]) == (GROUP, 3, 0, 1, 3)
    assert (one["agents"], found["val-val-before-v0-agent-0"]["set"]) == ("solver", "val")
    assert found[f"{GROUP}-3"]["error"] == "ValueError: <img src=x onerror=alert(1)>"


def test_a_page_gets_only_the_rows_that_changed(console: TestClient) -> None:
    rows(console)
    cursor = get(console, "runs/small/rollouts")["next"]

    assert get(console, f"runs/small/rollouts?after={cursor}")["count"] == 0
    assert get(console, f"runs/small/rollouts?after={cursor}&generation=another")["count"] == 5
    assert get(console, f"runs/small/rollouts?after={cursor + 99}")["count"] == 5, "another server: all rows"


def test_a_damaged_file_of_a_run_is_named(folder: RunFolder, console: TestClient) -> None:
    with folder.learned_file.open("a") as file:
        file.write('{"step": "x"}\n')

    problem = None
    for _ in range(100):
        if problem := get(console, "runs/small/rollouts")["problem"]:
            break
        time.sleep(0.05)

    assert problem is not None
    assert problem.startswith(f"{folder.learned_file}, line 3 cannot be read: ")
    assert len(rows(console)) == 5, "the rollouts are in the store"


PAGES = ("", "/steps", "/rollouts", "/health", "/why", "/bottlenecks", "/prompts")


@pytest.mark.parametrize(
    ("file", "text", "needs_it"),
    [
        ("report.json", "{broken", {"/why", "/bottlenecks"}),
        ("versions.jsonl", "{broken\n", {"/prompts"}),
        ("metrics.jsonl", '{broken\n{"step": 1, "seconds": "abc", "reward": "x", "groups": "y"}\n', set[str]()),
    ],
)
def test_a_damaged_file_hides_only_what_is_in_it(
    folder: RunFolder, console: TestClient, file: str, text: str, needs_it: set[str]
) -> None:
    path = folder.path / file
    path.write_text(text)
    named = f"{path}, line 1 cannot be read: " if file.endswith(".jsonl") else f"{path} cannot be read: "

    answers = {page: console.get(f"/api/runs/small{page}") for page in PAGES}

    assert {page for page, answer in answers.items() if answer.status_code != 200} == needs_it
    assert all(named in answers[page].json()["error"] for page in needs_it)
    run = answers[""].json()
    assert [one for one in [*run["problems"], run["error"]] if one and named in one], "and it is named once"
    assert len(run["problems"]) + (run["error"] is not None) == 1
    assert run["state"] == "finished"
    assert get(console, "runs")["problems"] == []


def test_a_value_that_is_no_number_is_left_out(folder: RunFolder, console: TestClient) -> None:
    with folder.metrics_file.open("a") as file:
        file.write('{"step": 3, "seconds": "abc", "reward": "x", "groups": "y"}\n')

    with folder.locked():
        progress = get(console, "runs/small/health")["liveness"][1]
    steps = get(console, "runs/small/steps")

    assert "a step usually takes 2 s" in progress["message"]
    assert (steps["steps"], steps["series"]["seconds"]) == ([1, 2, 3], [2.0, 2.0, None])
    assert get(console, "runs/small")["reward"] is None


def test_a_rollout_is_a_tree_with_its_group(console: TestClient) -> None:
    rows(console)

    found = get(console, f"runs/small/rollouts/{GROUP}-0")

    spans = found["attempts"][0]["spans"]
    assert [(span["kind"], span["title"], span["parent"]) for span in spans] == [
        ("model", "chat model", f"{2:016x}"),
        ("agent", "solver", None),
        ("tool", "calculator", f"{2:016x}"),
        ("reward", "reward", None),
    ]
    assert spans[0]["model"]["answer"] == "It is 2."
    assert (spans[2]["error"], spans[2]["tool"]["arguments"]) == ("division by zero", '{"expression": "1 / 0"}')
    assert found["outcome"]["steps"] == ["step 1"]
    assert [one["id"] for one in found["siblings"]] == [f"{GROUP}-{number}" for number in range(4)]


def test_a_run_that_an_error_ended_says_why(tmp_path: Path) -> None:
    folder = made_run(tmp_path, finished=False)
    folder.note_session_error(RunError("reward score raised ValueError"))

    with TestClient(Console(Catalogue([tmp_path])).application()) as client:
        (run,) = get(client, "runs")["runs"]
        (process, *_) = get(client, "runs/small/health")["liveness"]

    assert (run["state"], run["error"]) == ("failed", "reward score raised ValueError")
    assert process["message"] == "the run has failed: reward score raised ValueError"


def test_runs_that_were_stopped_killed_or_failed_are_told_apart(tmp_path: Path) -> None:
    reasons = {"stopped": "requested by SIGTERM", "failed": "the disk is full", "interrupted": KILLED}
    for state in reasons:
        folder = made_run(tmp_path, state, finished=False)
        with folder.locked():
            if state != "interrupted":
                note_end(folder, Terminated() if state == "stopped" else RunError(reasons[state]))

    with TestClient(Console(Catalogue([tmp_path])).application()) as client:
        runs = {run["key"]: (run["state"], run["error"]) for run in get(client, "runs")["runs"]}
        levels = {key: get(client, f"runs/{key}/health")["liveness"][0]["level"] for key in reasons}

    assert runs == {state: (state, reason) for state, reason in reasons.items()}
    assert levels == {"stopped": "warning", "failed": "alarm", "interrupted": "alarm"}


def test_a_rollout_that_failed_says_why(console: TestClient) -> None:
    found = get(console, f"runs/small/rollouts/{GROUP}-3")

    assert found["attempts"][0]["failure"]["message"] == "ValueError: <img src=x onerror=alert(1)>"
    assert found["outcome"]["trained"] is False


def test_a_call_has_its_tokens_and_what_was_learned_from_them(console: TestClient) -> None:
    found = get(console, f"runs/small/rollouts/{GROUP}-0/calls/{CALL}")

    assert found["response"]["ids"] == [7, 8, 9]
    assert found["response"]["logprobs"] == [-0.5, -1.0, -2.0]
    assert found["prompt"]["ids"] == [5, 6]
    (step,) = found["trained"]
    assert (step["step"], step["loss"], step["ratios"]) == (1, 0.3, [1.0, 1.0, 1.0])
    assert step["share"] == pytest.approx(0.15)
    assert found["messages"][0]["content"] == "What is 1 + 1?"
    assert "no tokenizer.json" in found["vocabulary"]


def test_a_steps_calls_add_up_to_its_loss(console: TestClient) -> None:
    found = get(console, "runs/small/step/1")["policies"]["policy"]

    assert found["sum"] == pytest.approx(found["loss"], abs=1e-6)
    assert [call["rollout"] for call in found["calls"]] == [f"{GROUP}-0", f"{GROUP}-1"]
    assert get(console, "runs/small/step/9", 404)["error"] == "the run has no step 9: its last one is 2"


def test_a_step_without_a_record_of_its_tokens_is_still_a_step(folder: RunFolder, console: TestClient) -> None:
    folder.token_records.path(2).unlink()

    assert get(console, "runs/small/step/2")["recorded"] is False


def test_the_reasons_are_counted_as_leyden_why_counts_them(console: TestClient) -> None:
    found = get(console, "runs/small/why")

    assert (found["rollouts"], found["rollouts_trained"], found["held_out"]) == (4, 2, 1)
    assert {one["reason"]: one["count"] for one in found["rollouts_left_out"]}["no reward"] == 1


def test_runs_are_compared_task_by_task(folder: RunFolder, console: TestClient) -> None:
    made_run(folder.path.parent, "other")
    time.sleep(1.1)

    found = get(console, "compare?runs=small,other")

    assert found["sets"][0]["rows"][0] | {"low": 0, "high": 0} == {
        **{"a": 0, "b": 1, "difference": 0.0, "common": 4, "wins": 0, "losses": 0},
        **{"low": 0, "high": 0},
    }
    tasks = get(console, "compare/tasks?runs=small,other&set=val")["tasks"]
    assert [task["rewards"] for task in tasks] == [[1.0, 1.0]] * 3 + [[0.0, 0.0]]
    assert tasks[0]["input"] == {"question": "What is 2 + 2?"}


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("runs/nothing", 404, "no run 'nothing'"),
        ("runs/small/rollouts/nothing", 404, "no rollout 'nothing'"),
        (f"runs/small/rollouts/{GROUP}-0/calls/nothing", 404, "no span"),
        ("runs/small/rollouts?after=-1", 422, "whole number"),
        ("runs/small/steps?after=1e9", 422, "whole number"),
        ("runs/small/step/abc", 422, "step must be a whole number, got 'abc'"),
        ("jobs/99", 404, "start it with --allow-actions"),
        ("jobs/99/events", 404, "start it with --allow-actions"),
        ("compare?runs=small", 422, "2 to 8"),
        ("compare?runs=" + ",".join(map(str, range(9))), 422, "2 to 8"),
        ("nothing", 404, "no page"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(console: TestClient, path: str, status: int, why: str) -> None:
    found = get(console, path, status)

    assert why in found["error"]
    assert "\n" not in found["error"]


def test_signs_of_life_and_bottlenecks_are_computed(console: TestClient) -> None:
    rows(console)

    health = get(console, "runs/small/health")
    assert [sign["level"] for sign in health["liveness"]] == ["ok", "ok", "warning"]
    assert health["alerts"][0]["name"] == "entropy_collapse"
    found = get(console, "runs/small/bottlenecks")
    assert [phase["name"] for phase in found["phases"]] == ["rollouts", "update"]
    assert sum(phase["share"] for phase in found["phases"]) == pytest.approx(1.0)
    assert found["sampled"] == 3


def test_a_store_without_a_folder_is_shown_too(folder: RunFolder) -> None:
    with TestClient(Console(Catalogue([], [folder.store_location.uri])).application()) as client:
        (run,) = get(client, "runs")["runs"]
        assert run["folder"] is None
        assert get(client, f"runs/{run['key']}/rollouts/{GROUP}-0")["reward"] == 1.0
        assert "folder" in get(client, f"runs/{run['key']}/why", 404)["error"]
