"""Evidence of the preflight checks: data from the first rollouts and one rehearsed update."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.similar_messages import Tally
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.collector import Collected
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trajectory.calls import is_recorded_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Differences between recorded log-probabilities and those of the trainer's model for the same tokens."""

    mean: float
    largest: float
    tokens: int
    limit: float
    """Largest mean difference that rounding explains."""


@dataclass(slots=True)
class Rehearsal:
    """Results of one rehearsed step: taken on a copy of the policy, served, and then undone."""

    metrics: Mapping[str, Any] | None = None
    """Metrics as the algorithm logged them; None: it took no step."""
    changed: int = 0
    """Number of weight tensors that the step changed, over all policies."""
    weights: int = 0
    """Number of all weight tensors."""
    unchanged: tuple[str, ...] = ()
    """Policies that the step did not change."""
    moved: float = 0.0
    """Largest change of the trainer's own log-probabilities of a fixed prompt; with several policies, the smallest of
    these."""
    shown: float = 0.0
    """The same for the weights that were served last. It is large enough to distinguish them from the old weights."""
    gap: float = float("nan")
    """Largest difference between served and trained log-probabilities."""
    failed: str = ""
    """Error of the algorithm if it could not take a step."""
    not_served: str = ""
    """Error if the engine did not serve the updated weights."""
    not_restored: str = ""
    """Error if the engine did not serve the initial weights again."""
    unread: tuple[str, ...] = ()
    """Options that were given to the algorithm and that it did not read."""


@dataclass(slots=True)
class Evidence:
    """Input of the preflight checks, collected from rollouts and a rehearsed update."""

    config: RunConfig
    context_length: int
    """Context length of the engine in tokens, prompt and response together; of several engines, the smallest."""
    batches: list[Collected] = field(default_factory=list[Collected])
    inspected: list[RecordedRollout] = field(default_factory=list[RecordedRollout])
    """Some of the rollouts that failed or have untrained calls."""
    rollouts: list[RecordedRollout] = field(default_factory=list[RecordedRollout])
    """All rollouts of the first batch."""
    isolation: list[str] = field(default_factory=list[str])
    """Reports of the runners on how they isolate rollouts."""
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    difference: Difference | None = None
    trains_prompts: bool = False
    """Whether the algorithm also changes prompts, so that equal rewards may be a beginning."""
    agents_output: str = "read the output of the agents"
    """Clause that states where the agents' output can be read."""
    why_command: str = "leyden why RUN"
    """Command that lists the failure of every rollout."""

    @property
    def groups(self) -> list[TrajectoryGroup]:
        """All groups, in order."""
        return [group for collected in self.batches for group in collected.groups]

    @property
    def trajectories(self) -> list[Trajectory]:
        """All attempts that ended."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def transitions(self) -> list[Transition]:
        """All calls that can be trained on."""
        return [call for trajectory in self.trajectories for call in trajectory.transitions]

    @property
    def excluded(self) -> Counter[str]:
        """Calls that cannot be trained on, by reason."""
        return sum((collected.excluded for collected in self.batches), Counter[str]())

    @property
    def calls(self) -> int:
        """Number of recorded calls."""
        if not self.config.policies:
            return sum(len(trajectory.untrained) for trajectory in self.trajectories)
        return len(self.transitions) + self.excluded.total()

    def total(self, count: str) -> int:
        """Return the sum of a field of `Collected` over all batches."""
        return sum(getattr(collected, count) for collected in self.batches)

    def spans(self) -> Iterator[Span]:
        """Yield the recorded calls of the rollouts in `inspected`."""
        for recorded in self.inspected:
            for _, spans in recorded.attempts:
                yield from filter(is_recorded_call, spans)

    @property
    def failures(self) -> Tally:
        """Failure reasons of rollouts."""
        tally = Tally()
        for collected in self.batches:
            tally.include(collected.failures.most_common())
        return tally

    def silence(self) -> list[str]:
        """Return possible reasons why agents made no model call, as recorded by their processes."""
        reasons = [
            reason
            for recorded in self.inspected
            for attempt, _ in recorded.attempts
            for reason in attempt.metadata.get("silence", ())
        ]
        return list(dict.fromkeys(reasons))

    def speakers(self) -> Counter[str]:
        """Return the number of recorded calls by agent and node."""
        counts = Counter(_speaker(call.agent, call.node) for call in self.transitions)
        trained = {call.span_id for call in self.transitions}
        for span in self.spans():
            if span.span_id not in trained:
                counts[_speaker(span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.NODE))] += 1
        return counts


def _speaker(agent: object, node: object) -> str:
    names = [f"agent {agent!r}" if agent else "", f"node {node!r}" if node else ""]
    return ", ".join(filter(None, names)) or "nobody named"


@dataclass(frozen=True, slots=True)
class EqualRewardChance:
    """Probability of equal rewards in `rollouts` by chance, if a `share` of all rollouts earns another reward."""

    rollouts: int
    share: float = 0.05

    @property
    def probability(self) -> float:
        """(1 - share) ^ rollouts; rollouts are treated as independent draws."""
        return (1.0 - self.share) ** self.rollouts
