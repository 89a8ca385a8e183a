"""Preflight checks of the update: equal log-probabilities in engine and trainer, a gradient, and served new weights."""

import math
from collections.abc import Mapping
from typing import Any

from leyden.core.trainer.preflight.evidence import Evidence
from leyden.core.trainer.preflight.report import CheckResult, failure, ok, unchecked, warning

_FAR = 10
"""Factor by which the largest of thousands of token differences may exceed the limit of rounding."""


def check_log_probabilities(evidence: Evidence) -> CheckResult:
    """Check that the recorded log-probabilities of responses are those of the trained model."""
    difference = evidence.difference
    if difference is None:
        return unchecked("log-probabilities", "no call can be trained on, see the checks above")
    seen = f"recorded and recomputed differ by {difference.mean:.1g} on average, {difference.largest:.1g} at most"
    seen += f" ({difference.tokens} tokens; rounding explains {difference.limit:g})"
    change = "engine and trainer must hold the same model, in the same precision, at the same temperature"
    if not difference.mean <= difference.limit:
        return failure("log-probabilities", seen, change)
    if not difference.largest <= _FAR * difference.limit:
        return warning("log-probabilities", seen, change + "; --set correction=truncated limits the effect")
    return ok("log-probabilities", seen)


def check_gradient(evidence: Evidence) -> CheckResult:
    """Check that one update, taken on a copy of the policy, changes its weights."""
    rehearsal = evidence.rehearsal
    if rehearsal.failed:
        return failure("gradient", f"no step could be taken: {rehearsal.failed}", "read this error message")
    if rehearsal.metrics is None:
        return unchecked("gradient", "there was nothing to learn from, see the checks above")
    norms = [float(value) for key, value in rehearsal.metrics.items() if key.rpartition("/")[2] == "grad_norm"]
    norm = min(norms, default=math.nan)
    seen = f"{rehearsal.changed} of {rehearsal.weights} weight tensors changed"
    seen += "" if math.isnan(norm) else f", gradient norm {norm:.3g}"
    if norm == 0.0:
        change = "no call of the batch has an advantage: check the options credit and advantage"
        return failure("gradient", seen, change)
    if rehearsal.changed == 0 and _learning_rate(rehearsal.metrics) == 0.0:
        return failure("gradient", f"{seen}: the learning rate is 0", "set --learning-rate above 0")
    if rehearsal.changed == 0:
        return warning("gradient", seen, "check whether the first step is meant to leave the policy unchanged")
    if rehearsal.unchanged:
        unchanged = ", ".join(rehearsal.unchanged)
        change = (
            "the first batch had no call that it could learn from: check its credit, and the routes that lead to it"
        )
        return warning("gradient", f"{seen}; {unchanged} did not change", change)
    return ok("gradient", seen)


def _learning_rate(metrics: Mapping[str, Any]) -> float | None:
    """Return the largest learning rate. With several policies, each name has a policy's name as prefix."""
    return max((value for key, value in metrics.items() if key.rpartition("/")[2] == "learning_rate"), default=None)


def check_served(evidence: Evidence) -> CheckResult:
    """Check that the engine serves updated weights, and afterwards the initial weights again."""
    rehearsal = evidence.rehearsal
    change = "the engine ignores some or all updates, or answers from a stale cache: it cannot be used for training"
    if rehearsal.not_served:
        return failure("served weights", f"old weights are served after an update: {rehearsal.not_served}", change)
    if rehearsal.not_restored:
        seen = f"the first weights are not served again after the rehearsal: {rehearsal.not_restored}"
        return failure("served weights", seen, change)
    if rehearsal.metrics is None:
        return unchecked("served weights", "no update was taken, see gradient")
    seen = f"served and trained differ by {rehearsal.gap:.1g} after an update and changes that alter them by "
    seen += f"{rehearsal.shown:.2g}"
    return ok("served weights", f"{seen}; the run's first weights are served again")
