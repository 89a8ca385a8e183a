"""Alerts: detect harmful patterns in the metrics of a run's steps. All checks are pure functions.

Most checks compare *now*, the median of the latest 3 steps, with *the beginning*, the median of the first 5 steps. A
single odd step then raises no alert, and the checks need no absolute scale. A check returns None if the algorithm does
not log its metrics. Each function documents the reason for its threshold; `docs/alerts.md` is for users.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean, median
from typing import Any

BEGINNING, LATEST = 5, 3
"""Number of steps for the two medians; their ranges never overlap."""

Line = Mapping[str, Any]
History = Sequence[Line]
"""Metrics of the steps, as in `metrics.jsonl`, oldest first."""
Check = Callable[[History], str | None]
"""Returns what is wrong and what to do, or None."""


class AlertDetector:
    """Detector of alerts that begin or end; `policies` and `off_policy` are passed to `active`."""

    def __init__(self, history: History = (), policies: Sequence[str] = (), off_policy: Collection[str] = ()) -> None:
        self._history, self._policies, self._off_policy = list(history), policies, off_policy
        self.active = frozenset(active(self._history, policies, off_policy))
        """Names of the alerts that are active after the latest step."""

    def add(self, line: Line) -> dict[str, str]:
        """Add the metrics of the next step; return the alerts that begin with it, name to message."""
        self._history.append(line)
        found = active(self._history, self._policies, self._off_policy)
        begun = {name: message for name, message in found.items() if name not in self.active}
        self.active = frozenset(found)
        return begun


def active(history: History, policies: Sequence[str] = (), off_policy: Collection[str] = ()) -> dict[str, str]:
    """Return the alerts that are active in the last step of `history`, name to message.

    With several `policies`, the metrics of each are checked besides the shared ones. An alert of the policy `planner`
    alone is named, for example, `planner/entropy_collapse`. Policies in `off_policy` learn from calls of other policies
    and differ from them by design, so that `mismatch` does not apply to them.
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
    """Return a line in which one policy's metrics replace the shared ones."""
    prefix = f"{policy}/"
    own = {key.removeprefix(prefix): value for key, value in line.items() if key.startswith(prefix)}
    return {**line, **own}


def entropy_collapse(history: History) -> str | None:
    """Alert when entropy is below a tenth of the beginning, while rewards still vary at least half as much.

    Successful learning also lowers the entropy, to a quarter for the calculator agents, but it lowers the variation of
    rewards too. A policy that no longer explores cannot learn what is left to learn.
    """
    change = _change(history, "entropy")
    if change is None or not change[1] < 0.1 * change[0] or not _unsolved(history):
        return None
    return (
        f"entropy is {change[1]:.3g} nats ({change[0]:.3g} at the beginning), and rewards still differ: the policy "
        "hardly explores; lower the learning rate, or set entropy_bonus or kl_loss"
    )


def reward_collapse(history: History) -> str | None:
    """Alert when the mean reward of the latest 5 steps is clearly below the best 5 consecutive steps.

    The threshold is half a standard deviation of the rollouts' rewards; with G groups a step, at least 3/√G of it. The
    mean of a step deviates by up to 1/√G, if the rollouts of a group are alike, and the best of many windows is lucky.
    Over 400 steps without any change, 1 run in 100 raises this alert by chance.
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
        f"mean reward is {now:.3f} ({best:.3f} at its best): roll back with `leyden models rollback` and lower the "
        "learning rate, or set kl_loss"
    )


def length_blow_up(history: History) -> str | None:
    """Alert when responses are three times as long as at the beginning, without a clear gain in reward.

    A clear gain is a quarter of a standard deviation. A policy that learns to think longer gains reward by it. A policy
    that rambles, or that learned that length pays, does not.
    """
    change = _change(history, "response_tokens_mean")
    rewards = _change(history, "reward")
    if change is None or rewards is None or not change[1] > 3 * change[0]:
        return None
    if rewards[1] - rewards[0] > 0.25 * median(_values(history, "reward_std") or [0.0]):
        return None
    return (
        f"responses have {change[1]:.0f} tokens ({change[0]:.0f} at the beginning), without more reward; read some "
        "with `leyden show`, bound max_tokens, or set normalisation to constant with tokens_per_rollout"
    )


def served_gap(history: History) -> str | None:
    """Alert when engine and trainer differ five times as much as at the beginning, on the fixed check after an update.

    Rounding usually stays within a factor of two, and within three where a model amplifies it. The run stops anyway if
    rounding cannot explain the difference.
    """
    change = _change(history, "served_trained_gap")
    if change is None or not change[1] > max(5 * change[0], 1e-6):
        return None
    return (
        f"served and trained log-probabilities differ by {change[1]:.2g} ({change[0]:.2g} at the beginning): numbers "
        "become too large for the precision; lower the learning rate, or train in float32"
    )


def mismatch(history: History) -> str | None:
    """Alert when the largest |ratio - 1| of fresh tokens is ten times the beginning, and above 0.01.

    The floor is needed because rounding changes the value tenfold between steps, at 1e-6 to 1e-4 in float32. Stale
    tokens have a level of their own, which the value at the beginning includes.
    """
    change = _change(history, "importance_ratio_deviation")
    if change is None or not change[1] > max(10 * change[0], 0.01):
        return None
    return (
        f"the policy that answers and the policy that is trained drift apart: ratios differ from 1 by {change[1]:.2g} "
        f"({change[0]:.2g} at the beginning); set correction, and check mismatch_kl"
    )


def groups_without_spread(history: History) -> str | None:
    """Alert when over 5 steps fewer than a fifth of the groups have different rewards, although rewards still vary.

    Only these groups teach. If nearly every rollout earns the same, the tasks are learned and nothing is wrong.
    """
    spread, groups = _values(history, "groups_with_spread")[-BEGINNING:], _values(history, "groups")[-BEGINNING:]
    if min(len(spread), len(groups)) < BEGINNING or not sum(spread) < 0.2 * sum(groups) or not _unsolved(history):
        return None
    return (
        f"only {sum(spread):.0f} of {sum(groups):.0f} groups had rollouts of different reward in {BEGINNING} steps: "
        "tasks are too easy or too hard; add other tasks, raise --group-size or --temperature"
    )


def gradient_explosion(history: History) -> str | None:
    """Alert when the median of the latest 3 gradient norms is over ten times the median of up to 20 before them.

    Clipping limits a single outlier, which does no harm. Norms of five times the usual value occur when few groups have
    different rewards.
    """
    norms = _values(history, "grad_norm")
    before, now = norms[-LATEST - 20 : -LATEST], norms[-LATEST:]
    if len(before) < BEGINNING or not median(now) > 10 * median(before) > 0:
        return None
    return (
        f"gradient norms are about {median(now):.3g} ({median(before):.3g} before): lower the learning rate or "
        "max_grad_norm"
    )


def all_masked(history: History) -> str | None:
    """Alert when the correction masked every token of the last step, so that no optimizer step was taken."""
    last: Line = history[-1] if history else {}
    if not last.get("optimizer_steps_masked") or last.get("optimizer_steps"):
        return None
    return (
        "the correction masked every token of the step, so the weights did not change: the policy that answers "
        "differs too much from the policy that is trained; check mismatch_ratio_p50, widen the correction's bounds, "
        "or learn from more recent rollouts"
    )


def constant_critic(history: History) -> str | None:
    """Alert when over 5 steps, after 5 others, the critic explains less than 0.02 of the returns, and rewards vary.

    A critic that predicts the mean of all returns explains 0 or a little less. Credit by such values is noise: with
    `learned_value`, little but the last call of a rollout is then trained.
    """
    explained = _values(history, "value_explained_variance")
    if len(explained) < 2 * BEGINNING or not median(explained[-BEGINNING:]) < 0.02 or not _unsolved(history):
        return None
    return (
        f"the critic explains {max(0.0, median(explained[-BEGINNING:])):.0%} of the returns after {len(explained)} "
        "steps, as a constant does; set critic.epochs and critic.minibatches to 4, or raise critic.learning_rate"
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
        constant_critic,
    )
}
"""Alert checks by name."""


def _values(history: History, key: str) -> list[float]:
    """Return the finite numbers under `key`."""
    found = (line.get(key) for line in history)
    return [float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)]


def _change(history: History, key: str) -> tuple[float, float] | None:
    """Return the medians of the beginning and of now; None with too few steps."""
    values = _values(history, key)
    if len(values) < BEGINNING + LATEST:
        return None
    return median(values[:BEGINNING]), median(values[-LATEST:])


def _unsolved(history: History) -> bool:
    """Whether rollouts' rewards vary at least half as much as at the beginning."""
    change = _change(history, "reward_std")
    return change is not None and change[1] > 0 and change[1] >= 0.5 * change[0]
