"""A small game in which the policy decides when to stop, with the exact bias of credit and advantages on it.

All rollouts and all groups of them are enumerated, without sampling. A credit scheme or an estimator, also of a
plug-in, is therefore shown to be unbiased or biased up to rounding.

The game has up to three turns. At each turn the policy may answer, plainly or boldly, which ends the game. At the first
two turns it may instead call a tool, which works or fails by chance. The reward of an answer depends on the turn and on
whether the last tool call worked. Odd turns belong to the planner, even turns to the worker.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leyden.core.advantage.base import AdvantageEstimator
from leyden.core.algorithm.advantage_pipeline import weigh
from leyden.core.algorithm.critic_targets import Critic, valued
from leyden.core.credit.base import Credit, CreditAssigner
from leyden.core.data.transition import Outcome, Trajectory, TrajectoryGroup, Transition
from leyden.core.testing.factories import trajectory, transition

Floats: TypeAlias = NDArray[np.float64]
PLAIN, BOLD, TOOL = range(3)
START, SECOND_OK, SECOND_FAILED, THIRD_OK, THIRD_FAILED = range(5)
STATES = 5
AGENTS = ("planner", "worker", "worker", "planner", "planner")
"""The agent that acts in each state."""
ANSWERS = ((0.2, 0.5), (0.6, 1.0), (0.3, 0.0), (0.9, 1.2), (0.4, -0.3))
"""Rewards of the two answers in each state."""
TOOL_WORKS = (0.7, 0.4, 0.6)
"""Probability that the tool works when it is called in each of the first three states."""
NEXT = ((SECOND_FAILED, SECOND_OK), (THIRD_FAILED, THIRD_OK), (THIRD_FAILED, THIRD_OK))
LOGITS = np.array(
    [[0.3, -0.4, 0.6], [-0.2, 0.5, 0.4], [0.7, 0.1, 0.2], [-0.3, 0.2, -np.inf], [0.1, 0.4, -np.inf]], dtype=np.float64
)
"""The policy's logits: a softmax over three actions in each state; the third turn has no tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Difference between an expected gradient and the true one."""

    relative: float
    """Length of the difference, divided by the true gradient's length."""
    degrees: float
    """Angle between the two, which no learning rate can correct."""
    scale: float
    """Component along the true gradient, divided by its length."""


def policy(logits: NDArray[Any] = LOGITS) -> NDArray[Any]:
    """Return `pi_SA`, the probability of each action in each state, of shape (states, actions)."""
    weight = np.exp(logits)
    return weight / weight.sum(axis=1, keepdims=True)


def rollouts() -> list[tuple[Trajectory, float]]:
    """Return every possible rollout with its probability; its reward is that of its answer."""
    return list(_rollouts(START, (), 1.0))


def expected_reward(logits: NDArray[Any] = LOGITS, worked: float = 0.0, failed: float = 0.0) -> Any:
    """Return the policy's expected reward, computed by recursion without rollouts.

    `worked` and `failed` are additional rewards of a tool call that worked or failed.
    """
    return expected_rewards(logits, worked, failed)[START]


def expected_rewards(logits: NDArray[Any] = LOGITS, worked: float = 0.0, failed: float = 0.0) -> NDArray[Any]:
    """Return the expected reward from each state on, of shape (states,), which a critic would learn."""
    pi_SA = policy(logits)
    values = np.zeros(STATES, dtype=pi_SA.dtype)
    for state in reversed(range(STATES)):
        values[state] = sum(pi_SA[state, action] * ANSWERS[state][action] for action in (PLAIN, BOLD))
        if state < len(NEXT):
            chance, (after_failure, after_success) = TOOL_WORKS[state], NEXT[state]
            works, fails = worked + values[after_success], failed + values[after_failure]
            values[state] += pi_SA[state, TOOL] * (chance * works + (1 - chance) * fails)
    return values


def true_gradient(worked: float = 0.0, failed: float = 0.0) -> Floats:
    """Return `gradient_SA`, the gradient of the expected reward by the logits, of shape (states, actions).

    It is computed by complex steps, exact up to rounding.
    """
    step = 1e-30
    gradient = np.zeros_like(LOGITS)
    for state, action in np.argwhere(np.isfinite(LOGITS)):
        moved = LOGITS.astype(np.complex128)
        moved[state, action] += 1j * step
        gradient[state, action] = expected_reward(moved, worked, failed).imag / step
    return gradient


def expected_gradient(
    credit: CreditAssigner,
    advantage: AdvantageEstimator,
    group_size: int,
    groups: int = 1,
    critic: Critic | None = None,
) -> Floats:
    """Return `gradient_SA` of shape (states, actions): the estimate from a batch of groups, averaged over all batches.

    The estimate of one batch of B rollouts is 1/B Σ_b Σ_n A_(b,n) ∇log π(a_n | s_n). Groups and batches are enumerated
    without regard to order, so the estimator must not depend on the order.
    """
    every = rollouts() if critic is None else _valued(rollouts(), critic)
    remembered = _Remembered(credit)
    possible = [
        (
            TrajectoryGroup(task_id="game", trajectories=tuple(every[number][0] for number in chosen)),
            math.prod(every[number][1] for number in chosen) * _orders(chosen),
        )
        for chosen in itertools.combinations_with_replacement(range(len(every)), group_size)
    ]
    scores = {id(call): score(call) for trajectory, _ in every for call in trajectory.transitions}
    total = np.zeros_like(LOGITS)
    for batch in itertools.combinations_with_replacement(range(len(possible)), groups):
        probability = math.prod(possible[number][1] for number in batch) * _orders(batch)
        batch_with_advantages = weigh([possible[number][0] for number in batch], remembered, advantage)
        for item in batch_with_advantages.transitions:
            total += probability / (groups * group_size) * item.advantage * scores[id(item.transition)]
    return total


def score(transition: Transition) -> Floats:
    """Return ∇log π of a transition, as `gradient_SA` of shape (states, actions)."""
    state, action = transition.prompt_ids[0], transition.response_ids[0]
    gradient = np.zeros_like(LOGITS)
    gradient[state] = -policy()[state]
    gradient[state, action] += 1.0
    return gradient


def bias(estimate: Floats, truth: Floats) -> Bias:
    """Return the difference between an expected gradient and the true one."""
    length = float(np.linalg.norm(truth))
    projection = float((estimate * truth).sum()) / length
    across = float(np.linalg.norm(estimate - truth * (projection / length)))
    return Bias(
        relative=float(np.linalg.norm(estimate - truth)) / length,
        degrees=math.degrees(math.atan2(across, projection)),
        scale=projection / length,
    )


def critic_of(values_S: Sequence[float] | Floats) -> Critic:
    """Return a critic whose values of the states are `values_S`."""
    return lambda transitions: np.array([values_S[call.prompt_ids[0]] for call in transitions], dtype=np.float64)


def _valued(every: Sequence[tuple[Trajectory, float]], critic: Critic) -> list[tuple[Trajectory, float]]:
    whole = TrajectoryGroup(task_id="game", trajectories=tuple(trajectory for trajectory, _ in every))
    (group,) = valued([whole], critic)
    return [(t, probability) for t, (_, probability) in zip(group.trajectories, every, strict=True)]


class _Remembered(CreditAssigner):
    """Caches a credit scheme's result for each rollout."""

    def __init__(self, scheme: CreditAssigner) -> None:
        self._scheme = scheme
        self._known: dict[int, Credit | None] = {}

    def assign(self, trajectory: Trajectory) -> Credit | None:
        if id(trajectory) not in self._known:
            self._known[id(trajectory)] = self._scheme.assign(trajectory)
        return self._known[id(trajectory)]


def _orders(chosen: Sequence[int]) -> int:
    return math.factorial(len(chosen)) // math.prod(math.factorial(n) for n in Counter(chosen).values())


def _rollouts(state: int, before: tuple[Transition, ...], probability: float) -> "Sequence[tuple[Trajectory, float]]":
    pi_A = policy()[state]
    found = [
        (_trajectory((*before, _call(state, action)), ANSWERS[state][action]), probability * float(pi_A[action]))
        for action in (PLAIN, BOLD)
    ]
    if state < len(NEXT):
        for worked, chance in ((True, TOOL_WORKS[state]), (False, 1 - TOOL_WORKS[state])):
            calls = (*before, _call(state, TOOL, worked))
            found.extend(_rollouts(NEXT[state][worked], calls, probability * float(pi_A[TOOL]) * chance))
    return found


def _call(state: int, action: int, worked: bool | None = None) -> Transition:
    outcomes = () if worked is None else (Outcome(kind="tool", name="search", succeeded=worked),)
    logprobs = [math.log(policy()[state, action])]
    return transition([state], [action], logprobs, span_id=f"s{state}", agent=AGENTS[state], outcomes=outcomes)


def _trajectory(calls: tuple[Transition, ...], reward: float) -> Trajectory:
    return trajectory(reward, calls, dimensions={"answer": reward, "turns": float(len(calls))})
