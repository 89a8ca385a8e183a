"""Transitions and trajectories: what learning sees of an attempt.

Invariant: the ids of a transition are exactly those the engine read and wrote, never re-tokenised text; those of a
transition that says `retokenised`, made from what another model wrote, are text in the policy's own template.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from leyden.core.data.encoding.tokens import LogProbs, TokenIds
from leyden.core.data.failure import Failure

OutcomeKind = Literal["tool", "operation", "answer"]
"""A tool that the call asked for; an `operation` of the agent's code that followed it; its own `answer`, a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one thing that a call asked for or wrote."""

    kind: OutcomeKind
    name: str
    """The tool's name, the operation's, or that of who answered."""
    succeeded: bool | None
    """None where nobody said."""
    text: str | None = None
    """What the tool returned, or the answer, as far as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transition:
    """One call of a policy."""

    rollout_id: str
    attempt_id: str
    span_id: str
    """The gateway's `chat` span."""
    call_id: str
    """The engine's request id."""
    prompt_ids: TokenIds
    """State: what the model read."""
    response_ids: TokenIds
    """Action: what it wrote, the end-of-turn token included if it was sampled."""
    logprobs: LogProbs
    """Behaviour log-probabilities of `response_ids`, under the distribution they were drawn from; empty where that is
    not known, which only losses that take no ratios can learn from."""
    temperature: float
    policy: str
    version: int
    """Policy version that drew the first token: the oldest of those that did."""
    versions: tuple[tuple[int, int], ...] = ()
    """Every version that drew tokens, in order, with how many; `version` alone unless given."""
    agent: str | None = None
    node: str | None = None
    finish_reason: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    """What came of it, in the order it became known: what automatic intermediate rewards are read from."""
    value: float | None = None
    """What a critic expected of the rollout from here on, before the call was made; None: none was asked."""

    retokenised: bool = False
    """Made from the text of a call that another model answered."""

    def __post_init__(self) -> None:
        if not self.versions:
            object.__setattr__(self, "versions", ((self.version, len(self.response_ids)),))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The transitions of one attempt, in the order the calls were made."""

    rollout_id: str
    attempt_id: str
    transitions: tuple[Transition, ...]
    reward: float | None
    """None when the attempt has no reward: it is then excluded, never scored 0."""
    dimensions: dict[str, float]
    """Named parts of the reward; empty when it is a plain number."""
    succeeded: bool
    untrained: dict[str, str]
    """Calls that yielded no transition: the span's id to the reason why."""
    failure: Failure | None = None
    """Why the attempt did not succeed; None where it did."""

    @property
    def excluded(self) -> dict[str, int]:
        """The same calls, counted by reason."""
        return dict(Counter(self.untrained.values()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryGroup:
    """Trajectories of one task."""

    task_id: str
    trajectories: tuple[Trajectory, ...]
