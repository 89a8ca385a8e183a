"""Alerts: what in the numbers of the steps says that a run is being ruined. Pure functions; knows nothing of runs.

Most compare *now*, the median of the latest 3 steps, with *the beginning*, the median of the first 5: one odd step
raises nothing, and the numbers need no scale that we would have to know. An alert whose numbers an algorithm does not
log says nothing. Why each threshold is where it is stands at its function; `docs/alerts.md` has it for users.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean, median
from typing import Any

BEGINNING, LATEST = 5, 3
"""Steps that the two medians are taken over; they never overlap."""

Line = Mapping[str, Any]
History = Sequence[Line]
"""The numbers of steps, as in `metrics.jsonl`, oldest first."""
Check = Callable[[History], str | None]
"""What is wrong and what to do, or None."""


class Watch:
    """Notices when an alert begins and when it ends; `policies` and `off_policy` are those of `active`."""

    def __init__(self, history: History = (), policies: Sequence[str] = (), off_policy: Collection[str] = ()) -> None:
        self._history, self._policies, self._off_policy = list(history), policies, off_policy
        self.active = frozenset(active(self._history, policies, off_policy))
        """Names of the alerts that the latest step is under."""

    def see(self, line: Line) -> dict[str, str]:
        """Take the next step's numbers; returns the alerts that begin with it, name to message."""
        self._history.append(line)
        found = active(self._history, self._policies, self._off_policy)
        begun = {name: message for name, message in found.items() if name not in self.active}
        self.active = frozenset(found)
        return begun


def active(history: History, policies: Sequence[str] = (), off_policy: Collection[str] = ()) -> dict[str, str]:
    """The alerts that the last step of `history` is under, name to message.

    Where there are several `policies`, the numbers of each are looked at, too, beside those that all share: what is
    wrong with `planner` alone is called `planner/entropy_collapse`. Those that are `off_policy` learn from what others
    drew, and drift from them by design: it is no mismatch.
    """
    found = _checked(history)
    for policy in policies if len(policies) > 1 else ():
        for name, message in _checked([_of(policy, line) for line in history]).items():
            if name not in found and not (name == mismatch.__name__ and policy in off_policy):
                found[f"{policy}/{name}"] = f"{policy}: {message}"
    return found


def _checked(history: History) -> dict[str, str]:
    found = {name: check(history) for name, check in CHECKS.items()}
    return {name: message for name, message in found.items() if message is not None}


def _of(policy: str, line: Line) -> Line:
    """The numbers of a line as one policy's, in the place of those of all."""
    prefix = f"{policy}/"
    own = {key.removeprefix(prefix): value for key, value in line.items() if key.startswith(prefix)}
    return {**line, **own}


def entropy_collapse(history: History) -> str | None:
    """Entropy below a tenth of the beginning's, while the rollouts' rewards differ at least half as much as they did.

    Learning well lowers the entropy too (to a quarter, for the calculators); it also lowers the spread of rewards. A
    policy that no longer explores while there is something left to learn cannot learn it.
    """
    change = _change(history, "entropy")
    if change is None or not change[1] < 0.1 * change[0] or not _unsolved(history):
        return None
    return (
        f"entropy is {change[1]:.3g} nats, at the beginning {change[0]:.3g}, and rewards still differ: the policy "
        "hardly explores any more; lower the learning rate, or set entropy_bonus or kl_loss"
    )


def reward_collapse(history: History) -> str | None:
    """The mean of the latest 5 steps lies below the best 5 in a row by half a standard deviation of rollouts' rewards.

    With G groups a step by at least 3/√G of it. A step's mean is off by up to 1/√G, when a group's rollouts are alike;
    the best window of many is a lucky one. Of 400 steps in which nothing changes, 1 run in 100 raises this by chance.
    """
    rewards = _values(history, "reward")
    spreads = _values(history, "reward_std")
    if len(rewards) < 2 * BEGINNING or not spreads:
        return None
    earlier, now = rewards[:-BEGINNING], fmean(rewards[-BEGINNING:])
    best = max(fmean(earlier[at : at + BEGINNING]) for at in range(len(earlier) - BEGINNING + 1))
    groups = median(_values(history, "groups") or [1.0])
    if not best - now > max(0.5, 3 / math.sqrt(max(1.0, groups))) * median(spreads):
        return None
    return (
        f"mean reward is {now:.3f} and was {best:.3f}: go back with `leyden models rollback` and lower the learning "
        "rate, or set kl_loss"
    )


def length_blow_up(history: History) -> str | None:
    """Responses three times as long as at the beginning, without a quarter of a standard deviation more reward.

    A policy that learns to think longer earns more by it; one that rambles, or found that length pays, does not.
    """
    change = _change(history, "response_tokens_mean")
    rewards = _change(history, "reward")
    if change is None or rewards is None or not change[1] > 3 * change[0]:
        return None
    if rewards[1] - rewards[0] > 0.25 * median(_values(history, "reward_std") or [0.0]):
        return None
    return (
        f"responses have {change[1]:.0f} tokens, at the beginning {change[0]:.0f}, and earn no more; look at some with "
        "`leyden show`, bound max_tokens, or set normalisation to constant with tokens_per_rollout"
    )


def served_gap(history: History) -> str | None:
    """Engine and trainer differ five times as much as at the beginning on the fixed check after an update.

    Rounding stays within a factor of two from step to step. The run stops by itself where rounding cannot explain it.
    """
    change = _change(history, "served_trained_gap")
    if change is None or not change[1] > max(5 * change[0], 1e-6):
        return None
    return (
        f"served and trained log-probabilities differ by {change[1]:.2g}, at the beginning {change[0]:.2g}: numbers "
        "grow beyond what the precision holds; lower the learning rate, or train in float32"
    )


def mismatch(history: History) -> str | None:
    """The largest |ratio - 1| of fresh tokens is ten times the beginning's, and above 0.01.

    Rounding moves it tenfold between single steps at 1e-6 to 1e-4 in float32, hence the floor; stale tokens have a
    level of their own from the beginning on.
    """
    change = _change(history, "importance_ratio_deviation")
    if change is None or not change[1] > max(10 * change[0], 0.01):
        return None
    return (
        f"the policy that answers and the one that learns drift apart: ratios are off by {change[1]:.2g}, at the "
        f"beginning {change[0]:.2g}; set correction, and look at mismatch_kl"
    )


def groups_without_spread(history: History) -> str | None:
    """Over 5 steps, fewer than a fifth of the groups have rollouts of different reward, and rewards still differ.

    Only those groups teach. Where nearly every rollout earns the same, the tasks are learned and nothing is wrong.
    """
    spread, groups = _values(history, "groups_with_spread")[-BEGINNING:], _values(history, "groups")[-BEGINNING:]
    if min(len(spread), len(groups)) < BEGINNING or not sum(spread) < 0.2 * sum(groups) or not _unsolved(history):
        return None
    return (
        f"only {sum(spread):.0f} of {sum(groups):.0f} groups had rollouts of different reward in {BEGINNING} steps: "
        "tasks are too easy or too hard; mix in others, raise --group-size or --temperature"
    )


def gradient_explosion(history: History) -> str | None:
    """The latest 3 gradient norms, by their median, are over ten times the median of up to 20 before them.

    Where clipping holds a single one, nothing is lost; norms five times the usual occur when few groups have spread.
    """
    norms = _values(history, "grad_norm")
    before, now = norms[-LATEST - 20 : -LATEST], norms[-LATEST:]
    if len(before) < BEGINNING or not median(now) > 10 * median(before) > 0:
        return None
    return (
        f"gradient norms are about {median(now):.3g} and were {median(before):.3g}: lower the learning rate or "
        "max_grad_norm"
    )


def all_masked(history: History) -> str | None:
    """The correction masked every token of the last step: no optimizer step was taken."""
    last: Line = history[-1] if history else {}
    if not last.get("optimizer_steps_masked") or last.get("optimizer_steps"):
        return None
    return (
        "the correction masked every token of the step, so the weights did not change: what answers is too far from "
        "what learns; look at mismatch_ratio_p50, widen the correction's bounds, or learn from fresher rollouts"
    )


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        entropy_collapse,
        reward_collapse,
        length_blow_up,
        served_gap,
        mismatch,
        groups_without_spread,
        gradient_explosion,
        all_masked,
    )
}
"""Every alert by its name."""


def _values(history: History, key: str) -> list[float]:
    """The finite numbers under `key`."""
    found = (line.get(key) for line in history)
    return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]


def _change(history: History, key: str) -> tuple[float, float] | None:
    """The medians of the beginning and of now; None where there are too few steps."""
    values = _values(history, key)
    if len(values) < BEGINNING + LATEST:
        return None
    return median(values[:BEGINNING]), median(values[-LATEST:])


def _unsolved(history: History) -> bool:
    """Whether rollouts' rewards differ at least half as much as at the beginning."""
    change = _change(history, "reward_std")
    return change is not None and change[1] > 0 and change[1] >= 0.5 * change[0]
