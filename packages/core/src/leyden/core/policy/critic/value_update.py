"""`ActorCritic`: updates a policy from weighted transitions, and its critic from value targets."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leyden.core.data.transition import Transition
from leyden.core.errors import PolicyError, TrainingError
from leyden.core.policy.critic.critic import Critic, first_of_each, readable, states
from leyden.core.policy.critic.options import CriticOptions, OwnBackbone, SharedBackbone
from leyden.core.policy.critic.value_loss import ValueTarget, value_loss
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import read_prefix
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.entries import Floats, WeightedTransition
from leyden.core.policy.update.gradient import AccumulatedGradient, accumulate
from leyden.core.policy.update.merge import TokenSequence
from leyden.core.policy.update.micro_batches import micro_batches
from leyden.core.policy.update.token_record import PolicyTokens
from leyden.core.policy.update.updater import Updater, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReport:
    """Quality of the critic before the step, and results of its update."""

    loss: float
    """Mean over the optimizer steps."""
    grad_norm: float
    """Gradient norm before clipping, the largest of the optimizer steps; only the head's with a shared backbone."""
    clip_fraction: float
    """Share of states whose gradient the clip removed, over all optimizer steps."""
    explained_variance: float | None
    """1 - Var(G - V) / Var(G), with V from before the step; None if G is constant.

    1 means exact; 0 means no better than a constant.
    """
    value_mean: float
    target_mean: float
    states: int

    def metrics(self) -> dict[str, float]:
        """Return the report as flat metrics for a log."""
        numbers = {
            "value_loss": self.loss,
            "value_grad_norm": self.grad_norm,
            "value_clip_fraction": self.clip_fraction,
            "value_mean": self.value_mean,
            "value_target_mean": self.target_mean,
            "value_states": self.states,
        }
        if self.explained_variance is not None:
            numbers["value_explained_variance"] = self.explained_variance
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticReport:
    """The results of one step."""

    policy: UpdateReport | None
    """None in a warm-up step, in which the policy does not change."""
    value: ValueReport

    def token_record(self) -> PolicyTokens | None:
        """Return the record of the tokens that the policy was trained on; None in a warm-up step."""
        return None if self.policy is None else self.policy.token_record()

    def metrics(self) -> dict[str, float]:
        """Return both reports as flat metrics for a log."""
        none = {"tokens_trained": 0, "transitions_trained": 0, "optimizer_steps": 0}
        policy = none if self.policy is None else self.policy.metrics()
        return {**policy, **self.value.metrics(), "critic_only": int(self.policy is None)}


@dataclass(slots=True)
class _ValuePass:
    """One optimizer step, added up over its micro-batches."""

    states: int
    loss: float = 0.0
    clipped: int = 0
    grad_norm: float = 0.0


class ActorCritic(Updater):
    """Trains a policy, and a critic on the policy's states, which all have the same weight in the critic's loss.

    The targets are whole returns (lambda 1). They are unbiased even while the critic is wrong, and rollouts have few
    calls. The critic's value before the step, `Transition.value`, was used for the advantages. It is also the centre of
    PPO's clip, and is not computed again.
    """

    def __init__(self, model: PolicyModel, config: UpdateConfig, options: CriticOptions) -> None:
        super().__init__(model, config)
        self.options = options
        self.critic = Critic.on(model) if options.shared else Critic.beside_policy(model)
        self.critic_steps = 0
        """Successful calls of `learn`; warm-up depends on it."""
        rate = options.learning_rate
        group: dict[str, Any] = {"params": list(self.critic.parameters()), "lr": rate, "initial_lr": rate}
        self.critic_optimizer: torch.optim.Optimizer = self.optimizer
        if options.shared:
            self.optimizer.add_param_group(group)
        else:
            self.critic_optimizer = torch.optim.AdamW(
                [group], betas=config.betas, weight_decay=config.weight_decay, fused=True
            )
        self._target_by_call: dict[int, ValueTarget] = {}
        self._passes: list[_ValuePass] = []

    @property
    def warming_up(self) -> bool:
        """Whether the next step trains only the critic."""
        return self.critic_steps < self.options.warmup_steps

    def readable(self, call: Transition) -> bool:
        """Return whether the state of `call` can have a value."""
        return readable(call, self.model.context_length)

    def values(self, calls: Sequence[Transition]) -> Floats:
        """Return the critic's value of the state before each of `calls`."""
        return self.critic.values(calls, self.config.token_budget, self._exactness)

    def learn(self, trained: Sequence[WeightedTransition], targets: Sequence[ValueTarget]) -> ActorCriticReport:
        """Update the policy from `trained`, unless warming up, and the critic from `targets`; return a report.

        With a shared backbone the critic learns from the targets of the trained calls, in the same backward pass.
        Raises TrainingError if there is nothing to learn from, or if a loss or gradient is not finite.
        """
        if not targets:
            raise TrainingError("the critic has no state to learn from")
        self._passes = []
        self._target_by_call = {id(item.call): item for item in targets}
        policy = None if self.warming_up else self.step(trained)
        if policy is None or not self.options.shared:
            for part in self._target_minibatches(targets):
                self._fit(part)
        report = ActorCriticReport(policy=policy, value=_report(targets, self._passes))
        self._target_by_call = {}
        self.critic_steps += 1
        return report

    def extra_state(self) -> dict[str, Any]:
        """Return the critic's weights, its own optimizer's state if it has one, and its number of steps."""
        state: dict[str, Any] = {"critic": self.critic.weights(), "critic_steps": self.critic_steps}
        if not self.options.shared:
            state["critic_optimizer"] = self.critic_optimizer.state_dict()
        return state

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `extra_state` returned. Raises PolicyError if the state belongs to another kind of critic."""
        if state.keys() != self.extra_state().keys():
            found = ", ".join(sorted(state)) or "no critic"
            raise PolicyError(f"the checkpoint holds {found}, which does not fit this run's critic")
        self.critic.load_weights(state["critic"])
        self.critic_steps = int(state["critic_steps"])
        if not self.options.shared:
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])

    def _target_minibatches(self, targets: Sequence[ValueTarget]) -> Iterator[list[ValueTarget]]:
        """Yield the targets of each of the critic's optimizer steps, rollouts whole; a shared head takes one step."""
        epochs, parts = 1, 1
        if isinstance(self.options, OwnBackbone):
            epochs, parts = self.options.epochs, self.options.minibatches
        by_rollout: dict[tuple[str, str], list[ValueTarget]] = {}
        for item in targets:
            by_rollout.setdefault((item.call.rollout_id, item.call.attempt_id), []).append(item)
        rollouts = list(by_rollout.values())
        for _ in range(epochs):
            order = torch.arange(len(rollouts))
            if parts > 1:
                order = torch.randperm(len(rollouts), generator=self.generator)
            for part in order.tensor_split(min(parts, len(rollouts))):
                yield [item for index in part.numpy() for item in rollouts[int(index)]]

    def _fit(self, targets: Sequence[ValueTarget]) -> None:
        """Take one optimizer step of the critic alone."""
        self.critic_optimizer.zero_grad(set_to_none=True)
        loss = _StateLoss(self.critic, targets, 1.0, self.options.clip)
        sequences = states([item.call for item in targets], merge=self.config.merge)
        with self.critic.reading():
            prefix, length = read_prefix(self.critic.backbone, sequences, self._exactness)
        for batch in micro_batches(sequences, self.config.token_budget, length):
            part = batch.to(self.critic.backbone.device, self.critic.backbone.dtype)
            torch.autograd.backward(loss.of_values(part.transition_N, self.critic.of_batch(part, prefix)))
        if prefix is not None:
            prefix.backward()
        self._clip_critic(loss.seen)
        if not (math.isfinite(loss.seen.loss) and math.isfinite(loss.seen.grad_norm)):
            self.critic_optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"value loss {loss.seen.loss} and its gradient norm {loss.seen.grad_norm} must be finite; "
                "the critic was not changed"
            )
        with self.changing:
            self.critic_optimizer.step()
        self._passes.append(loss.seen)

    def _accumulate(
        self, trained: Sequence[WeightedTransition], sequences: Sequence[TokenSequence]
    ) -> AccumulatedGradient:
        if not isinstance(self.options, SharedBackbone):
            return super()._accumulate(trained, sequences)
        targets = [self._target_by_call[id(item.transition)] for item in trained]
        loss = _StateLoss(self.critic, targets, self.options.coefficient, self.options.clip)
        budget = self.config.token_budget
        accumulated = accumulate(self.model, sequences, self._objective, budget, self._exactness, loss.of_entries)
        self._clip_critic(loss.seen)
        self._passes.append(loss.seen)
        return accumulated

    def _clip_critic(self, seen: _ValuePass) -> None:
        seen.grad_norm = nn.utils.clip_grad_norm_(self.critic.parameters(), self.config.max_grad_norm).item()


class _StateLoss:
    """Coefficient × the mean value loss of M states, computed in any parts; counts the states it was given."""

    def __init__(self, critic: Critic, targets: Sequence[ValueTarget], coefficient: float, clip: float | None) -> None:
        self.critic, self.coefficient, self.clip = critic, coefficient, clip
        backbone = critic.backbone
        self.before_M = torch.tensor([item.before for item in targets], dtype=torch.float64, device=backbone.device)
        self.targets_M = torch.tensor([item.target for item in targets], dtype=torch.float64, device=backbone.device)
        self.seen = _ValuePass(states=len(targets))

    def of_entries(self, transition_N: Tensor, hidden_NH: Tensor) -> Tensor:
        """Return the loss of the transitions that a batch's entries belong to."""
        first_N = first_of_each(transition_N)
        return self.of_values(transition_N[first_N], self.critic.of_hidden(hidden_NH[first_N]))

    def of_values(self, transition_N: Tensor, values_N: Tensor) -> Tensor:
        """Return the loss of states, given their values."""
        before_N = self.before_M[transition_N].to(values_N.dtype)
        targets_N = self.targets_M[transition_N].to(values_N.dtype)
        loss_N, clipped_N = value_loss(values_N, before_N, targets_N, self.clip)
        mean = loss_N.sum() / self.seen.states
        self.seen.loss += mean.item()
        self.seen.clipped += int(clipped_N.sum().item())
        return self.coefficient * mean


def explained_variance(values_N: Floats, targets_N: Floats) -> float | None:
    """Return 1 - Var(G - V) / Var(G), at most 1 and without a lower bound; None if all G are equal."""
    if np.ptp(targets_N) == 0:
        return None
    return float(1.0 - np.var(targets_N - values_N) / np.var(targets_N))


def _report(targets: Sequence[ValueTarget], passes: Sequence[_ValuePass]) -> ValueReport:
    values_N = np.array([item.before for item in targets], dtype=np.float64)
    targets_N = np.array([item.target for item in targets], dtype=np.float64)
    return ValueReport(
        loss=math.fsum(done.loss for done in passes) / len(passes),
        grad_norm=max(done.grad_norm for done in passes),
        clip_fraction=sum(done.clipped for done in passes) / sum(done.states for done in passes),
        explained_variance=explained_variance(values_N, targets_N),
        value_mean=float(values_N.mean()),
        target_mean=float(targets_N.mean()),
        states=len(targets),
    )
