"""A study as its folder holds it: the same trials as Optuna reads, without a lock, a write, or Optuna."""

import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from scripted_studies import Settings, begin_run, end_run, evaluate, open_storage, run_trials, study_plan

from leyden.core.errors import RunError
from leyden.core.trainer.config import EvaluationSet
from leyden.core.tuning import execution
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.results import read_result, result_of, run_folders
from leyden.core.tuning.space import read_space
from leyden.core.tuning.stored_study import is_running, read_plan, stored_best, stored_confirmation
from leyden.core.tuning.stored_trials import STORAGE_FILE, stored_trials

pytestmark = pytest.mark.integration  # dozens of commits to a database each
SEARCHES = ("learning_rate=1e-4..1e-2:log", "credit=uniform,discounted", "epochs=1..3:int")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the runs again at once."""
    monkeypatch.setattr(execution, "PAUSE", 0.0)


def script(settings: Settings) -> list[float] | str:
    """Scores that are higher the nearer the learning rate is to 3e-3; two epochs fail."""
    options = settings["algorithm_config"]
    if options.get("epochs") == 2:
        return "it does not converge"
    best = max(0.0, 0.9 - 0.4 * abs(math.log10(options["learning_rate"] / 3e-3)))
    return [round(best * share, 2) for share in (0.25, 0.5, 0.75, 1.0)]


def made_study(folder: Path, trials: int = 9) -> StudyPlan:
    """Make a study with trials of every state, the last one under way."""
    plan = study_plan(folder, *SEARCHES)
    plan.check_unchanged()
    past = begin_run(folder.parent / "old", plan.settings({"learning_rate": 2e-3, "credit": "uniform", "epochs": 1}))
    evaluate(past, 4, 0.8)
    end_run(past, 4)
    storage = open_storage(plan)
    storage.add_past(
        {"learning_rate": 2e-3, "credit": "uniform", "epochs": 1}, 0.8, {4: 0.8}, [str(past.path)], is_default=False
    )
    storage.close()
    run_trials(plan, script, trials=trials)
    storage = open_storage(plan)
    stopped = storage.begin_next()
    assert stopped is not None
    storage.report(stopped.number, {1: 0.25, 2: 0.125})
    storage.prune(stopped.number, "below the median")
    storage.begin_next()
    storage.close()
    return plan


def confirm(plan: StudyPlan, number: int, values: dict[str, float | int | str] | None, score: float | None) -> None:
    """Make the run that confirms a trial; it has not ended if it has no score."""
    (job,) = plan.confirmation(number, values, EvaluationSet(name="other", source="other.jsonl"), [7])
    run = begin_run(job.folder, job.settings or {})
    if score is not None:
        evaluate(run, 4, score)
        end_run(run, 4)


def test_the_trials_are_those_that_optuna_reads(tmp_path: Path) -> None:
    plan = made_study(tmp_path / "s")
    storage = open_storage(plan)
    theirs = storage.trials()
    result = read_result(plan, storage)
    storage.close()

    ours = stored_trials(plan.folder, list(plan.space))

    assert ours == theirs
    assert {trial.state for trial in ours} == {"finished", "pruned", "failed", "running"}
    assert any(trial.is_past for trial in ours) and any(trial.is_default for trial in ours)
    assert result_of(read_plan(plan.folder), ours, result.importance) == result


def test_the_plan_is_that_of_the_study(tmp_path: Path) -> None:
    search = 'credit=["uniform", {"name": "discounted", "gamma": 0.5}]'
    plan = study_plan(tmp_path / "s", *SEARCHES[::2], search, seeds=(0, 3), sampler_seed=5, prunes=False)
    plan.check_unchanged()

    read = read_plan(plan.folder)

    assert read.space == plan.space
    assert (read.name, read.measured, read.seeds, read.sampler_seed) == (plan.name, plan.measured, (0, 3), 5)
    assert (read.eval_every, read.prunes, read.steps) == (plan.eval_every, False, 4)
    assert read.settings(None) == plan.settings(None)


@pytest.mark.parametrize(
    "text", ["1e-4..1e-2:log", "1..3:int", "a,b", "1,2", "true,false", '["1", "2"]', '["a,b", "c"]']
)
def test_a_domain_is_written_as_it_is_read(text: str) -> None:
    space = read_space([f"key={text}"])
    assert read_space([f"key={space['key']}"]) == space


def test_a_study_that_is_written_to_is_read_without_a_lock_or_a_change(tmp_path: Path) -> None:
    plan = made_study(tmp_path / "s", trials=3)
    path = plan.folder / STORAGE_FILE
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(plan.folder.iterdir()))
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        assert len(stored_trials(plan.folder, list(plan.space))) == 6
        writer.execute("ROLLBACK")
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(plan.folder.iterdir())) == before


def test_a_write_that_was_cut_off_is_undone_in_the_copy(tmp_path: Path) -> None:
    """A process that was killed in a commit leaves a half-written file, and a journal with what was there before."""
    plan = made_study(tmp_path / "s", trials=3)
    whole = stored_trials(plan.folder, list(plan.space))
    torn = tmp_path / "torn"
    with closing(sqlite3.connect(plan.folder / STORAGE_FILE, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM trial_params")
        writer.execute("CREATE TABLE more AS SELECT randomblob(40000)")
        torn.mkdir()
        for name in (STORAGE_FILE, f"{STORAGE_FILE}-journal"):
            shutil.copy(plan.folder / name, torn / name)
        writer.execute("ROLLBACK")
    assert (torn / STORAGE_FILE).stat().st_size > (plan.folder / STORAGE_FILE).stat().st_size
    left = {path.name: path.read_bytes() for path in torn.iterdir()}

    assert stored_trials(torn, list(plan.space)) == whole
    assert {path.name: path.read_bytes() for path in torn.iterdir()} == left


def test_a_storage_that_is_none_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leyden.core.tuning.stored_trials.PAUSE", 0.0)
    assert stored_trials(tmp_path, ["a"]) == []
    (tmp_path / STORAGE_FILE).write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=r"study.db cannot be read: file is not a database"):
        stored_trials(tmp_path, ["a"])
    (tmp_path / "study.json").write_text('{"settings": {}}')
    with pytest.raises(RunError, match=r"study.json cannot be read: Object missing required field `search`"):
        read_plan(tmp_path)


def test_a_copied_folder_has_its_past_runs(tmp_path: Path) -> None:
    plan = made_study(tmp_path / "runs/s", trials=2)
    trial = next(trial for trial in stored_trials(plan.folder, list(plan.space)) if trial.is_past)
    shutil.copytree(tmp_path / "runs", tmp_path / "copy")
    shutil.rmtree(tmp_path / "runs")

    copy = read_plan(tmp_path / "copy/s")

    assert run_folders(copy, trial) == {0: tmp_path / "copy/old"}
    trials = stored_trials(copy.folder, list(copy.space))
    assert result_of(copy, trials, None).difference is not None


def test_a_confirmation_is_read_from_its_runs(tmp_path: Path) -> None:
    plan = made_study(tmp_path / "s", trials=4)
    result = result_of(plan, stored_trials(plan.folder, list(plan.space)), None)
    assert result.best is not None and result.default is not None
    assert stored_confirmation(plan, result) is None

    confirm(plan, result.best.number, dict(result.best.values), 0.8)
    confirm(plan, result.default.number, None, None)
    number, found = stored_confirmation(plan, result) or (None, None)
    assert number == result.best.number and found is not None
    assert (found.held_out.name, found.seeds, found.is_same_set) == ("other", (7,), False)
    assert (found.best, found.difference) == (pytest.approx(0.8), None)
    assert found.failures == (f"confirm-{result.default.number}-seed-7: it has not ended",)

    run = plan.folder / f"confirm-{result.default.number}-seed-7"
    shutil.rmtree(run)
    confirm(plan, result.default.number, None, 0.6)
    _, found = stored_confirmation(plan, result) or (None, None)
    assert found is not None and found.difference is not None
    assert (found.difference.mean, found.failures) == (pytest.approx(0.2), ())


def test_the_best_settings_are_current_or_not(tmp_path: Path) -> None:
    plan = made_study(tmp_path / "s", trials=2)
    best = result_of(plan, stored_trials(plan.folder, list(plan.space)), None).best
    assert best is not None and stored_best(plan, best) is None
    (plan.folder / "best.yaml").write_text(
        "env: ['API_KEY=sk-0123456789abcdefghijklmnop']\nalgorithm_config: {learning_rate: 0.009, credit: uniform}\n"
    )
    text, is_current = stored_best(plan, best) or ("", True)
    assert "0.009" in text and "0123456789" not in text and not is_current


def test_a_study_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    import fcntl

    assert not is_running(tmp_path)
    with (tmp_path / "study.lock").open("w") as handle:
        assert not is_running(tmp_path)
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert is_running(tmp_path)
    assert not is_running(tmp_path)
