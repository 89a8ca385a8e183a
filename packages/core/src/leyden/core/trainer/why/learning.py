"""Learning record: which rollouts and calls the steps of a run learned from, read from its folder."""

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from leyden.core.trainer.run_folder.folder import LearnedLine, RunFolder
from leyden.core.trainer.run_folder.move_journal import SET_ASIDE


class LearnedStep(msgspec.Struct, frozen=True, order=True):
    """Step that learned from a rollout or call."""

    step: int
    side: str = ""
    """Side that learned, with side-by-side algorithms."""

    def __str__(self) -> str:
        return f"step {self.step}" + (f" ({self.side})" if self.side else "")


@dataclass(slots=True)
class Learning:
    """What became of the rollouts in a run's batches."""

    is_recorded: bool = False
    """Whether every step has recorded this. Older versions did not, and a custom algorithm may omit it."""
    steps: dict[str, list[LearnedStep]] = field(default_factory=dict[str, list[LearnedStep]])
    """By rollout: the steps that learned from one of its calls."""
    reasons: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By rollout: why no call of it was learned from, one reason for each side."""
    collected_for: dict[str, int] = field(default_factory=dict[str, int])
    """By rollout that was not learned from: the step whose batch had it."""
    calls: dict[str, list[tuple[str, str]]] = field(default_factory=dict[str, list[tuple[str, str]]])
    """By span: side, and why it did not learn from the call."""
    unmoved: set[str] = field(default_factory=set[str])
    """Spans of trained calls with advantage 0."""
    rolled_back: dict[str, LearnedStep] = field(default_factory=dict[str, LearnedStep])
    """By rollout: the step that learned from it and was rolled back."""

    @classmethod
    def of(cls, folder: RunFolder) -> "Learning":
        """Read what the run in `folder` has recorded so far."""
        learned = folder.learned()
        found = cls(is_recorded=_has_all_steps(folder, learned))
        for line in learned:
            found._add(line)
        for path in sorted(folder.path.glob(f"{SET_ASIDE}/[!.]*")):
            aside = RunFolder(path)
            lines = aside.learned()
            found.is_recorded = found.is_recorded and _has_all_steps(aside, lines)
            found.rolled_back.update(_trained_in(lines))
        return found

    def of_call(self, rollout_id: str, span_id: str) -> list[LearnedStep]:
        """Return the steps that learned from a call of a rollout."""
        left_out_by = {side for side, _ in self.calls.get(span_id, ())}
        return [step for step in self.steps.get(rollout_id, ()) if step.side not in left_out_by]

    def why_not(self, span_id: str) -> str | None:
        """Return why a call was not learned from, if that is recorded for the call itself."""
        return joined((side, reason) for side, reason in self.calls.get(span_id, ()))

    def _add(self, line: LearnedLine) -> None:
        account, side = line.account, line.account.side or ""
        for rollout_id in account.trained:
            self.steps.setdefault(rollout_id, []).append(LearnedStep(line.step, side))
        for reason, rollouts in account.rollouts.items():
            for rollout_id in rollouts:
                self.reasons.setdefault(rollout_id, []).append(f"{side}: {reason}" if side else reason)
                self.collected_for.setdefault(rollout_id, line.step)
        for reason, spans in account.calls.items():
            for span_id in spans:
                self.calls.setdefault(span_id, []).append((side, reason))
        self.unmoved.update(account.unmoved)


def joined(reasons: Iterable[tuple[str, str]]) -> str | None:
    """Join the reasons of several sides; sides are omitted if all have the same reason. None without reasons."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for side, reason in reasons:
        by_reason[reason].append(side)
    if len(by_reason) < 2:
        return next(iter(by_reason), None)
    return "; ".join(f"{side}: {reason}" for reason, sides in by_reason.items() for side in sides)


def _has_all_steps(folder: RunFolder, learned: Iterable[LearnedLine]) -> bool:
    """Whether each step in the metrics has a line in `learned`; steps of an older version have none."""
    lines = folder.last_metrics(size=sys.maxsize)  # all of them, without those that are damaged
    taken = {line["step"] for line in lines if "held_out" not in line and "alert" not in line}
    return taken <= {line.step for line in learned}


def _trained_in(lines: Iterable[LearnedLine]) -> dict[str, LearnedStep]:
    return {name: LearnedStep(line.step, line.account.side or "") for line in lines for name in line.account.trained}
