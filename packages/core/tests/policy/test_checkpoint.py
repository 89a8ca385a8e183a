import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace

from leyden.core.errors import PolicyError, RunError
from leyden.core.policy import checkpoint
from leyden.core.policy.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    load_trained,
    mark_checkpoint,
    save_checkpoint,
)
from leyden.core.policy.config import UpdateConfig
from leyden.core.policy.update import Updater
from leyden.core.testing.policies import TinyShape, synthetic_rollouts, tiny_policy

# Two epochs of two random minibatches, so that resuming needs the state of the optimizer and of the shuffle.
CONFIG = UpdateConfig(learning_rate=1e-3, weight_decay=0.01, epochs=2, minibatches=2, seed=5)


def updater(seed: int = 0, shape: TinyShape | None = None) -> Updater:
    return Updater(tiny_policy(seed, shape), CONFIG)


def train(trainer: Updater, steps: range) -> None:
    for step in steps:
        trainer.step(synthetic_rollouts(5, 64, seed=step))


def everything(trainer: Updater) -> list[torch.Tensor]:
    state: dict[int, dict[str, torch.Tensor]] = trainer.optimizer.state_dict()["state"]
    moments = [value for _, values in sorted(state.items()) for _, value in sorted(values.items())]
    return [*trainer.model.weights().values(), *moments, trainer.generator.get_state()]


def weights(trainer: Updater) -> list[torch.Tensor]:
    return list(trainer.model.weights().values())


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


def test_four_steps_equal_two_a_checkpoint_and_two_bit_for_bit(tmp_path: Path) -> None:
    straight, first, second = updater(), updater(), updater(seed=9)
    train(straight, range(4))

    train(first, range(2))
    path = save_checkpoint(tmp_path, 2, first, {"step": 2})
    assert load_checkpoint(path, second) == {"step": 2}
    train(second, range(2, 4))

    expected, found = everything(straight), everything(second)
    assert len(expected) == len(found) > 20
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert not torch.equal(first.generator.get_state(), second.generator.get_state())


def test_the_schedule_and_the_reference_go_on_where_they_were(tmp_path: Path) -> None:
    config = replace(CONFIG, schedule="cosine", warmup_steps=1, steps=4, kl_loss=0.1, correction="truncated")
    straight, first, second = (Updater(tiny_policy(), config) for _ in range(3))
    train(straight, range(4))
    train(first, range(2))
    load_checkpoint(save_checkpoint(tmp_path, 2, first, {}), second)
    train(second, range(2, 4))

    assert second.steps_taken == 4
    assert all(torch.equal(a, b) for a, b in zip(everything(straight), everything(second), strict=True))


def test_the_weights_of_a_checkpoint_go_into_the_policy_it_began_with(tmp_path: Path) -> None:
    trainer, other = updater(), tiny_policy()
    train(trainer, range(1))
    path = save_checkpoint(tmp_path, 1, trainer, {})

    load_trained(path, other)

    expected = trainer.model.weights()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.weights().items())
    with pytest.raises(RunError, match="step-00000002 cannot be read"):
        load_trained(tmp_path / "step-00000002", other)


def test_the_random_states_of_the_process_are_put_back(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), torch.rand(1).item()

    trainer = updater()
    path = save_checkpoint(tmp_path, 1, trainer, {})
    expected = draw()
    assert draw() != expected

    load_checkpoint(path, trainer)

    assert draw() == expected


def test_progress_is_the_callers_own(tmp_path: Path) -> None:
    progress: dict[str, Any] = {"step": 3, "report": {"rewards": [0.5, None]}, "name": "später"}
    trainer = updater()

    assert load_checkpoint(save_checkpoint(tmp_path, 3, trainer, progress), trainer) == progress


def test_the_latest_is_kept_and_older_ones_make_way_unless_marked(tmp_path: Path) -> None:
    trainer = updater()
    for step in (1, 2, 3, 10):
        path = save_checkpoint(tmp_path, step, trainer, {"step": step}, keep=2, mark=step == 1)
        if step == 2:
            mark_checkpoint(path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}" for step in (1, 2, 3, 10)]
    save_checkpoint(tmp_path, 11, trainer, {"step": 11}, keep=1)
    latest = latest_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}" for step in (1, 2, 11)]
    assert latest is not None
    assert load_checkpoint(latest, trainer) == {"step": 11}


def test_a_step_saved_again_is_a_new_checkpoint_and_the_one_picked(tmp_path: Path) -> None:
    trainer = updater()
    for time in range(3):
        save_checkpoint(tmp_path, 4, trainer, {"time": time}, keep=2)

    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert load_checkpoint(latest, trainer) == {"time": 2}
    assert len(list(tmp_path.iterdir())) == 2


def test_there_may_be_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "missing") is None


@pytest.mark.parametrize("killed_at", ["model", "training", "rename"])
def test_one_cut_short_is_never_picked_and_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    trainer = updater()
    good = save_checkpoint(tmp_path, 1, trainer, {"step": 1})

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def leave(*_: Any, **__: Any) -> None:
        """A kill -9 cleans nothing up."""

    with monkeypatch.context() as patch:
        if killed_at == "model":
            patch.setattr(safetensors.torch, "save_file", die)
        elif killed_at == "training":
            patch.setattr(torch, "save", die)
        else:
            patch.setattr(Path, "rename", die)
        patch.setattr(shutil, "rmtree", leave)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 2, trainer, {"step": 2})

    assert len(list(tmp_path.iterdir())) == 2
    assert latest_checkpoint(tmp_path) == good
    save_checkpoint(tmp_path, 2, trainer, {"step": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    trainer = updater()
    path = save_checkpoint(tmp_path, 1, trainer, {})

    with pytest.raises(PolicyError, match="names or shapes differ"):
        load_checkpoint(path, updater(shape=TinyShape(hidden=16)))
    (path / checkpoint.TRAINING).write_bytes(b"half")
    with pytest.raises(RunError, match="step-00000001 cannot be read"):
        load_checkpoint(path, trainer)


def test_nothing_in_a_checkpoint_needs_pickled_objects(tmp_path: Path) -> None:
    trainer = updater()
    train(trainer, range(1))
    path = save_checkpoint(tmp_path, 1, trainer, {})

    state = torch.load(path / checkpoint.TRAINING, weights_only=True)

    assert set(state) == {"optimizer", "steps_taken", "minibatches", "torch", "python", "numpy"}


def test_several_policies_are_kept_together_and_each_goes_on_as_if_undisturbed(tmp_path: Path) -> None:
    names = ("planner", "reporter")
    whole, first, second = ({name: updater() for name in names} for _ in range(3))
    batches = {name: synthetic_rollouts(4, 64, seed=at) for at, name in enumerate(names)}
    for name in names:
        for trainer in (whole[name], whole[name], first[name]):
            trainer.step(batches[name])
    path = save_checkpoint(tmp_path, 1, first, {"step": 1})
    assert sorted(entry.name for entry in path.iterdir()) == ["planner", "progress.json", "reporter"]
    assert load_checkpoint(path, second) == {"step": 1}
    for name in names:
        second[name].step(batches[name])
        assert same(everything(second[name]), everything(whole[name]))
    assert not same(weights(whole["planner"]), weights(whole["reporter"]))
    load_trained(path / "reporter", first["planner"].model)
    assert same(weights(first["planner"]), weights(first["reporter"]))


def test_a_kill_between_two_policies_leaves_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = {"planner": updater(), "reporter": updater()}
    good = save_checkpoint(tmp_path, 1, trained, {"step": 1})
    saved: list[Path] = []
    save = torch.save

    def fails_the_second_time(state: Any, path: Path) -> None:
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt
        save(state, path)

    monkeypatch.setattr(torch, "save", fails_the_second_time)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, trained, {"step": 2})
    assert [path.parent.name for path in saved] == ["planner", "reporter"]
    assert latest_checkpoint(tmp_path) == good
