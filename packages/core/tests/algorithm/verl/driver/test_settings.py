"""What a run says of VERL's configuration, and what it leaves to whoever gave one."""

from pathlib import Path
from typing import Any

import pytest

from leyden.core.algorithm.external_loop import LoopPlan
from leyden.core.algorithm.verl.driver.derived_settings import (
    TrainerFiles,
    batch_size,
    context_length,
    given_value,
    own_settings,
    planned_steps,
    trainer_mode,
    usual_settings,
    with_absolute_policy,
)
from leyden.core.errors import UsageError

PLAN = LoopPlan(
    policy="policy",
    steps=5,
    tasks_per_step=8,
    group_size=4,
    seed=3,
    temperature=0.7,
    eval_every=0,
    checkpoint_every=2,
    keep_checkpoints=2,
)
FILES = TrainerFiles(training=Path("train"), held_out=Path("held_out"), checkpoints=Path("kept"))


def test_the_runs_options_stand_where_verls_configuration_says_nothing() -> None:
    config = usual_settings({}, (), 5, PLAN)
    assert config["algorithm"] == {"adv_estimator": "grpo"}
    assert (config["data"]["train_batch_size"], config["actor_rollout_ref"]["rollout"]["n"]) == (8, 4)
    assert config["trainer"]["total_training_steps"] == 5
    assert (config["trainer"]["save_freq"], config["trainer"]["test_freq"]) == (2, 5)


def test_verls_configuration_counts_where_it_says_something() -> None:
    given = {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"rollout": {"n": 2}}, "trainer": {"nnodes": 2}}
    config = usual_settings(given, (), 5, PLAN)
    assert config["data"]["train_batch_size"] == config["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == 32
    assert config["actor_rollout_ref"]["rollout"]["n"] == 2
    assert config["trainer"]["nnodes"] == 2


def test_no_estimator_is_named_beside_leydens_own() -> None:
    assert "algorithm" not in usual_settings({"leyden": {"advantage": "rloo"}}, (), 5, PLAN)


@pytest.mark.parametrize(
    ("config", "overrides", "steps"),
    [
        ({}, (), 5),
        ({"trainer": {"total_epochs": 2}}, (), 8),
        ({"trainer": {"total_epochs": 2}, "data": {"train_batch_size": 4}}, (), 16),
        ({"trainer": {"total_epochs": 2, "total_training_steps": 9}}, (), 9),
        ({"trainer": {"total_training_steps": 9}}, ("trainer.total_training_steps=11",), 11),
    ],
)
def test_steps_are_those_that_verl_will_take(config: dict[str, Any], overrides: tuple[str, ...], steps: int) -> None:
    assert planned_steps(config, overrides, 32, PLAN) == steps


def test_an_override_counts_more_than_the_dictionary() -> None:
    config = {"data": {"train_batch_size": 4}}
    assert given_value(config, ("+data.train_batch_size=6",), "data.train_batch_size") == "6"
    assert batch_size(config, ("data.train_batch_size=6",), PLAN) == 6


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({}, 1023),
        ({"data": {"max_prompt_length": 4096, "max_response_length": 2048}}, 6143),
        ({"actor_rollout_ref": {"rollout": {"max_model_len": 300}}}, 299),
    ],
)
def test_a_call_may_have_one_token_less_than_is_served(config: dict[str, Any], length: int) -> None:
    assert context_length(config, ()) == length


@pytest.mark.parametrize(("step", "held_out", "before"), [(0, True, True), (2, True, False), (0, False, False)])
def test_a_run_is_measured_before_its_first_step_alone(*, step: int, held_out: bool, before: bool) -> None:
    files = FILES if held_out else TrainerFiles(training=FILES.training, held_out=None, checkpoints=FILES.checkpoints)
    config = usual_settings({}, (), 5, PLAN)
    own = own_settings(config, PLAN, files, step)["trainer"]
    assert own["val_before_train"] is before
    assert own["test_freq"] == (5 if held_out else -1)
    assert not config["trainer"].keys() & {"val_before_train", "test_freq", "logger"}


@pytest.mark.parametrize(
    ("config", "overrides", "mode", "mini_batch"),
    [
        ({}, (), "sync", 8),
        ({"trainer": {"v1": {"trainer_mode": "colocate_async"}}}, (), "colocate_async", 8),
        (
            {"trainer": {"v1": {"trainer_mode": "sync"}}},
            ("trainer.v1.trainer_mode=separate_async",),
            "separate_async",
            2,
        ),
        (
            {"trainer": {"v1": {"trainer_mode": "separate_async", "separate_async": {"parameter_sync_step": 2}}}},
            (),
            "separate_async",
            4,
        ),
    ],
)
def test_a_step_has_as_many_mini_batches_as_its_trainer_makes_updates(
    config: dict[str, Any], overrides: tuple[str, ...], mode: str, mini_batch: int
) -> None:
    assert trainer_mode(config, overrides) == mode
    assert usual_settings(config, overrides, 5, PLAN)["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] == mini_batch


def test_a_trainer_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"trainer\.v1\.trainer_mode: 'async' is none of sync, colocate_async, separate_async"
    ):
        trainer_mode({}, ("trainer.v1.trainer_mode=async",))


def test_loggers_that_were_given_stay() -> None:
    config = usual_settings({"trainer": {"logger": ["console", "wandb"]}}, (), 5, PLAN)
    assert own_settings(config, PLAN, FILES, 0)["trainer"]["logger"] == ["console", "wandb", "file"]


def test_processes_elsewhere_find_a_policy_by_its_absolute_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "actor_rollout_ref.model.path"
    given: dict[str, Any] = {"actor_rollout_ref": {"model": {"path": "policy"}, "rollout": {"n": 2}}}
    config = dict(given)
    assert with_absolute_policy(config, (), PLAN) is PLAN  # there is no such folder: it is a name on the hub
    (tmp_path / "policy").mkdir()
    assert with_absolute_policy(config, (f"{path}=policy",), PLAN) is PLAN
    assert config == given

    absolute = str(tmp_path / "policy")
    assert with_absolute_policy(config, (), PLAN).policy == given_value(config, (), path) == absolute
    assert config["actor_rollout_ref"]["rollout"] == {"n": 2}
    assert given["actor_rollout_ref"]["model"]["path"] == "policy"
    other: dict[str, Any] = {"trainer": {"nnodes": 2}}
    assert with_absolute_policy(other, (), PLAN).policy == absolute
    assert other == {"trainer": {"nnodes": 2}}
