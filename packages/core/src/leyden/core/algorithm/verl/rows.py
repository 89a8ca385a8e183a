"""Rows: the transitions of one prompt's rollouts as VERL trains them, one row each. Imports nothing of VERL.

Invariant: a row's ids are its transition's, whole. A transition that does not fit is left out and counted, never cut: a
cut prompt is another state than the one that was acted in, and a cut response another action.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from leyden.core.advantage.base import AdvantageEstimator, CreditedRollout, GroupEstimator
from leyden.core.algorithm.account import Account, account_of
from leyden.core.algorithm.advantage_pipeline import credit_of
from leyden.core.credit.base import CreditAssigner
from leyden.core.data.encoding.tokens import LogProbs, TokenIds
from leyden.core.data.reasons import (
    EMPTY_PROMPT,
    EMPTY_RESPONSE,
    NO_CALL,
    NO_CALL_LEFT,
    NO_CREDITED_CALL,
    NO_REWARD,
    OTHER_TEMPERATURE,
    PROMPT_OVER_LIMIT,
    RESPONSE_OVER_LIMIT,
    TOO_FEW_REWARDS,
    UNCREDITED,
    UNEVEN_LOGPROBS,
)
from leyden.core.data.transition import Trajectory, TrajectoryGroup, Transition

if TYPE_CHECKING:
    from torch import Tensor

CREDIT_FIELD = "leyden_credit"
"""Field of a row: (return, weight, number of response tokens) of its transition, as float64."""


TOO_FEW = (TOO_FEW_REWARDS, NO_CREDITED_CALL)
"""Reasons why a group has no row, whatever the other groups of its step are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """What a row may be: as many tokens as VERL was told of, all drawn at the temperature that it replays."""

    prompt: int
    """Tokens, `data.max_prompt_length`."""
    response: int
    """Tokens, `data.max_response_length`."""
    temperature: float = 1.0
    """`actor_rollout_ref.rollout.temperature`, one for all rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One transition for VERL."""

    uid: str
    """VERL's name of the prompt; without `_`, which parts the keys."""
    session: int
    """Number of the rollout among those of the prompt."""
    place: int
    """Number of the transition among those of the rollout, those left out included."""
    prompt_ids: TokenIds
    """P ids: the state."""
    response_ids: TokenIds
    """T ids: the action, each of which the policy drew, so all of them are trained."""
    logprobs: LogProbs
    """T behaviour log-probabilities."""
    credit: float
    """What the transition is answerable for: its return."""
    weight: float
    """How strongly it is trained; above 0."""
    reward: float
    """Of the whole rollout, for VERL's metrics."""
    turns: int
    """Transitions of the rollout, those left out included."""
    min_version: int
    """The oldest weights that drew one of the tokens."""
    max_version: int
    """The newest."""

    @property
    def key(self) -> str:
        """VERL's name of the row."""
        return f"{self.uid}_{self.session}_{self.place}"

    def fields(self, *, validate: bool = False) -> "dict[str, Any]":
        """Return what VERL stores of the row: 1-D tensors without padding, and plain values.

        P ids of the prompt and T of the response, then both (`input_ids`, `position_ids`: P + T); masks, behaviour
        log-probabilities and `rm_scores`, T each, the latter 0 but for the credit on the last token. A registered
        estimator is shown no keys, so `uid` is the row's key where it trains, and the prompt's where it validates,
        which VERL groups by. `leyden_credit` holds 3 float64.
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
            "uid": self.uid if validate else self.key,
            "session_id": self.session,
            "num_turns": self.turns,
            # Under the name `reward` VERL's validation keeps the scores, and would count these among them.
            "extra_fields": {"reward_extra_info": {"rollout_reward": self.reward}},
            "multi_modal_inputs": {},
        }

    def tag(self, step: int) -> dict[str, Any]:
        """Return what VERL's queue knows of the row; `step` is the one the prompt was drawn for."""
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
    """What the rollouts of one prompt came to, and what is missing from it."""

    rows: list[Row] = field(default_factory=list[Row])
    untrained: dict[str, str] = field(default_factory=dict[str, str])
    """Transitions without a row: the span's id to the reason why."""
    rollouts_left_out: Counter[str] = field(default_factory=Counter[str])
    """Rollouts without a row, by the reason why; their transitions are not counted again."""
    dropped: str | None = None
    """Why the whole prompt has no row, though it had some: it would have taught nothing."""
    witness: Row | None = None
    """The shortest row of a prompt that was dropped: VERL cannot take a step without a token to learn from.

    Alone it is compared with nothing, so it has no advantage and no say.
    """
    account: Account = field(default_factory=Account)
    """What became of every rollout, and of their calls."""

    @property
    def calls_left_out(self) -> Counter[str]:
        """Transitions without a row, counted by the reason why."""
        return Counter(self.untrained.values())


def training_rows(
    uid: str, group: TrajectoryGroup, credit: CreditAssigner, advantage: AdvantageEstimator, limits: RowLimits
) -> PromptRows:
    """Return a row for each transition of `group` that can be trained; `uid` is VERL's name of the prompt.

    Credit is assigned over whole rollouts, before anything is left out. A group that `advantage` cannot compare, or
    that has nothing to teach whatever the other groups are, is dropped. Raises TrainingError for credit that does not
    match a rollout's transitions.
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
    rewarded = [one for one in group.trajectories if one.reward is not None] if found.rows else []
    spans = {call.span_id for trajectory in rewarded for call in trajectory.transitions}
    return account_of([group], spans - found.untrained.keys(), calls=found.untrained, dropped=[found.dropped])


def validation_rows(uid: str, group: TrajectoryGroup) -> PromptRows:
    """Return one row for each rewarded rollout of `group`: its last transition, with the reward on its last token.

    VERL reads from it the reward, and the texts for its log; nothing is trained, so no limit applies.
    """
    found = PromptRows()
    for session, trajectory in enumerate(group.trajectories):
        spoken = [(place, call) for place, call in enumerate(trajectory.transitions) if _is_whole(call)]
        if trajectory.reward is None:
            found.rollouts_left_out[NO_REWARD] += 1
        elif not spoken:
            found.rollouts_left_out[NO_CALL] += 1
        else:
            place, call = spoken[-1]
            credit = (trajectory.reward, 1.0)
            found.rows.append(_row(uid, session, place, call, credit, trajectory.reward, len(trajectory.transitions)))
    return found


def _session_rows(
    uid: str, session: int, trajectory: Trajectory, scheme: CreditAssigner, limits: RowLimits, left_out: dict[str, str]
) -> tuple[list[Row], str | None]:
    """Return the rows of one rollout, and why there is none; counts the calls left out of one that has a reward."""
    if trajectory.reward is None:
        return [], NO_REWARD
    credit = credit_of(trajectory, scheme)
    if credit is None:
        return [], NO_CALL if not trajectory.transitions else NO_REWARD
    rows: list[Row] = []
    answerable = zip(credit.returns_N.tolist(), credit.weights_N.tolist(), strict=True)
    for place, (call, (value, weight)) in enumerate(zip(trajectory.transitions, answerable, strict=True)):
        reason = UNCREDITED if weight == 0 else _unfit(call, limits)
        if reason is None:
            turns = len(trajectory.transitions)
            rows.append(_row(uid, session, place, call, (value, weight), trajectory.reward, turns))
        else:
            left_out[call.span_id] = reason
    return rows, None if rows else NO_CALL_LEFT


def _row(
    uid: str, session: int, place: int, call: Transition, credit: tuple[float, float], reward: float, turns: int
) -> Row:
    """Return a row; `credit` is the return of `call` and its weight."""
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


def _is_whole(call: Transition) -> bool:
    return len(call.prompt_ids) > 0 and len(call.response_ids) > 0


def _unfit(call: Transition, limits: RowLimits) -> str | None:
    """Why a transition cannot be a row, or None."""
    reasons = {
        EMPTY_PROMPT: len(call.prompt_ids) == 0,
        EMPTY_RESPONSE: len(call.response_ids) == 0,
        UNEVEN_LOGPROBS: len(call.logprobs) != len(call.response_ids),
        OTHER_TEMPERATURE: call.temperature != limits.temperature,
        PROMPT_OVER_LIMIT: len(call.prompt_ids) > limits.prompt,
        RESPONSE_OVER_LIMIT: len(call.response_ids) > limits.response,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _reason_to_drop(sessions: Sequence[Sequence[Row]], advantage: AdvantageEstimator) -> str | None:
    """Why a group teaches nothing, as far as it can be told without the other groups of its step."""
    if advantage.needs_values:
        return None  # the critic learns from every state
    group = [CreditedRollout(returns_N=np.array([row.credit for row in rows])) for rows in sessions]
    reason = advantage.estimate([group])[0].dropped
    return reason if isinstance(advantage, GroupEstimator) or reason in TOO_FEW else None
