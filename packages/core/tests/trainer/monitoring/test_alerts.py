"""Every alert on a history that must raise it and on histories that must not, real ones among them."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from leyden.core.trainer.monitoring.alerts import CHECKS, AlertDetector, active

Lines = list[dict[str, Any]]
Step = Callable[[int], float]
SOUND: dict[str, Any] = {
    "reward": 0.5,
    "reward_std": 0.5,
    "entropy": 0.4,
    "response_tokens_mean": 20.0,
    "served_trained_gap": 8e-6,
    "importance_ratio_deviation": 5e-6,
    "groups": 16,
    "groups_with_spread": 12,
    "grad_norm": 0.2,
    "optimizer_steps": 1,
    "optimizer_steps_masked": 0,
}
STEPS = 12


def history(**changes: Any) -> Lines:
    """Sound steps; of each change, a function of the step number, counted from 0, or what holds in the last 4."""
    return [
        {"step": step + 1, **SOUND}
        | {
            key: value(step) if callable(value) else value
            for key, value in changes.items()
            if callable(value) or step >= STEPS - 4
        }
        for step in range(STEPS)
    ]


def always(value: float) -> Step:
    return lambda _: value


def from_to(begin: float, end: float) -> Step:
    return lambda step: begin + (end - begin) * step / (STEPS - 1)


def three_in_turn(*values: float) -> Step:
    return lambda step: values[step % 3]


RUINED: dict[str, Lines] = {
    "entropy_collapse": history(entropy=0.02),
    "reward_collapse": history(reward=0.0, reward_std=always(0.3)),
    "length_blow_up": history(response_tokens_mean=70.0),
    "served_gap": history(served_trained_gap=6e-5),
    "mismatch": history(importance_ratio_deviation=0.3),
    "groups_without_spread": history(groups_with_spread=always(2)),
    "gradient_explosion": history(grad_norm=5.0),
    "all_masked": history(optimizer_steps=0, optimizer_steps_masked=4),
    "constant_critic": history(value_explained_variance=always(-0.01)),
}
SOUND_ALL_THE_SAME: dict[str, Lines] = {
    "as it began": history(),
    "learned: little entropy and spread are left, and rewards agree": history(
        entropy=0.02, reward=from_to(0.4, 1.0), reward_std=0.1, groups_with_spread=1
    ),
    "entropy falls to a quarter while it learns": history(entropy=from_to(0.4, 0.1)),
    "longer answers earn more": history(response_tokens_mean=70.0, reward=0.9),
    "answers twice as long": history(response_tokens_mean=40.0),
    "one odd step": [*history()[:-1], {"step": 12, **SOUND, "grad_norm": 99.0, "entropy": 0.0, "reward": 0.1}],
    "rounding moves tenfold": history(importance_ratio_deviation=three_in_turn(1e-4, 1e-5, 1e-6)),
    "stale from the beginning": history(importance_ratio_deviation=three_in_turn(0.5, 0.6, 0.7)),
    "a few norms five times as large": history(grad_norm=1.0),
    "some tokens masked": history(optimizer_steps=3, optimizer_steps_masked=1),
    "too short to tell": RUINED["entropy_collapse"][-7:],
    "numbers that are not logged": [{"step": step} for step in range(STEPS)],
    "nothing yet": [],
    "null where a number could not be written": history(entropy=None, reward=None),
}


def test_every_alert_has_a_history_that_raises_it() -> None:
    assert RUINED.keys() == CHECKS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_what_ruins_a_run_raises_its_own_alert_alone(name: str) -> None:
    (raised,) = active(RUINED[name]).items()
    assert raised[0] == name


@pytest.mark.parametrize("what", SOUND_ALL_THE_SAME)
def test_what_does_not_raises_nothing(what: str) -> None:
    assert active(SOUND_ALL_THE_SAME[what]) == {}


@pytest.mark.parametrize(
    ("threshold", "sound", "ruined"),
    [
        ("entropy", 0.041, 0.039),
        ("response_tokens_mean", 59.0, 61.0),
        ("served_trained_gap", 3.9e-5, 4.1e-5),
        ("importance_ratio_deviation", 0.0099, 0.0101),
        ("grad_norm", 1.99, 2.01),
        ("groups_with_spread", always(4), always(3)),
        ("value_explained_variance", always(0.021), always(0.019)),
    ],
)
def test_thresholds_are_where_they_are_documented(threshold: str, sound: Any, ruined: Any) -> None:
    assert active(history(**{threshold: sound})) == {}
    assert active(history(**{threshold: ruined})) != {}


@pytest.mark.parametrize(("groups", "least"), [(4, 1.5), (16, 0.75), (64, 0.5), (400, 0.5)])
def test_a_fall_of_the_reward_counts_from_what_its_noise_allows(groups: int, least: float) -> None:
    def fallen(by: float) -> Lines:
        lines = history(groups=always(groups), groups_with_spread=always(groups), reward_std=always(1.0))
        return [line | {"reward": 0.0 if line["step"] <= STEPS - 5 else -by} for line in lines]

    assert "reward_collapse" not in active(fallen(least * 0.99))
    assert "reward_collapse" in active(fallen(least * 1.01))


@pytest.mark.parametrize("groups", [4, 16])
def test_chance_alone_hardly_ever_raises_a_collapse_of_the_reward(groups: int) -> None:
    """The worst case: a group's rollouts all earn the same, 0 or 1."""
    chance = random.Random(groups)
    detector, raised = AlertDetector(), list[str]()
    for step in range(400):
        reward = sum(chance.random() < 0.5 for _ in range(groups)) / groups
        raised += detector.add({"step": step, "reward": reward, "reward_std": 0.5, "groups": groups})
    assert raised == []


def test_an_alert_is_told_when_it_begins_and_again_only_after_it_ended() -> None:
    detector = AlertDetector()
    raised = [list(detector.add(line)) for line in history() + RUINED["entropy_collapse"][-4:] + history()[:4]]
    assert [number for number, names in enumerate(raised) if names] == [STEPS + 1]
    assert detector.active == frozenset()
    for line in RUINED["entropy_collapse"][-4:]:
        raised.append(list(detector.add(line)))
    assert sum(map(len, raised)) == 2


def test_a_later_sitting_does_not_tell_again_what_is_on() -> None:
    lines = RUINED["entropy_collapse"]
    detector = AlertDetector(lines[:-1])
    assert detector.active == {"entropy_collapse"}
    assert detector.add(lines[-1]) == {}


def test_what_is_wrong_with_one_of_several_policies_is_told_under_its_name() -> None:
    lines = history()
    for step, line in enumerate(lines):
        line |= {"planner/entropy": 0.4, "reporter/entropy": 0.4 if step < STEPS - 4 else 0.01}
        del line["entropy"]
    assert active(lines) == {}
    ((name, message),) = active(lines, ("planner", "reporter")).items()
    assert name == "reporter/entropy_collapse"
    assert message.startswith("reporter: entropy is 0.01 nats")
    lines = history(reward=0.0)
    assert list(active(lines, ("planner", "reporter"))) == ["reward_collapse"], "what all share is told once"


def test_who_learns_from_what_another_drew_drifts_from_it_by_design() -> None:
    lines = history()
    for step, line in enumerate(lines):
        line |= {f"{name}/importance_ratio_deviation": 5e-6 if step < STEPS - 4 else 0.5 for name in ("acts", "learns")}
    policies = ("acts", "learns")
    assert list(active(lines, policies)) == ["acts/mismatch", "learns/mismatch"]
    assert list(active(lines, policies, ("learns",))) == ["acts/mismatch"]
