"""Transitions and trajectories: the training data of an attempt.

Invariant: the token ids of a transition are exactly those that the engine read and generated, never re-tokenised text.
A transition with `retokenised` is the exception: another model wrote the text, and the ids are that text in the
policy's own template.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from leyden.core.data.encoding.images import PromptImage
from leyden.core.data.encoding.tokens import LogProbs, TokenIds
from leyden.core.data.failure import Failure
from leyden.core.data.sampling import Sampling

OutcomeKind = Literal["tool", "operation", "answer"]
"""`tool`: a tool that the call requested. `operation`: an operation of the agent's code that followed the call.

`answer`: the text that the call itself wrote.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of one tool request, operation or answer that followed from a call."""

    kind: OutcomeKind
    name: str
    """Name of the tool, of the operation, or of the agent that answered."""
    succeeded: bool | None
    """None where success was not recorded."""
    text: str | None = None
    """Return value of the tool, or the answer, as far as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transition:
    """One call of a policy."""

    rollout_id: str
    attempt_id: str
    span_id: str
    """Id of the gateway's `chat` span."""
    call_id: str
    """The engine's request id."""
    prompt_ids: TokenIds
    """State: the tokens that the model read."""
    response_ids: TokenIds
    """Action: the tokens that the model generated, with the end-of-turn token if it was sampled."""
    logprobs: LogProbs
    """Behaviour log-probabilities of `response_ids`, under the distribution they were sampled from.

    Empty where they are unknown; then only losses without ratios can train on the transition.
    """
    temperature: float
    policy: str
    version: int
    """Policy version that generated the first token: the oldest of `versions`."""
    versions: tuple[tuple[int, int], ...] = ()
    """(version, number of tokens) of every version that generated tokens, in order. Default: `version` alone."""
    agent: str | None = None
    node: str | None = None
    finish_reason: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    """Results of the call, in the order they were recorded; automatic intermediate rewards are computed from them."""
    sampling: Sampling | None = None
    """Sampling parameters, if more than the temperature changed the distribution; else None."""
    kept: bytes | None = None
    """Packed sets of the tokens that truncation left (see `data.encoding.token_sets`); None without truncation."""
    images: tuple[PromptImage, ...] = ()
    """Images of the prompt, in order, with the placeholder tokens in `prompt_ids` that stand for them."""
    value: float | None = None
    """The critic's value of the state before the call; None where no critic was used."""

    retokenised: bool = False
    """Whether the ids were made from the text of a call that another model answered."""

    @property
    def state(self) -> bytes:
        """What the policy read: equal for calls with equal prompts and equal images, different for all others."""
        return self.prompt_ids.tobytes() + "".join(image.digest for image in self.images).encode()

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
    """None when the attempt has no reward. It is then excluded, never scored 0."""
    dimensions: dict[str, float]
    """Named parts of the reward; empty when the reward is a plain number."""
    succeeded: bool
    untrained: dict[str, str]
    """Calls that gave no transition: the span's id to the reason."""
    failure: Failure | None = None
    """Why the attempt did not succeed; None where it succeeded."""

    @property
    def excluded(self) -> dict[str, int]:
        """Number of calls that gave no transition, by reason."""
        return dict(Counter(self.untrained.values()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrajectoryGroup:
    """Trajectories of one task."""

    task_id: str
    trajectories: tuple[Trajectory, ...]
