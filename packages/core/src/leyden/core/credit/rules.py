"""`Rule`: what an outcome is worth. Typed rules are how automatic intermediate rewards are said."""

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from leyden.core.credit.base import Floats
from leyden.core.credit.checks import check_finite
from leyden.core.data.transition import Outcome, OutcomeKind, Transition
from leyden.core.errors import UsageError


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What outcomes of one kind, or of some names, are worth. Raises UsageError for a rule that can do nothing."""

    kind: OutcomeKind | None = None
    """None: any kind."""
    name: str | None = None
    """Regular expression, searched for in the outcome's name; None: any name."""
    succeeded: float = 0.0
    failed: float = 0.0

    def __post_init__(self) -> None:
        """Check the rule."""
        check_finite("succeeded", self.succeeded)
        check_finite("failed", self.failed)
        if self.succeeded == 0 and self.failed == 0:
            raise UsageError("a rule needs a reward or a penalty: give succeeded, failed or both")
        try:
            re.compile(self.name or "")
        except re.error as error:
            raise UsageError(f"a rule's name {self.name!r} is not a regular expression: {error}") from None

    def fits(self, outcome: Outcome) -> bool:
        """Whether the rule is about `outcome`."""
        return self.kind in (None, outcome.kind) and re.search(self.name or "", outcome.name) is not None


def check_rules(rules: Sequence[Rule], scheme: str) -> None:
    """Raise UsageError when there is no rule."""
    if not rules:
        raise UsageError(f"{scheme} needs rules: at least one that says what an outcome is worth")


def intermediate_rewards(rules: Sequence[Rule], transitions: Sequence[Transition]) -> Floats:
    """Return `rewards_N`: each transition's sum over its outcomes; of several rules that fit, the first counts."""
    return np.array([sum(_worth(rules, o) for o in call.outcomes) for call in transitions], dtype=np.float64)


def _worth(rules: Sequence[Rule], outcome: Outcome) -> float:
    rule = next((rule for rule in rules if rule.fits(outcome)), None)
    if rule is None:
        return 0.0
    return rule.succeeded if outcome.succeeded else rule.failed
