"""`Updater`: updates a policy's weights from weighted transitions."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from leyden.core.data.transition import Transition
from leyden.core.errors import PolicyError, TrainingError
from leyden.core.policy.capability_checks import prove
from leyden.core.policy.device import allocation, is_out_of_memory, return_unused_memory
from leyden.core.policy.held_out import pair_numbers, token_numbers
from leyden.core.policy.losses.dpo import pair_weights
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.replay import replay
from leyden.core.policy.update.config import UpdateConfig
from leyden.core.policy.update.diagnostics import Diagnostics
from leyden.core.policy.update.entries import WeightedTransition, step_weights
from leyden.core.policy.update.gradient import AccumulatedGradient, accumulate
from leyden.core.policy.update.importance_stats import Mismatch, measure
from leyden.core.policy.update.merge import TokenSequence, merged, unmerged
from leyden.core.policy.update.objective import Objective
from leyden.core.policy.update.schedule import learning_rate_share
from leyden.core.policy.update.token_record import PolicyTokens, StepTokens, TrainedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The results of one step."""

    loss: float
    """Mean over the optimizer steps."""
    grad_norm: float
    """Gradient norm before clipping; the largest of the optimizer steps."""
    learning_rate: float
    mismatch: Mismatch
    """Mismatch of all tokens if a correction measures it, else of the first minibatch, before any weight changed."""
    diagnostics: Diagnostics
    """Diagnostics of all optimizer steps."""
    tokens: int
    """Response tokens trained, each counted once regardless of the number of epochs."""
    tokens_read: int
    """Tokens that the model processed, padding included, in all epochs."""
    transitions: int
    sequences: int
    """Number of token sequences that the transitions were read as, in one epoch."""
    rollouts: int
    optimizer_steps: int
    optimizer_steps_masked: int
    """Optimizer steps that were skipped because the correction had masked every token."""
    skipped: dict[str, int]
    """Number of transitions that could not be trained, by reason."""
    calls: list[TrainedCall]
    """The trained transitions with the numbers of their tokens."""

    @property
    def importance_ratio_deviation(self) -> float:
        """Largest |π / π_behaviour - 1| before any weight changed; only rounding if these weights made the tokens."""
        return self.mismatch.ratios.deviation

    def token_record(self) -> PolicyTokens:
        """Return the record of the trained tokens."""
        return PolicyTokens.of(self.loss, self.optimizer_steps + self.optimizer_steps_masked, self.calls)

    def metrics(self) -> dict[str, float]:
        """Return the report as flat metrics for a log."""
        return {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "learning_rate": self.learning_rate,
            **({"importance_ratio_deviation": self.importance_ratio_deviation} if self.mismatch.ratios.count else {}),
            **self.diagnostics.metrics(),
            **self.mismatch.metrics(),
            "tokens_trained": self.tokens,
            "tokens_read": self.tokens_read,
            "transitions_trained": self.transitions,
            "transitions_skipped": sum(self.skipped.values()),
            "sequences": self.sequences,
            "optimizer_steps": self.optimizer_steps,
            "optimizer_steps_masked": self.optimizer_steps_masked,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One optimizer step."""

    transitions: Sequence[Transition]
    accumulated: AccumulatedGradient
    grad_norm: float
    is_masked: bool
    """There was nothing to learn, so the optimizer step was skipped: its momentum would still move the weights."""
    sequences: int


class Updater:
    """Trains one policy with AdamW, one step of transitions at a time.

    Memory in float32: weights, gradients and AdamW's two moments take 16 bytes a parameter. A frozen copy of the
    initial weights takes 4 more; it is kept only if the loss or a KL coefficient above 0 needs it. With `config.lora`,
    which puts adapters into `model`: 4 bytes for each weight, and 16 for each adapter parameter.
    """

    def __init__(self, model: PolicyModel, config: UpdateConfig) -> None:
        self.model = model
        self.config = config
        model.precision = config.precision
        if config.lora is not None:
            model.adapt(config.lora, config.seed)
        self.steps_taken = 0
        """Successful calls of `step`; the learning rate's schedule depends on it."""
        self.reference = model.frozen_copy() if config.compares_with_reference else None
        """The initial policy, the reference of the KL; None if not needed."""
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=config.learning_rate,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=True,
        )
        for group in self.optimizer.param_groups:
            group["initial_lr"] = config.learning_rate
        self.changing = threading.Lock()
        """Lock held while weights and optimizer change, and while a checkpoint is being written from them."""
        self.generator = torch.Generator().manual_seed(config.seed)
        proved = prove(model)
        self._exactness = proved if config.share_prefix else replace(proved, shared_prefix=False, branches=False)
        self._objective = Objective(
            loss=config.make_loss(),
            kl=config.kl_loss,
            kl_estimator="k3" if config.kl_estimator == "k3" else "k2",
            entropy=config.entropy_bonus,
        )

    def step(self, trained: Sequence[WeightedTransition]) -> UpdateReport:
        """Update the weights from `trained`, and return a report.

        Raises TrainingError if there is nothing to train on, if a loss or gradient is not finite, or if the device has
        too little memory. The weights are then those of the last valid optimizer step.
        """
        try:
            return self._step(trained)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = allocation(error)
        # Outside the handler, where the tensors of the failed computation are no longer referenced.
        self.optimizer.zero_grad(set_to_none=True)
        return_unused_memory(self.model.device)
        raise TrainingError(self._out_of_memory(reason))

    def _step(self, trained: Sequence[WeightedTransition]) -> UpdateReport:
        usable, skipped = self._usable(trained)
        if not usable:
            raise TrainingError(f"no transition to train on: {len(trained)} given, skipped {skipped}")
        measured, mismatch = measure(self.model, self.reference, usable, self.config, self._exactness)
        learning_rate = self._set_learning_rate()
        per_epoch = [[self._optimize(part) for part in self._minibatches(measured)] for _ in range(self.config.epochs)]
        passes = [done for epoch in per_epoch for done in epoch]
        calls = StepTokens()
        for done in passes:
            calls.add(done.transitions, done.accumulated.transition_N, done.accumulated.numbers)
        self.steps_taken += 1
        return UpdateReport(
            loss=sum(done.accumulated.loss for done in passes) / len(passes),
            grad_norm=max(done.grad_norm for done in passes),
            learning_rate=learning_rate,
            mismatch=mismatch or Mismatch(ratios=passes[0].accumulated.diagnostics.ratios),
            diagnostics=Diagnostics.combined([done.accumulated.diagnostics for done in passes]),
            tokens=sum(len(item.transition.response_ids) for item in usable),
            tokens_read=sum(done.accumulated.tokens_read for done in passes),
            transitions=len(usable),
            sequences=sum(done.sequences for done in per_epoch[0]),
            rollouts=len({item.rollout for item in usable}),
            optimizer_steps=sum(not done.is_masked for done in passes),
            optimizer_steps_masked=sum(done.is_masked for done in passes),
            skipped=skipped,
            calls=calls.calls(),
        )

    def extra_state(self) -> dict[str, Any]:
        """Return further state for a checkpoint, besides model, optimizer and random states; empty by default.

        Values are tensors and plain values.
        """
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `extra_state` returned. Raises PolicyError if the state belongs to another kind of updater."""
        if state:
            raise PolicyError(f"the checkpoint holds {', '.join(sorted(state))}, which this run does not have")

    def held_out(self, trained: Sequence[WeightedTransition]) -> dict[str, float]:
        """Return metrics of the current policy on those of `trained` that it can read; changes nothing.

        `loss` is the mean -log π over response tokens. For a loss of pairs, the metrics are its mean over pairs,
        `accuracy` and `margin`. Raises TrainingError if no transition can be read.
        """
        usable, skipped = self._usable(trained)
        if not usable:
            raise TrainingError(f"no transition to measure: {len(trained)} given, skipped {skipped}")
        config, loss = self.config, self._objective.loss
        own = replay(self.model, usable, config.token_budget, self._exactness, merge=config.merge)
        if loss.together == 1:
            return token_numbers(own)
        first = [own_T + np.nan for own_T in own]
        if self.reference is not None:
            first = replay(self.reference, usable, config.token_budget, self._exactness, merge=config.merge)
        return pair_numbers(loss, usable, own, first)

    def _out_of_memory(self, reason: str) -> str:
        where = "the GPU" if self.model.device.type == "cuda" else "this machine"
        advice = ["lower token_budget"]
        if self.config.precision != "bfloat16":
            advice.append("compute in bfloat16 (precision=bfloat16)")
        if self.config.lora is None:
            advice.append("train adapters instead of all weights (lora.rank=16)")
        return f"{where} ran out of memory in an update: {reason}; {', or '.join(advice)}"

    def _set_learning_rate(self) -> float:
        """Set and return the learning rate of the next step."""
        config = self.config
        share = learning_rate_share(
            self.steps_taken, config.schedule, config.warmup_steps, config.steps, config.decay_to or 0.0
        )
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * share
        return self.optimizer.param_groups[0]["lr"]

    def _usable(self, trained: Sequence[WeightedTransition]) -> tuple[list[WeightedTransition], dict[str, int]]:
        """Return the transitions that can be trained, and the number of the others by reason.

        If one transition of a unit cannot be trained, the whole unit is skipped.
        """
        limit, size = self.model.context_length, self._objective.loss.together
        needs_logprobs = self._objective.loss.reads_ratios or self.config.correction is not None
        usable: list[WeightedTransition] = []
        skipped: Counter[str] = Counter()
        for at in range(0, len(trained), size):
            unit = trained[at : at + size]
            found = (
                _unreadable(item, self.model) or _unusable(item, limit, needs_logprobs=needs_logprobs) for item in unit
            )
            reasons = [reason for reason in found if reason]
            if reasons:
                skipped[reasons[0]] += len(unit)
            else:
                usable += unit
        return usable, dict(skipped)

    def _minibatches(self, trained: Sequence[WeightedTransition]) -> Iterator[list[WeightedTransition]]:
        if self.config.minibatches == 1:
            yield list(trained)
            return
        units = _units(trained, self._objective.loss.together)
        order = torch.randperm(len(units), generator=self.generator)
        for part in order.tensor_split(min(self.config.minibatches, len(units))):
            yield [item for index in part.numpy() for item in units[int(index)]]

    def _optimize(self, trained: Sequence[WeightedTransition]) -> _Pass:
        self.optimizer.zero_grad(set_to_none=True)
        if self._objective.loss.together > 1:
            sequences = unmerged(trained, pair_weights(trained))
        else:
            weights = step_weights(trained, self.config.normalisation, self.config.tokens_per_rollout)
            sequences = (merged if self.config.merge else unmerged)(trained, weights)
        accumulated = self._accumulate(trained, sequences)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm).item()
        if not torch.isfinite(torch.tensor([accumulated.loss, norm])).all():
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"loss {accumulated.loss} and gradient norm {norm} must be finite; the weights were not changed"
            )
        is_masked = norm == 0.0 and not any(sequence.entries.weight_N.any() for sequence in sequences)
        if not is_masked:
            with self.changing:
                self.optimizer.step()
        transitions = [item.transition for item in trained]
        return _Pass(
            transitions=transitions,
            accumulated=accumulated,
            grad_norm=norm,
            is_masked=is_masked,
            sequences=len(sequences),
        )

    def _accumulate(
        self, trained: Sequence[WeightedTransition], sequences: Sequence[TokenSequence]
    ) -> AccumulatedGradient:
        """Compute the gradient of `sequences`, into which `trained` were merged, and leave it in the model."""
        return accumulate(self.model, sequences, self._objective, self.config.token_budget, self._exactness)


def _units(trained: Sequence[WeightedTransition], together: int) -> list[Sequence[WeightedTransition]]:
    """Return the parts that minibatches are made of: whole rollouts, or the loss's units of several transitions."""
    if together > 1:
        return [trained[at : at + together] for at in range(0, len(trained), together)]
    by_rollout: dict[tuple[str, str], list[WeightedTransition]] = {}
    for item in trained:
        by_rollout.setdefault(item.rollout, []).append(item)
    return list(by_rollout.values())


def _unreadable(item: WeightedTransition, model: PolicyModel) -> str | None:
    return "images" if item.transition.images and not model.images.takes_images else None


def _unusable(item: WeightedTransition, context_length: int | None, *, needs_logprobs: bool) -> str | None:
    """Return why a transition cannot be trained, or None; with `needs_logprobs`, its tokens need log-probabilities."""
    transition = item.transition
    if not transition.prompt_ids:
        return "empty prompt"
    if not transition.response_ids:
        return "empty response"
    if len(transition.logprobs) != len(transition.response_ids) and (needs_logprobs or transition.logprobs):
        return "log-probabilities do not match the response"
    if transition.temperature <= 0:
        return "greedy sampling"
    if context_length is not None and len(transition.prompt_ids) + len(transition.response_ids) > context_length:
        return "longer than the model's context"
    return None
