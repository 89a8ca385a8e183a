"""The reward debugger's requests: sources of rewards, scoring with named and edited ones, results, and saving."""

import shutil
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from console_runs import made_run
from rescored_runs import OWN, rescored_run
from starlette.testclient import TestClient

from leyden.console.actions.jobs import Jobs
from leyden.console.runs.catalogue import Catalogue
from leyden.console.server import Console

pytestmark = pytest.mark.integration

EDITED = OWN.replace("return points(", "return 0.5 + points(")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and the files of its reward."""
    folder = tmp_path_factory.mktemp("original")
    rescored_run(folder)
    return folder


@pytest.fixture
def place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a console, with a run."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def acting(place: Path) -> Generator[TestClient]:
    """A client of a console with actions, without the checks of `access`."""
    with TestClient(Console(Catalogue([place / "runs"]), Jobs()).application()) as client:
        yield client


@pytest.fixture
def reading(place: Path) -> Generator[TestClient]:
    """A client of a console that only reads."""
    with TestClient(Console(Catalogue([place / "runs"])).application()) as client:
        yield client


def get(client: TestClient, path: str, status: int = 200) -> Any:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def post(client: TestClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = client.post(f"/api/runs/mine/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def ended(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    """The job when it has ended."""
    until = time.monotonic() + 60
    while (found := get(client, f"jobs/{job['id']}"))["ended"] is None:
        assert time.monotonic() < until, found
        time.sleep(0.1)
    return found


def scored(client: TestClient, **body: Any) -> Any:
    """The summary of a job that ends well."""
    job = ended(client, post(client, "rescore", {"reward": "rewards/own.py:score", **body}))
    assert job["state"] == "finished", job
    return get(client, f"jobs/{job['id']}/rescored")


def test_the_own_reward_is_shown_with_the_files_beside_it(acting: TestClient) -> None:
    found = get(acting, "runs/mine/reward")

    assert (found["own"], found["source"], found["function"]) == (
        "rewards/own.py:score",
        "rewards/own.py",
        "score",
    )
    assert (found["text"], found["functions"], found["problem"]) == (OWN, ["score"], "")
    assert found["files"] == [
        {"source": "rewards/own.py", "functions": ["score"]},
        {"source": "rewards/points.py", "functions": ["points", "near"]},
    ]
    beside = get(acting, "runs/mine/reward?file=rewards/points.py")
    assert (beside["source"], beside["function"]) == ("rewards/points.py", "points")
    error = get(acting, "runs/mine/reward?file=rewards/notes.py", 404)["error"]
    assert error == "rewards/notes.py has no reward, or is not in the folder of the run's reward"


def test_a_console_that_only_reads_shows_the_own_reward_alone(reading: TestClient, place: Path) -> None:
    (place / "rewards/own.py").write_text('KEY = "sk-proj-' + "a1B2" * 12 + '"\n')

    found = get(reading, "runs/mine/reward")

    assert (found["files"], "a1B2a1B2" in found["text"]) == ([], False)
    assert found["command"] == f"leyden rescore mine --runs {place / 'runs'} --reward rewards/own.py:score"
    get(reading, "runs/mine/reward?file=rewards/points.py", 404)
    assert reading.post("/api/runs/mine/rescore", json={}).status_code == 405
    get(reading, "jobs/1/rescored", 404)


def test_a_reward_that_is_not_here_is_a_problem_of_the_page(acting: TestClient, place: Path) -> None:
    (place / "rewards/own.py").unlink()

    found = get(acting, "runs/mine/reward")

    assert found["text"] == ""
    assert "own.py; start the console in the folder in which the run was started" in found["problem"]
    made_run(place / "runs", "other")
    assert get(acting, "runs/other/reward")["own"] is None


def test_an_edited_reward_is_loaded_in_the_place_of_the_original(acting: TestClient, place: Path) -> None:
    found = scored(acting, text=EDITED)

    assert (found["control"]["reproduced"], found["control"]["stored"]) == (8, 8)
    assert (found["read"], found["scored"], found["rollouts"]) == (9, 8, [])
    assert found["distribution"]["mean_after"] == pytest.approx(found["distribution"]["mean_before"] + 0.5)
    assert (found["reward"], found["text"]) == ("rewards/own.py:score", EDITED)
    assert (place / "rewards/own.py").read_text() == OWN
    assert "edited" in found["subject"]


def test_a_named_reward_changes_ranks_and_groups(acting: TestClient) -> None:
    found = scored(acting, reward="rewards/points.py:near", rollouts="train")

    assert found["text"] is None
    assert found["groups"]["counts"] == {"gains": 1, "loses": 0, "keeps": 1, "none": 1}
    assert (found["groups"]["compared"], [one["group"] for one in found["groups"]["gain"]]) == (3, ["train-v0-b0-1"])
    rows = get(acting, f"jobs/{found['job']}/rescored/rollouts?sort=rank&limit=1")
    assert (rows["total"], len(rows["rows"])) == (2, 1)
    assert rows["rows"][0]["rank_before"] != rows["rows"][0]["rank_after"]
    raised = get(acting, f"jobs/{found['job']}/rescored/rollouts?sort=raised")["rows"]
    assert [(one["rollout"], one["before"], one["after"]) for one in raised] == [
        ("train-v0-b0-0-0", 0.0, 0.5),
        ("train-v0-b0-1-1", 0.0, pytest.approx(1 / 3)),
        ("train-v0-b0-1-0", 0.0, 0.25),
    ]
    (error,) = get(acting, f"jobs/{found['job']}/rescored/rollouts?sort=errors")["rows"]
    assert error["error"] == "the agent returned no result"
    assert get(acting, f"jobs/{found['job']}/rescored/rollouts?sort=all&offset=8")["total"] == 9
    get(acting, f"jobs/{found['job']}/rescored/rollouts?sort=size", 422)


def test_options_choose_and_weigh(acting: TestClient) -> None:
    text = 'def score(task, result):\n    return {"right": result["number"], "short": 1.0}\n'
    found = scored(acting, text=text, rollouts="held-out", weights=["right=0", "short=2"], limit=5, timeout=9)

    assert (found["rollouts_of"], found["read"], found["limit"]) == ("held-out", 1, 5)
    assert found["reward_weights"] == {"right": 0.0, "short": 2.0}
    assert found["distribution"]["mean_after"] == 2.0


def test_a_reward_that_raises_names_its_line(acting: TestClient) -> None:
    found = scored(acting, text="def score(task, result):\n    return 1 / (result['number'] - 4)\n")

    counts = {one["text"]: one["count"] for one in found["errors"]}
    failed = "reward failed: reward score raised ZeroDivisionError: division by zero (edited text, line 2)"
    assert counts == {failed: 5, "not stored: the agent returned no result": 1}


def test_a_reward_that_loops_is_stopped(acting: TestClient) -> None:
    text = "def score(task, result):\n    while result['number'] == 3:\n        pass\n    return 0.0\n"
    found = scored(acting, text=text, timeout=0.5)

    assert [one["text"] for one in found["errors"]][:1] == ["time limit: the reward was stopped after 0.5 s"]
    assert found["scored"] == 7


def test_a_reward_that_cannot_be_loaded_fails_the_job_in_one_line(acting: TestClient) -> None:
    job = ended(acting, post(acting, "rescore", {"reward": "rewards/own.py:absent", "text": EDITED}))

    assert (job["state"], job["exit_code"]) == ("failed", 2)
    assert job["output"] == ["leyden: the edited text has no 'absent'"]
    assert "has no new rewards: it is rescore, failed" in get(acting, f"jobs/{job['id']}/rescored", 409)["error"]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"text": "def score(task, result)\n    return 1\n"}, 422, "not Python: line 1: expected ':'"),
        ({"text": "x = 1\nreturn x\n"}, 422, "not Python: line 2: 'return' outside function"),
        ({"text": "# coding: no-such-code\n"}, 422, "unknown encoding"),
        ({"text": "x" * 200_001}, 422, "200,001 characters"),
        ({"rollouts": "some"}, 422, "must be one of train, held-out, all"),
        ({"limit": 0}, 422, "the number of rollouts must be at least 1"),
        ({"timeout": 0}, 422, "the time limit must be positive"),
        ({"weights": ["right"]}, 422, "a weight is written as dimension=number"),
        ({"reward": "score"}, 409, "names no reward"),
        ({"reward": "no_such_module:score"}, 409, "there is no Python file of the module no_such_module"),
        ({"shell": "rm"}, 422, "unknown field `shell`"),
    ],
)
def test_bad_input_starts_no_job(acting: TestClient, body: dict[str, Any], status: int, why: str) -> None:
    assert why in post(acting, "rescore", {"reward": "rewards/own.py:score", **body}, status)["error"]
    assert get(acting, "jobs") == []


def test_an_edit_of_a_package_keeps_its_relative_imports(acting: TestClient, place: Path) -> None:
    package = place / "kit"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "half.py").write_text("HALF = 0.5\n")
    (package / "graded.py").write_text("from .half import HALF\ndef score(task, result):\n    return HALF\n")

    named = scored(acting, reward="kit.graded:score")
    text = "from .half import HALF\ndef score(task, result):\n    return HALF / 2\n"
    edited = scored(acting, reward="kit.graded:score", text=text)

    assert (named["distribution"]["mean_after"], edited["distribution"]["mean_after"]) == (0.5, 0.25)


def test_an_edited_reward_is_saved_and_scored_by_its_name(acting: TestClient, place: Path) -> None:
    assert post(acting, "reward/save", {"path": "rewards/half.py", "text": EDITED}) == {"source": "rewards/half.py"}

    assert (place / "rewards/half.py").read_text() == EDITED
    assert scored(acting, reward="rewards/half.py:score")["scored"] == 8


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("rewards/own.py", EDITED, "own.py exists, and is not overwritten"),
        ("../outside.py", EDITED, "is not below"),
        ("/tmp/outside.py", EDITED, "is not below"),
        ("link/outside.py", EDITED, "is not below"),
        ("rewards/dangling.py", EDITED, "exists, and is not overwritten"),
        ("absent/new.py", EDITED, "there is no folder"),
        ("rewards/new.txt", EDITED, "no name of a Python file"),
        ("rewards/a-b.py", EDITED, "no name of a Python file"),
        ("rewards/new.py", "def", "not Python: line 1"),
    ],
)
def test_a_file_that_is_not_allowed_is_not_written(
    acting: TestClient, place: Path, tmp_path_factory: pytest.TempPathFactory, path: str, text: str, why: str
) -> None:
    other = tmp_path_factory.mktemp("other")
    (place / "link").symlink_to(other)
    (place / "rewards/dangling.py").symlink_to(other / "target.py")
    before = sorted(place.rglob("*.py"))

    assert why in post(acting, "reward/save", {"path": path, "text": text}, 422)["error"]

    assert sorted(place.rglob("*.py")) == before
    assert list(other.iterdir()) == []
    assert (place / "rewards/own.py").read_text() == OWN


def test_the_refusal_names_each_allowed_folder_once(acting: TestClient, place: Path) -> None:
    error = post(acting, "reward/save", {"path": "/tmp/outside.py", "text": EDITED}, 422)["error"]

    assert error.endswith(f" is not below {place}, where rewards can be saved")


def test_the_source_is_found_without_running_it(acting: TestClient, place: Path) -> None:
    (place / "rewards/own.py").write_text("raise SystemExit\ndef score(task, result): ...\n")
    (place / "rewards/broken.py").write_text("def score(:\n")

    found = get(acting, "runs/mine/reward")

    assert found["functions"] == ["score"]
    assert [one["source"] for one in found["files"]] == ["rewards/own.py", "rewards/points.py"]
