"""Storage of a study: what a killed command leaves, what is proposed, and what importance is of."""

import random
from pathlib import Path

import pytest
from scripted_studies import open_storage, study_plan

from leyden.core.errors import UsageError
from leyden.core.tuning import optuna_library as module
from leyden.core.tuning.importance import ENOUGH_FOR_IMPORTANCE, importance_of
from leyden.core.tuning.plan import StudyPlan
from leyden.core.tuning.storage import StudyStorage

pytestmark = pytest.mark.integration  # dozens of commits to a database each


@pytest.fixture
def plan(tmp_path: Path) -> StudyPlan:
    return study_plan(tmp_path / "s", "learning_rate=1e-4..1e-2:log", "credit=uniform,discounted")


def test_a_trial_has_its_values_as_soon_as_it_was_chosen(plan: StudyPlan) -> None:
    """A command that is killed between the choice and its start leaves a trial that waits, with its values."""
    storage = open_storage(plan)
    values = {"learning_rate": 0.002, "credit": "discounted"}
    storage._study.enqueue_trial(values)  # pyright: ignore[reportPrivateUsage]
    storage.close()
    storage = open_storage(plan)
    (trial,) = storage.trials()
    assert (trial.state, trial.values, trial.is_default) == ("running", values, False)
    storage.close()


def test_proposals_depend_on_the_seed_and_on_what_is_stored_alone(tmp_path: Path) -> None:
    def proposals(folder: str, seed: int, *, reopens: bool) -> list[float | int | str]:
        plan = study_plan(tmp_path / folder, sampler_seed=seed)
        found: list[float | int | str] = []
        storage = open_storage(plan)
        for number in range(8):
            trial = storage.begin_next()
            assert trial is not None
            found += trial.values.values()
            storage.finish(number, number / 10)
            if reopens:
                storage.close()
                storage = open_storage(plan)
        storage.close()
        return found

    first = proposals("a", 0, reopens=False)
    assert proposals("b", 0, reopens=True) == first
    assert proposals("c", 1, reopens=False) != first


def test_the_sampler_moves_towards_what_was_good(tmp_path: Path) -> None:
    storage = open_storage(study_plan(tmp_path / "s", "learning_rate=0..1"))
    for number in range(30):
        trial = storage.begin_next()
        assert trial is not None
        storage.finish(number, 1 - abs(float(trial.values["learning_rate"]) - 0.8))
    late = [float(trial.values["learning_rate"]) for trial in storage.trials()[15:]]
    storage.close()
    assert sum(abs(value - 0.8) < 0.2 for value in late) > 10


def test_past_runs_are_added_once(plan: StudyPlan) -> None:
    storage = open_storage(plan)
    values = {"learning_rate": 0.002, "credit": "uniform"}
    for _ in range(2):
        storage.add_past(values, 0.5, {2: 0.25}, ["runs/a"], is_default=False)
    (trial,) = storage.trials()
    storage.close()
    assert (trial.state, trial.score, trial.runs, trial.is_past) == ("finished", 0.5, ("runs/a",), True)
    assert dict(trial.reported) == {2: 0.25}


def fill(storage: StudyStorage, count: int) -> None:
    """Add past trials with values drawn at random, whose scores differ by their credit scheme, and little besides."""
    chance = random.Random(0)
    for number in range(count):
        values = {"learning_rate": 10 ** chance.uniform(-4, -2), "credit": chance.choice(["uniform", "discounted"])}
        score = float(values["credit"] == "discounted") + 0.01 * chance.random()
        storage.add_past(values, score, {}, [f"runs/{number}"], is_default=False)


def test_importance_needs_enough_trials_and_finds_the_key_that_decides(plan: StudyPlan) -> None:
    storage = open_storage(plan)
    fill(storage, ENOUGH_FOR_IMPORTANCE - 1)
    assert importance_of(storage.trials(), plan.space) is None
    storage.close()
    more = study_plan(plan.folder.parent / "more", "learning_rate=1e-4..1e-2:log", "credit=uniform,discounted")
    storage = open_storage(more)
    fill(storage, 24)
    found = importance_of(storage.trials(), more.space)
    storage.close()
    assert found is not None
    assert sum(found.values()) == pytest.approx(1)
    assert found["credit"] > found["learning_rate"]


def test_equal_scores_say_nothing_of_importance(plan: StudyPlan) -> None:
    storage = open_storage(plan)
    for number in range(ENOUGH_FOR_IMPORTANCE):
        storage.begin_next()
        storage.finish(number, 0.5)
    assert importance_of(storage.trials(), plan.space) is None
    storage.close()


def test_without_optuna_one_line_says_what_to_install(plan: StudyPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> None:
        assert name == "optuna"

    monkeypatch.setattr(module, "find_spec", find_spec)
    with pytest.raises(UsageError, match=r"not installed: pip install 'leyden-core\[tune\]'"):
        open_storage(plan)
