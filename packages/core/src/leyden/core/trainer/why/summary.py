"""Summary of outcomes: counts what became of the rollouts and calls of a run, with an example of each reason."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from leyden.core.data.reasons import HELD_OUT, reason_of
from leyden.core.data.similar_messages import CountedMessage, Tally
from leyden.core.errors import RunError
from leyden.core.trainer.agents.local import agents_output
from leyden.core.trainer.run_state import RunState, state_and_reason
from leyden.core.trainer.why.reading import RunRecord
from leyden.core.trainer.why.trained_or_reason import NO_GATEWAY_WROTE, CallExplanation, RolloutExplanation

MOST_DETAILS = 10
"""Maximum number of different messages kept for one reason; further ones are only counted."""


class ReasonCount(msgspec.Struct, frozen=True, kw_only=True):
    """Count of rollouts or calls that were not trained for one reason."""

    reason: str
    count: int
    means: str
    change: str
    """Advice what to change; empty if nothing needs to change."""
    example: str
    """Id of the first rollout with this reason."""
    command: str
    """Command that shows the example."""
    details: list[CountedMessage] = []
    """Recorded details, the most frequent first."""
    others: int = 0
    """Number of records with other details, beyond `MOST_DETAILS`."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of a run's rollouts and calls."""

    run: str
    state: RunState
    ended: str | None
    """Why it ended before its first or its last step; None if it did not, or if that is not known."""
    rollouts: int
    """Number of training rollouts."""
    rollouts_trained: int
    steps: int
    """Number of steps that learned from them."""
    held_out: int
    """Number of rollouts that measured the policy."""
    calls: int
    """Number of recorded calls of all rollouts, including held-out ones."""
    calls_trained: int
    calls_unmoved: int
    """Number of trained calls with advantage 0."""
    rollouts_left_out: list[ReasonCount]
    calls_left_out: list[ReasonCount]
    held_out_failures: list[CountedMessage]
    remarks: list[CountedMessage]
    """Other irregularities, such as spans with forged records, each with the id of its first rollout."""
    endpoint: str | None = None
    """Model or base URL that answered the calls of a run without a policy."""
    agents_output: str | None
    """Clause that states where the agents' output can be read; None for a run without an agent."""


async def summarise(record: RunRecord) -> Summary:
    """Summarise all rollouts of a run. Raises RunError when there is none."""
    counts = _Counts()
    async for _, explanation in record.explanations():
        counts.add(explanation)
    if not counts.seen and not record.unreadable:
        ended = record.folder.failure()
        raise RunError(f"run {record.folder.path.name!r} has no rollouts" + (f": {ended}" if ended else ""))
    for text in record.unreadable:
        counts.remarks.add(text)
    command = record.folder.command
    state, ended = state_and_reason(record.folder)
    return Summary(
        run=record.folder.path.name,
        state=state,
        ended=" ".join(ended.split()) if ended else None,
        rollouts=counts.rollouts,
        rollouts_trained=counts.trained,
        steps=len(counts.steps),
        held_out=counts.held_out,
        calls=counts.calls,
        calls_trained=counts.calls_trained,
        calls_unmoved=counts.unmoved,
        rollouts_left_out=_listed(counts.rollout_reasons, command("show")),
        calls_left_out=_listed(counts.call_reasons, command("show")),
        held_out_failures=counts.held_out_failures.grouped(MOST_DETAILS),
        remarks=counts.remarks.grouped(MOST_DETAILS),
        endpoint=record.facts.endpoint,
        agents_output=None if record.config.agent is None else agents_output(record.config, record.folder),
    )


@dataclass(slots=True)
class _Reason:
    """Counts for one reason."""

    example: str
    count: int = 0
    details: Tally = field(default_factory=Tally)

    def add(self, detail: str, rollout_id: str) -> None:
        self.count += 1
        if detail:
            self.details.add(detail, rollout_id)


@dataclass(slots=True)
class _Counts:
    """Counters. Memory grows with the number of different reasons and messages, not with the number of rollouts."""

    seen: int = 0
    rollouts: int = 0
    trained: int = 0
    held_out: int = 0
    calls: int = 0
    calls_trained: int = 0
    unmoved: int = 0
    steps: set[int] = field(default_factory=set[int])
    rollout_reasons: dict[str, _Reason] = field(default_factory=dict[str, _Reason])
    call_reasons: dict[str, _Reason] = field(default_factory=dict[str, _Reason])
    held_out_failures: Tally = field(default_factory=Tally)
    remarks: Tally = field(default_factory=Tally)

    def add(self, explanation: RolloutExplanation) -> None:
        self.seen += 1
        if explanation.reason == HELD_OUT:
            self.held_out += 1
            if explanation.detail:
                self.held_out_failures.add(explanation.detail, explanation.rollout_id)
        else:
            self.rollouts += 1
            self.trained += bool(explanation.steps)
            self.steps.update(step.step for step in explanation.steps)
            if explanation.reason is not None:
                self._reason(self.rollout_reasons, explanation.reason, explanation).add(
                    explanation.detail, explanation.rollout_id
                )
        for remark in explanation.remarks:
            self.remarks.add(remark, explanation.rollout_id)
        if explanation.forged:
            self.remarks.add(f"a span {NO_GATEWAY_WROTE}", explanation.rollout_id, len(explanation.forged))
        self._add_calls(explanation.calls, explanation)

    def _add_calls(self, calls: Iterable[CallExplanation], explanation: RolloutExplanation) -> None:
        for call in calls:
            self.calls += 1
            self.calls_trained += bool(call.steps)
            self.unmoved += bool(call.steps) and not call.moves
            if call.reason is not None:
                self._reason(self.call_reasons, call.reason, explanation).add(call.detail, explanation.rollout_id)

    @staticmethod
    def _reason(counted: dict[str, _Reason], name: str, explanation: RolloutExplanation) -> _Reason:
        return counted.setdefault(name, _Reason(example=explanation.rollout_id))


def _listed(counted: dict[str, _Reason], show: str) -> list[ReasonCount]:
    """Return the reasons, the most frequent first."""
    found: list[ReasonCount] = []
    for name, one in sorted(counted.items(), key=lambda item: -item[1].count):
        reason, details = reason_of(name), one.details.grouped(MOST_DETAILS)
        found.append(
            ReasonCount(
                reason=name,
                count=one.count,
                means=reason.means,
                change=reason.change,
                example=one.example,
                command=with_rollout(show, one.example),
                details=details[:MOST_DETAILS],
                others=sum(detail.count for detail in details[MOST_DETAILS:]),
            )
        )
    return found


def with_rollout(command: str, rollout_id: str) -> str:
    """Insert a rollout id behind the run's name in `command`."""
    before, runs, where = command.partition(" --runs ")
    return f"{before} {rollout_id}{runs}{where}"
