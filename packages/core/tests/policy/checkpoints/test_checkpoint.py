import dataclasses
import random
import shutil
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import safetensors.torch
import torch
from msgspec.structs import replace

from leyden.core.errors import PolicyError, RunError, TrainingError
from leyden.core.policy.checkpoints.checkpoint import PendingCheckpoint, load_checkpoint, load_trained, save_checkpoint
from leyden.core.policy.checkpoints.retention import latest_checkpoint, mark_checkpoint
from leyden.core.policy.checkpoints.state import TENSORS, TRAINING, read_training
from leyden.core.policy.critic.options import OwnBackbone
from leyden.core.policy.critic.value_loss import ValueTarget
from leyden.core.policy.critic.value_update import ActorCritic
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.updater import Updater
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


class NotingLock:
    """A lock that says when it is wanted."""

    def __init__(self) -> None:
        self._lock, self.wanted = threading.Lock(), threading.Event()

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize(
    "critic",
    [None, OwnBackbone(learning_rate=1e-3), OwnBackbone(learning_rate=1e-3, warmup_steps=9)],
    ids=["policy", "with critic", "critic alone"],
)
def test_a_checkpoint_is_of_the_moment_it_was_begun_and_training_goes_on_meanwhile(
    tmp_path: Path, critic: OwnBackbone | None
) -> None:
    def made() -> Updater:
        return updater() if critic is None else ActorCritic(tiny_policy(), CONFIG, critic)

    def learn(trainer: Updater, step: int) -> None:
        trained = synthetic_rollouts(5, 64, seed=step)
        if isinstance(trainer, ActorCritic):
            targets = [ValueTarget(dataclasses.replace(item.transition, value=0.0), 1.0) for item in trained]
            trainer.learn(trained, targets)
        else:
            trainer.step(trained)

    trainer, straight, restored = made(), made(), made()
    lock = NotingLock()
    trainer.changing = cast(Any, lock)
    learn(trainer, 0)
    lock.wanted.clear()
    pending = PendingCheckpoint(tmp_path, 1, trainer, {"step": 1})
    learning = threading.Thread(target=learn, args=(trainer, 1))
    learning.start()
    assert lock.wanted.wait(60), "an optimizer step does not wait for the checkpoint"
    path = pending.write()
    learning.join()

    load_checkpoint(path, restored)
    learn(straight, 0)
    assert same(whole(restored), whole(straight))
    alone = threading.Thread(target=learn, args=(straight, 1))  # a new thread may compute with fewer threads of torch
    alone.start()
    alone.join()
    assert same(whole(trainer), whole(straight))


def whole(trainer: Updater) -> list[torch.Tensor]:
    """Everything of it, its critic and the critic's optimizer included."""
    if not isinstance(trainer, ActorCritic):
        return everything(trainer)
    moments: dict[int, dict[str, torch.Tensor]] = trainer.critic_optimizer.state_dict()["state"]
    return [
        *everything(trainer),
        *trainer.critic.weights().values(),
        *(m for s in moments.values() for m in s.values()),
    ]


def test_a_checkpoint_that_cannot_be_written_says_so_and_training_can_go_on(tmp_path: Path) -> None:
    trainer = updater()
    (tmp_path / "taken").touch()
    with pytest.raises(TrainingError, match="taken/step-00000001 could not be written: "):
        save_checkpoint(tmp_path / "taken", 1, trainer, {})
    train(trainer, range(1))
    assert save_checkpoint(tmp_path, 1, trainer, {}) == latest_checkpoint(tmp_path)


def test_progress_that_is_not_json_leaves_nothing_held(tmp_path: Path) -> None:
    trainer = updater()
    with pytest.raises(TypeError, match="not JSON serializable"):
        PendingCheckpoint(tmp_path, 1, trainer, {"step": object()})
    train(trainer, range(1))


def test_a_checkpoint_with_all_of_the_training_state_in_one_file_can_still_be_read(tmp_path: Path) -> None:
    """As they were written before the tensors were apart."""
    trainer, other = updater(), updater(seed=9)
    train(trainer, range(2))
    path = save_checkpoint(tmp_path, 2, trainer, {})
    state = read_training(path)
    (path / TENSORS).unlink()
    torch.save(state, path / TRAINING)
    load_checkpoint(path, other)
    assert same(everything(other), everything(trainer))


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    trainer = updater()
    path = save_checkpoint(tmp_path, 1, trainer, {})

    with pytest.raises(PolicyError, match="names or shapes differ"):
        load_checkpoint(path, updater(shape=TinyShape(hidden=16)))
    for name in (TENSORS, TRAINING):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RunError, match="step-00000001 cannot be read"):
            load_checkpoint(path, trainer)
        (path / name).write_bytes(whole)
    (path / TENSORS).unlink()
    with pytest.raises(RunError, match="step-00000001 cannot be read"):
        load_checkpoint(path, trainer)


def test_nothing_in_a_checkpoint_needs_pickled_objects(tmp_path: Path) -> None:
    trainer = updater()
    train(trainer, range(1))
    path = save_checkpoint(tmp_path, 1, trainer, {})

    assert torch.load(path / TRAINING, weights_only=True).keys() == read_training(path).keys()
    assert set(read_training(path)) == {"optimizer", "steps_taken", "minibatches", "torch", "python", "numpy"}


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
