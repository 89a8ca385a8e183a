"""`Rule`: gives a reward or penalty to an outcome of a call. Typed rules define automatic intermediate rewards."""

import functools
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from leyden.core.credit.base import Floats
from leyden.core.credit.checks import check_finite, load_function
from leyden.core.data.transition import Outcome, OutcomeKind, Transition
from leyden.core.errors import TrainingError, UsageError
from leyden.core.runner.attempts.error_text import raised

_reader = functools.cache(load_function)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reward of outcomes of one kind, or of some names. Raises UsageError for a rule that has no effect.

    An outcome that is recorded as failed has failed. For the others, `matches` or `reads` decides by the outcome's
    text, if one of them is given. Without them, an outcome whose success is unknown gets 0.
    """

    kind: OutcomeKind | None = None
    """None: any kind."""
    name: str | None = None
    """Regular expression, searched for in the outcome's name; None: any name."""
    succeeded: float = 0.0
    failed: float = 0.0
    matches: str | None = None
    """Regular expression, searched for in the tool's result or in the answer; a match means success."""
    reads: str | None = None
    """Import string of a function of that text: False or a ValueError means failure."""

    def __post_init__(self) -> None:
        """Check the options of the rule."""
        check_finite("succeeded", self.succeeded)
        check_finite("failed", self.failed)
        if self.succeeded == 0 and self.failed == 0:
            raise UsageError("a rule needs a reward or a penalty: give succeeded, failed or both")
        for option, pattern in (("name", self.name), ("matches", self.matches)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise UsageError(f"a rule's {option} {pattern!r} is not a regular expression: {error}") from None
        if self.matches is not None and self.reads is not None:
            raise UsageError("a rule takes matches or reads, not both: each of them decides what succeeded")
        if self.reads is not None:
            _reader("reads", self.reads)
        if self.kind == "answer" and self.matches is None and self.reads is None:
            raise UsageError("a rule for answers needs matches or reads, which decide whether an answer succeeded")

    def fits(self, outcome: Outcome) -> bool:
        """Return whether the rule applies to `outcome`."""
        return self.kind in (None, outcome.kind) and re.search(self.name or "", outcome.name) is not None

    def worth(self, outcome: Outcome) -> float:
        """Return the reward of an outcome that fits; TrainingError if `reads` raises anything but a ValueError."""
        succeeded = self._judge(outcome)
        if succeeded is None:
            return 0.0
        return self.succeeded if succeeded else self.failed

    def _judge(self, outcome: Outcome) -> bool | None:
        if outcome.succeeded is False or outcome.text is None:
            return outcome.succeeded
        if self.matches is not None:
            return re.search(self.matches, outcome.text) is not None
        return outcome.succeeded if self.reads is None else _read(self.reads, outcome.text)


def check_rules(rules: Sequence[Rule], scheme: str) -> None:
    """Raise UsageError if there is no rule."""
    if not rules:
        raise UsageError(f"{scheme} needs at least one rule, which gives an outcome a reward or a penalty")


def intermediate_rewards(rules: Sequence[Rule], transitions: Sequence[Transition]) -> Floats:
    """Return `rewards_N`: each transition's sum over its outcomes; the first rule that fits an outcome applies."""
    return np.array([sum(_worth(rules, o) for o in call.outcomes) for call in transitions], dtype=np.float64)


def _worth(rules: Sequence[Rule], outcome: Outcome) -> float:
    rule = next((rule for rule in rules if rule.fits(outcome)), None)
    return 0.0 if rule is None else rule.worth(outcome)


def _read(reference: str, text: str) -> bool:
    try:
        return _reader("reads", reference)(text) is not False
    except ValueError:
        return False
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TrainingError(f"{reference} raised {raised(error)} for {text[:80]!r}") from error
