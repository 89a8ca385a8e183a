"""`Evidence`: what the first rollouts and a rehearsed update left to be judged. Judges nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from leyden.core.data import semconv
from leyden.core.data.span import Span
from leyden.core.data.tally import Tally
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.collector import Collected
from leyden.core.trainer.rollouts.recorded import RecordedRollout
from leyden.core.trajectory.calls import is_recorded_call


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Recorded log-probabilities against those that the trainer's model computes for the same tokens."""

    mean: float
    largest: float
    tokens: int
    limit: float
    """What rounding explains, at most."""


@dataclass(slots=True)
class Rehearsal:
    """What became of one step, taken on a copy of the policy, served, and taken back."""

    metrics: Mapping[str, Any] | None = None
    """As the algorithm logged them; None: it took no step."""
    changed: int = 0
    """Weight tensors that the step changed, of all policies."""
    weights: int = 0
    """Weight tensors in all."""
    unchanged: tuple[str, ...] = ()
    """Policies that the step left as they were."""
    moved: float = 0.0
    """How far the step moved the trainer's own log-probabilities of a fixed prompt; of several policies, the least."""
    shown: float = 0.0
    """The same for the weights that were served last: large enough that old weights could not hide."""
    gap: float = float("nan")
    """Largest difference between served and trained log-probabilities."""
    failed: str = ""
    """Why no step could be taken, in the algorithm's words."""
    not_served: str = ""
    """What the engine served instead of what it was given."""
    not_restored: str = ""
    """The same for the weights that the run begins with."""
    unread: tuple[str, ...] = ()
    """Options that were given to the algorithm and that it did not read."""


@dataclass(slots=True)
class Evidence:
    """Everything that the checks look at once rollouts were run."""

    config: RunConfig
    context_length: int
    """Of the engine: prompt and answer together, in tokens; of several, the shortest."""
    batches: list[Collected] = field(default_factory=list[Collected])
    looked_into: list[RecordedRollout] = field(default_factory=list[RecordedRollout])
    """Some of the rollouts that failed, or whose calls are not all trained."""
    rollouts: list[RecordedRollout] = field(default_factory=list[RecordedRollout])
    """All rollouts of the first batch."""
    isolation: list[str] = field(default_factory=list[str])
    """What the runners say of how they keep rollouts apart."""
    rehearsal: Rehearsal = field(default_factory=Rehearsal)
    difference: Difference | None = None
    agents_output: str = "see what the agents print"
    """Where what they print can be read, as a clause."""
    look_closer: str = "leyden why RUN"
    """The command that names every rollout's failure."""

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
        """Calls that cannot, by the reason why."""
        return sum((collected.excluded for collected in self.batches), Counter[str]())

    @property
    def calls(self) -> int:
        """Recorded calls."""
        return len(self.transitions) + self.excluded.total()

    def total(self, count: str) -> int:
        """One of the counts of `Collected`, over all batches."""
        return sum(getattr(collected, count) for collected in self.batches)

    def spans(self) -> Iterator[Span]:
        """The recorded calls of the rollouts that were looked into."""
        for recorded in self.looked_into:
            for _, spans in recorded.attempts:
                yield from filter(is_recorded_call, spans)

    @property
    def failures(self) -> Tally:
        """Why rollouts failed."""
        tally = Tally()
        for collected in self.batches:
            tally.include(collected.failures.most_common())
        return tally

    def silence(self) -> list[str]:
        """What may be why agents made no model call, as their own process saw it."""
        told = [
            reason
            for recorded in self.looked_into
            for attempt, _ in recorded.attempts
            for reason in attempt.metadata.get("silence", ())
        ]
        return list(dict.fromkeys(told))

    def speakers(self) -> Counter[str]:
        """Who made the recorded calls: agent and node, and how many calls of each were seen."""
        spoke = Counter(_speaker(call.agent, call.node) for call in self.transitions)
        trained = {call.span_id for call in self.transitions}
        for span in self.spans():
            if span.span_id not in trained:
                spoke[_speaker(span.attributes.get(semconv.AGENT_NAME), span.attributes.get(semconv.NODE))] += 1
        return spoke


def _speaker(agent: object, node: object) -> str:
    names = [f"agent {agent!r}" if agent else "", f"node {node!r}" if node else ""]
    return ", ".join(filter(None, names)) or "nobody named"


@dataclass(frozen=True, slots=True)
class Chance:
    """How likely it is to see no spread in `rollouts` although one in `1 / share` of them earns another reward."""

    rollouts: int
    share: float = 0.05

    @property
    def probability(self) -> float:
        """(1 - share) ^ rollouts: each rollout is a draw of its own."""
        return (1.0 - self.share) ** self.rollouts
