"""Rows: converts the transitions of one prompt's rollouts into the rows that VERL trains, one row each.

Invariant: a row holds all token ids of its transition. A transition that exceeds a limit is left out and counted, never
cut: a cut prompt is a different state, and a cut response a different action. This module does not import VERL.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leyden.core.advantage.base import AdvantageEstimator, CreditedRollout, GroupEstimator
from leyden.core.algorithm.account import Account, account_of
from leyden.core.algorithm.advantage_pipeline import credit_of
from leyden.core.algorithm.verl.row_sampling import SAMPLING_FIELD, UNADJUSTED, RowSampling
from leyden.core.credit.base import CreditAssigner
from leyden.core.data.encoding.tokens import LogProbs, TokenIds
from leyden.core.data.reasons import (
    ADJUSTED_SAMPLING,
    EMPTY_PROMPT,
    EMPTY_RESPONSE,
    NO_CALL,
    NO_CALL_LEFT,
    NO_CREDITED_CALL,
    NO_REWARD,
    NOT_RECOMPUTED,
    OTHER_TEMPERATURE,
    PROMPT_OVER_LIMIT,
    RESPONSE_OVER_LIMIT,
    TOO_FEW_REWARDS,
    UNCREDITED,
    UNEVEN_LOGPROBS,
    WITH_IMAGES,
)
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition
from leyden.core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

CREDIT_FIELD = "leyden_credit"
"""Field of a row: (return, weight, number of response tokens) of its transition, as float64."""


TOO_FEW = (TOO_FEW_REWARDS, NO_CREDITED_CALL)
"""Reasons for dropping a group that do not depend on the other groups of its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """What a row may be: its most tokens in VERL, and how VERL computes log-probabilities."""

    prompt: int
    """Maximum number of prompt tokens, `data.max_prompt_length`."""
    response: int
    """Maximum number of response tokens, `data.max_response_length`."""
    temperature: float = 1.0
    """`actor_rollout_ref.rollout.temperature`, the same for all rows."""
    sampling: RowSampling | None = None
    """Packs what else changed the logits of a response; None if VERL's engine cannot apply that to its own logits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One transition for VERL."""

    uid: str
    """VERL's name of the prompt; without `_`, which separates the parts of keys."""
    session: int
    """Index of the rollout among those of the prompt."""
    place: int
    """Index of the transition in the rollout; left-out transitions count."""
    prompt_ids: TokenIds
    """P token ids: the state."""
    response_ids: TokenIds
    """T token ids: the action. The policy generated all of them, so all are trained."""
    logprobs: LogProbs
    """T behaviour log-probabilities."""
    credit: float
    """The return of the transition."""
    weight: float
    """Weight of the transition in training; above 0."""
    reward: float
    """Reward of the whole rollout, for VERL's metrics."""
    turns: int
    """Number of transitions in the rollout; left-out transitions count."""
    min_version: int
    """The oldest policy version that generated one of the tokens."""
    max_version: int
    """The newest policy version that generated one of the tokens."""
    sampling: bytes = UNADJUSTED
    """What changed the logits of the response besides the temperature; see `row_sampling`."""

    @property
    def key(self) -> str:
        """VERL's key of the row."""
        return f"{self.uid}_{self.session}_{self.place}"

    def fields(self, *, validate: bool = False) -> "dict[str, Any]":
        """Return the row's fields for VERL: 1-D tensors without padding, and plain values.

        `prompts` has P ids, `responses` T ids; `input_ids` and `position_ids` have P + T. Masks, behaviour
        log-probabilities and `rm_scores` have T values; the scores are 0 except for the credit on the last token.
        `leyden_credit` holds 3 float64, `leyden_sampling` bytes. VERL passes a registered estimator no keys, so in
        training `uid` is the row's key. In validation it is the prompt's, because VERL groups by it.
        """
        import torch

        prompt_P, response_T = (
            torch.as_tensor(np.asarray(ids, dtype=np.int64)) for ids in (self.prompt_ids, self.response_ids)
        )
        ids = torch.cat([prompt_P, response_T])
        mask_T = torch.ones(len(response_T), dtype=torch.int64)
        scores_T = torch.zeros(len(response_T))
        scores_T[-1] = self.credit
        return {
            "prompts": prompt_P,
            "responses": response_T,
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "response_mask": mask_T,
            "loss_mask": mask_T,
            "rollout_log_probs": torch.as_tensor(np.asarray(self.logprobs, dtype=np.float32)),
            "rm_scores": scores_T,
            CREDIT_FIELD: self._credit(),
            SAMPLING_FIELD: torch.frombuffer(bytearray(self.sampling), dtype=torch.uint8),
            "uid": self.uid if validate else self.key,
            "session_id": self.session,
            "num_turns": self.turns,
            # Not named `reward`: VERL's validation stores the scores under that name, and would mix the two.
            "extra_fields": {"reward_extra_info": {"rollout_reward": self.reward}},
            "multi_modal_inputs": {},
        }

    def tag(self, step: int) -> dict[str, Any]:
        """Return the row's tag in VERL's queue; `step` is the step for which VERL sampled the prompt."""
        prompt, response = len(self.prompt_ids), len(self.response_ids)
        return {
            "status": "success",
            "prompt_len": prompt,
            "response_len": response,
            "seq_len": prompt + response,
            "global_steps": step,
            "min_global_steps": self.min_version,
            "max_global_steps": self.max_version,
        }

    def _credit(self) -> "Tensor":
        import torch

        return torch.tensor([self.credit, self.weight, len(self.response_ids)], dtype=torch.float64)


@dataclass(slots=True)
class PromptRows:
    """The rows made from the rollouts of one prompt, and what was left out."""

    rows: list[Row] = field(default_factory=list[Row])
    untrained: dict[str, str] = field(default_factory=dict[str, str])
    """Transitions without a row: span id to the reason why."""
    rollouts_left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of rollouts without a row, by the reason why; their transitions are not counted separately."""
    dropped: str | None = None
    """Reason why all rows of the prompt were dropped because they give no training signal; None if they were not."""
    witness: Row | None = None
    """The shortest row of a dropped prompt, used because VERL cannot take a step without a trained token.

    Alone in its group it is compared with nothing, so its advantage is 0 and it does not change the result.
    """
    account: Account = field(default_factory=Account)
    """Account of every rollout, and of their calls."""

    @property
    def calls_left_out(self) -> Counter[str]:
        """Number of transitions without a row, by the reason why."""
        return Counter(self.untrained.values())


def training_rows(
    uid: str, group: TrajectoryGroup, credit: CreditAssigner, advantage: AdvantageEstimator, limits: RowLimits
) -> PromptRows:
    """Return a row for each transition of `group` that can be trained; `uid` is VERL's name of the prompt.

    Credit is assigned over whole rollouts before anything is left out. A group is dropped if `advantage` cannot compare
    its rollouts, or if it gives no training signal regardless of the other groups. Raises TrainingError if the credit
    does not match a rollout's transitions.
    """
    found = PromptRows()
    sessions: list[list[Row]] = []
    for session, trajectory in enumerate(group.trajectories):
        rows, reason = _session_rows(uid, session, trajectory, credit, limits, found.untrained)
        if reason is not None:
            found.rollouts_left_out[reason] += 1
        if reason not in (NO_REWARD, NO_CALL):
            sessions.append(rows)
    found.rows = [row for rows in sessions for row in rows]
    found.dropped = _reason_to_drop(sessions, advantage) if found.rows else None
    if found.dropped is not None:
        found.witness = min(found.rows, key=lambda row: len(row.response_ids))
        found.rows = []
    found.account = _account(group, found)
    return found


def _account(group: TrajectoryGroup, found: PromptRows) -> Account:
    rewarded = [trajectory for trajectory in group.trajectories if trajectory.reward is not None] if found.rows else []
    spans = {call.span_id for trajectory in rewarded for call in trajectory.transitions}
    return account_of([group], spans - found.untrained.keys(), calls=found.untrained, dropped=[found.dropped])


def validation_rows(uid: str, group: TrajectoryGroup) -> PromptRows:
    """Return one row for each rewarded rollout of `group`: its last transition, with the reward on the last token.

    VERL reads the reward from it, and the texts for its log. Nothing is trained, so no limit applies.
    """
    found = PromptRows()
    for session, trajectory in enumerate(group.trajectories):
        whole_calls = [(place, call) for place, call in enumerate(trajectory.transitions) if _is_whole(call)]
        if trajectory.reward is None:
            found.rollouts_left_out[NO_REWARD] += 1
        elif not whole_calls:
            found.rollouts_left_out[NO_CALL] += 1
        else:
            place, call = whole_calls[-1]
            credit = (trajectory.reward, 1.0)
            found.rows.append(_row(uid, session, place, call, credit, trajectory.reward, len(trajectory.transitions)))
    return found


def _session_rows(
    uid: str, session: int, trajectory: Trajectory, scheme: CreditAssigner, limits: RowLimits, left_out: dict[str, str]
) -> tuple[list[Row], str | None]:
    """Return the rows of one rollout, and the reason if there is none.

    For a rewarded rollout, the calls that are left out are added to `left_out`, with the reason why.
    """
    if trajectory.reward is None:
        return [], NO_REWARD
    credit = credit_of(trajectory, scheme)
    if credit is None:
        return [], NO_CALL if not trajectory.transitions else NO_REWARD
    rows: list[Row] = []
    answerable = zip(credit.returns_N.tolist(), credit.weights_N.tolist(), strict=True)
    for place, (call, (value, weight)) in enumerate(zip(trajectory.transitions, answerable, strict=True)):
        reason = UNCREDITED if weight == 0 else _unfit(call, limits)
        sampling = _packed_sampling(call, limits.sampling) if reason is None else None
        if sampling is None:
            left_out[call.span_id] = reason or NOT_RECOMPUTED
            continue
        turns = len(trajectory.transitions)
        row = _row(uid, session, place, call, (value, weight), trajectory.reward, turns)
        rows.append(replace(row, sampling=sampling))
    return rows, None if rows else NO_CALL_LEFT


def _row(
    uid: str, session: int, place: int, call: Transition, credit: tuple[float, float], reward: float, turns: int
) -> Row:
    """Return a row; `credit` is the return and the weight of `call`."""
    versions = [version for version, _ in call.versions]
    return Row(
        uid=uid,
        session=session,
        place=place,
        prompt_ids=call.prompt_ids,
        response_ids=call.response_ids,
        logprobs=call.logprobs,
        credit=credit[0],
        weight=credit[1],
        reward=reward,
        turns=turns,
        min_version=min(versions),
        max_version=max(versions),
    )


def _packed_sampling(call: Transition, sampling: RowSampling | None) -> bytes | None:
    """Return the field of a row's sampling; None if it cannot be recomputed."""
    if sampling is None:
        return UNADJUSTED
    try:
        return sampling.packed(call)
    except TrainingError as error:
        log.warning("a call is not trained, because its sampling cannot be recomputed: %s", error)
        return None


def _is_whole(call: Transition) -> bool:
    return len(call.prompt_ids) > 0 and len(call.response_ids) > 0


def _unfit(call: Transition, limits: RowLimits) -> str | None:
    """Return why a transition cannot be a row; None if it can."""
    reasons = {
        EMPTY_PROMPT: len(call.prompt_ids) == 0,
        EMPTY_RESPONSE: len(call.response_ids) == 0,
        UNEVEN_LOGPROBS: len(call.logprobs) != len(call.response_ids),
        WITH_IMAGES: bool(call.images),
        ADJUSTED_SAMPLING: call.sampling is not None and limits.sampling is None,
        OTHER_TEMPERATURE: call.temperature != limits.temperature,
        PROMPT_OVER_LIMIT: len(call.prompt_ids) > limits.prompt,
        RESPONSE_OVER_LIMIT: len(call.response_ids) > limits.response,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _reason_to_drop(sessions: Sequence[Sequence[Row]], advantage: AdvantageEstimator) -> str | None:
    """Return why a group gives no training signal, as far as that does not depend on the other groups of its step."""
    if advantage.needs_values:
        return None  # the critic learns from every state
    group = [CreditedRollout(returns_N=np.array([row.credit for row in rows])) for rows in sessions]
    reason = advantage.estimate([group])[0].dropped
    return reason if isinstance(advantage, GroupEstimator) or reason in TOO_FEW else None
