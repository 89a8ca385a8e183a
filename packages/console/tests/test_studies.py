"""Studies in the console: their trials, results and runs, live and on a copied folder, and a search that is started."""

import shutil
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from console_runs import made_run
from scripted_studies import Settings, begin_run, end_run, evaluate, open_storage, run_trials, study_plan
from starlette.testclient import TestClient

from leyden.console.actions.jobs import Jobs
from leyden.console.runs.catalogue import FRESH, Catalogue
from leyden.console.server import Console
from leyden.core.trainer.config import EvaluationSet
from leyden.core.tuning import execution
from leyden.core.tuning.plan import StudyPlan

pytestmark = pytest.mark.integration  # dozens of commits to a database each


def planned(folder: Path) -> StudyPlan:
    """The plan of a study with two seeds."""
    return study_plan(folder, "learning_rate=1e-3..1e-2", "credit=uniform,discounted", seeds=(0, 1), prunes=False)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs: a run, and a study `s` with four trials that have ended and one under way."""
    runs = tmp_path_factory.mktemp("template")
    made_run(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "PAUSE", 0.0)
        run_study(planned(runs / "s"))
    return runs


@pytest.fixture
def study(template: Path, tmp_path: Path) -> StudyPlan:
    """A copy of the study."""
    shutil.copytree(template, tmp_path / "runs")
    return planned(tmp_path / "runs/s")


def run_study(plan: StudyPlan) -> None:
    """Run four trials, and begin a fifth."""
    plan.check_unchanged()

    def script(settings: Settings) -> list[float]:
        rate = settings["algorithm_config"]["learning_rate"]
        return [0.1, 0.2, 0.3, round(0.5 + 0.2 * (rate > 1e-3) + 0.1 * settings["seed"], 2)]

    run_trials(plan, script, trials=4)
    storage = open_storage(plan)
    trial = storage.begin_next()
    storage.close()
    assert trial is not None
    job, _ = plan.trial(trial.number, trial.values)
    begin_run(job.folder, job.settings or {})


@pytest.fixture
def client(study: StudyPlan) -> Generator[TestClient]:
    """A client of a console that only reads."""
    with TestClient(Console(Catalogue([study.folder.parent])).application()) as client:
        yield client


@pytest.fixture
def acting(study: StudyPlan) -> Generator[TestClient]:
    """A client of a console with actions, without the checks of `access`."""
    with TestClient(Console(Catalogue([study.folder.parent]), Jobs()).application()) as client:
        yield client


def test_the_list_has_each_study_and_a_broken_one_hides_no_other(client: TestClient, study: StudyPlan) -> None:
    (study.folder.parent / "broken").mkdir()
    (study.folder.parent / "broken/study.json").write_text("{")

    found = client.get("/api/studies").json()

    (one,) = found["studies"]
    assert (one["key"], one["state"], one["trials"], one["finished"]) == ("s", "interrupted", 5, 4)
    assert (one["searched"], one["held_out"], one["is_share"]) == (["learning_rate", "credit"], "val", True)
    assert one["default"] == pytest.approx(0.55) and one["best"] == pytest.approx(0.75)
    (problem,) = found["problems"]
    assert problem["where"].endswith("broken") and "study.json cannot be read" in problem["error"]


def test_a_study_has_its_trials_and_says_how_sure_the_best_is(client: TestClient) -> None:
    found = client.get("/api/studies/s").json()

    default, *others = found["tried"]
    assert default["default"] and default["values"] == {"learning_rate": 0.001, "credit": "uniform"}
    assert default["shown"] == {"learning_rate": "0.001", "credit": "uniform"}
    assert [run["key"] for run in default["runs"]] == ["s~trial-0-seed-0", "s~trial-0-seed-1"]
    assert [run["score"] for run in default["runs"]] == [pytest.approx(0.5), pytest.approx(0.6)]
    assert others[-1]["state"] == "running"
    assert [(run["seed"], run["score"]) for run in others[-1]["runs"]] == [(0, None)]
    assert found["difference"]["mean"] == pytest.approx(0.2)
    assert found["difference"]["seeds"] == 2
    assert any(line.startswith("this is optimistic") for line in found["conclusion"])
    assert found["importance"] is None and found["importance_note"].endswith("there are 4")
    assert found["compared"][:2] == [f"s~trial-{found['best_trial']}-seed-0", "s~trial-0-seed-0"]
    assert [(one["key"], one["choices"]) for one in found["space"]] == [
        ("learning_rate", []),
        ("credit", ["uniform", "discounted"]),
    ]


def test_trials_are_runs_of_the_list_once_and_can_be_opened(client: TestClient, study: StudyPlan) -> None:
    folders = [study.folder.parent, study.folder]
    with TestClient(Console(Catalogue(folders)).application()) as both:
        for one in (client, both):
            keys = [run["key"] for run in one.get("/api/runs").json()["runs"]]
            trials = [f"s~trial-{number}-seed-{seed}" for number in range(4) for seed in (0, 1)]
            assert sorted(keys) == sorted(["small", *trials, "s~trial-4-seed-0"])
    assert client.get("/api/runs/s~trial-2-seed-1").json()["experiment"] == "s"
    with TestClient(Console(Catalogue([study.folder])).application()) as alone:
        assert "s~trial-2-seed-1" in [run["key"] for run in alone.get("/api/runs").json()["runs"]]
        assert alone.get("/api/studies/s").json()["tried"][0]["runs"][0]["key"] is not None


def test_a_change_of_the_study_is_seen_by_the_next_request(client: TestClient, study: StudyPlan) -> None:
    assert client.get("/api/studies/s").json()["finished"] == 4
    storage = open_storage(study)
    storage.finish(4, 0.95)
    storage.close()
    found = client.get("/api/studies/s").json()
    assert (found["finished"], found["state"], found["best_trial"]) == (5, "ended", 4)


def test_best_settings_and_confirmation(client: TestClient, study: StudyPlan) -> None:
    before = client.get("/api/studies/s").json()
    assert (before["best_yaml"], before["train_command"], before["confirmation"]) == (None, None, None)
    best = before["tried"][before["best_trial"]]
    options = "\n".join(f"  {key}: {value}" for key, value in best["values"].items())
    (study.folder / "best.yaml").write_text(f"agent: a\nalgorithm_config:\n{options}\n")
    other = EvaluationSet(name="other", source="other.jsonl")
    for number, values, score in ((best["number"], best["values"], 0.9), (0, None, 0.4)):
        for job in study.confirmation(number, values, other, [2, 3]):
            run = begin_run(job.folder, job.settings or {})
            evaluate(run, 4, score)
            end_run(run, 4)
    time.sleep(FRESH)  # for so long, a listing of the folders is used again

    found = client.get("/api/studies/s").json()

    assert found["best_is_current"] and "agent: a" in found["best_yaml"]
    assert found["train_command"].startswith("leyden train --config ")
    assert found["train_command"].endswith(f"--name s-best --runs {study.folder.parent}")
    confirmation = found["confirmation"]
    assert (confirmation["trial"], confirmation["held_out"], confirmation["seeds"]) == (best["number"], "other", [2, 3])
    assert confirmation["difference"]["low"] > 0
    assert [run["key"] for run in confirmation["runs"]][-1] == "s~confirm-0-seed-3"
    assert any(line.startswith("confirmed: the whole interval") for line in found["conclusion"])
    storage = open_storage(study)
    storage.finish(4, 0.95)
    storage.close()
    later = client.get("/api/studies/s").json()
    assert later["conclusion"][-1] == f"the confirmation is of trial {best['number']}, which is no longer the best one"
    assert not later["best_is_current"]


def test_without_optuna_everything_but_importance_is_shown(study: StudyPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with TestClient(Console(Catalogue([study.folder.parent])).application()) as client:
        found = client.get("/api/studies/s").json()
    assert len(found["tried"]) == 5 and found["difference"] is not None
    assert found["importance_note"].startswith("importance: it needs the library optuna, which is not installed")


def test_a_copied_folder_is_shown_as_the_original(client: TestClient, study: StudyPlan, tmp_path: Path) -> None:
    original = client.get("/api/studies/s").json()
    shutil.copytree(study.folder.parent, tmp_path / "copy/runs")
    shutil.rmtree(study.folder.parent)
    with TestClient(Console(Catalogue([tmp_path / "copy/runs"])).application()) as copied_console:
        copied = copied_console.get("/api/studies/s").json()
    assert {**copied, "folder": "", "updated": 0} == {**original, "folder": "", "updated": 0}


def test_a_study_that_is_not_there_is_an_error(client: TestClient) -> None:
    for path in ("/api/studies/x", "/api/studies/x/events"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (404, {"error": "there is no study 'x' here"})


def test_a_run_suggests_a_search_and_a_trial_names_its_study(client: TestClient, study: StudyPlan) -> None:
    runs = study.folder.parent
    made_run(runs, "before")
    found = client.get("/api/runs/small/suggestions").json()
    assert (found["problem"], found["name"], found["steps"]) == (None, "small-tune", 2)
    assert (found["config"], found["runs"]) == (str(runs / "small/config.yaml"), str(runs))
    assert (found["past"], found["held_out"]) == (1, ["val"])
    assert next((one["key"], one["own"], one["domain"]) for one in found["keys"]) == (
        "learning_rate",
        1e-4,
        "2e-05..0.0005:log",
    )
    trial = client.get("/api/runs/s~trial-0-seed-0/suggestions").json()
    assert (trial["problem"], trial["study"]) == ("This run is a trial of a study.", "s")


def request(**changes: Any) -> dict[str, Any]:
    """A search that a page requests."""
    body = {"run": "small", "name": "found", "search": ["learning_rate=1e-4..1e-3"], "trials": 3, "seeds": "0,1"}
    return {**body, **changes}


def test_a_search_is_started_as_a_job_with_the_command_that_does_the_same(study: StudyPlan) -> None:
    runs = study.folder.parent
    accepting = Jobs([sys.executable, "-c", "pass"])
    with TestClient(Console(Catalogue([runs]), accepting).application()) as client:
        job = client.post("/api/tuning", json=request(steps=1, confirm="other file.jsonl")).json()
        assert job["command"] == (
            f"leyden tune --config {runs}/small/config.yaml --search learning_rate=1e-4..1e-3 --name found --trials 3 "
            f"--seeds 0,1 --steps 1 --confirm 'other file.jsonl' --runs {runs}"
        )
        subject = {"run": "small", "study": "found", "folder": f"{runs}/found"}
        assert (job["kind"], job["detached"], job["subject"]) == ("tune", True, subject)
        for _ in range(400):
            if client.get(f"/api/jobs/{job['id']}").json()["state"] == "finished":
                break
            time.sleep(0.1)
        else:
            pytest.fail("the search does not end")


def test_a_search_that_the_command_refuses_is_not_started(acting: TestClient, study: StudyPlan) -> None:
    answer = acting.post("/api/tuning", json=request(search=["learning_rate=abc..def"]))
    error = answer.json()["error"]
    assert answer.status_code == 422
    assert error.startswith("--search learning_rate=abc..def: 'abc' is not a finite number; write KEY=LOW..HIGH")
    assert acting.get("/api/jobs").json() == []
    assert not (study.folder.parent / "found").exists()


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (request(more=1), "the request is not understood: Object contains unknown field `more`"),
        (request(run="s~trial-0-seed-0"), "This run is a trial of a study."),
    ],
)
def test_what_cannot_be_started_is_refused_in_one_line(acting: TestClient, body: Any, error: str) -> None:
    answer = acting.post("/api/tuning", json=body)
    assert (answer.status_code, answer.json()) == (422, {"error": error})


def test_a_console_that_only_reads_has_no_such_action(client: TestClient) -> None:
    assert client.post("/api/tuning", json=request()).status_code in (404, 405)
