"""Update configuration: how a step's transitions change the weights, as one typed object.

It does not import torch, so that mistakes are reported at once. An option that the rest of the configuration would
ignore raises an error. None means that an option was not given.
"""

import math
from typing import ClassVar

import msgspec

from leyden.core.data.scheme import SchemeSettings
from leyden.core.errors import UsageError
from leyden.core.policy.losses.base import Loss
from leyden.core.policy.losses.registry import LOSSES
from leyden.core.policy.options import LoraOptions, Precision
from leyden.core.policy.update.correction import CORRECTIONS, Correction, Recomputed
from leyden.core.policy.update.entries import Normalisation
from leyden.core.policy.update.schedule import Schedule


class UpdateOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options that users set. The defaults are the tested setting; raises UsageError for values that cannot work."""

    deals: ClassVar[int | None] = 1
    """Transitions in a unit of the algorithm, which must match its loss; None: as many as the loss needs."""

    learning_rate: float = 1e-6
    """Peak learning rate; the default is for full weights of a model with some billion parameters.

    A tiny policy needs 1e-4 to 1e-3.
    """
    schedule: Schedule = "constant"
    """How the learning rate falls over the run's steps: constant, linear or cosine."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises to its peak."""
    decay_to: float | None = None
    """Share of the peak that a linear or cosine schedule ends at. Default: 0."""
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    """Number of passes over a step's transitions."""
    minibatches: int = 1
    """Optimizer steps per epoch; whole rollouts are assigned to each, at random if there are several."""
    token_budget: int | None = None
    """Padded tokens in one forward and backward pass. It changes speed and memory, never the gradient.

    Default: 4,096, or twice the longest rollout of a step if that is more. A large part of a group then fits into one
    row, whose prompt is read once.
    """
    normalisation: Normalisation = "token"
    """What has equal weight: every token, every rollout, or every token of every step (constant)."""
    tokens_per_rollout: int | None = None
    """Constant by which constant normalisation divides, in addition to the number of rollouts."""

    loss: SchemeSettings = "ppo_clip"
    """A loss's name, or `{name: ..., option: value}`; see `policy.losses`."""
    correction: SchemeSettings | None = None
    """Correction for tokens of stale weights or another implementation: recomputed, truncated or masked; None: none.

    Given in the same way as `loss`. It needs one forward pass for the trainer's log-probabilities before the step, and
    ratios are then taken against these.
    """

    kl_loss: float = 0.0
    """Coefficient of the KL to the initial policy in the loss.

    This option and kl_reward keep a copy of the initial weights, except with adapters, which are then turned off
    instead.
    """
    kl_estimator: str | None = None
    """Estimator of kl_loss: k2 (gradient of KL(policy ‖ initial)) or k3 (of KL(initial ‖ policy)). Default: k2."""
    kl_reward: float = 0.0
    """Coefficient of the KL to the initial policy as a reward of every token."""
    entropy_bonus: float = 0.0
    """Coefficient of the entropy that is added to the objective."""

    lora: LoraOptions | None = None
    """Train low-rank adapters with these options instead of the weights; `{}` for their defaults."""
    precision: Precision = "float32"
    """Precision of forward and backward passes: float32 or bfloat16. Weights and updates are float32 with both."""

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_ignored()
        self._check_terms(self.make_loss(), self.make_correction())

    def make_loss(self) -> Loss:
        """Return the loss with its options; raises UsageError for an unknown loss or option."""
        return LOSSES.make(self.loss)

    def make_correction(self) -> Correction | None:
        """Return the correction with its options, or None; raises UsageError for an unknown correction or option."""
        return None if self.correction is None else CORRECTIONS.make(self.correction)

    def scheme_settings(self) -> dict[str, SchemeSettings | None]:
        """Return the loss and the correction with all their options, including defaults."""
        correction = self.make_correction()
        return {
            "loss": LOSSES.settings(self.make_loss()),
            "correction": None if correction is None else CORRECTIONS.settings(correction),
        }

    @property
    def compares_with_reference(self) -> bool:
        """Whether the policy is compared with the initial policy, so that a copy of it is needed."""
        return bool(self.kl_loss or self.kl_reward or self.make_loss().reads_reference)

    def _check_numbers(self) -> None:
        for name in ("max_grad_norm", "epochs", "minibatches", "token_budget"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("learning_rate", "weight_decay", "warmup_steps", "kl_loss", "kl_reward", "entropy_bonus"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise UsageError(f"{name} must be a finite number, got {value}")
            if value < 0:
                raise UsageError(f"{name} must not be negative, got {value}")
        if self.decay_to is not None and not 0 <= self.decay_to <= 1:
            raise UsageError(
                f"decay_to is a share of the learning rate and must be between 0 and 1, got {self.decay_to}"
            )
        if self.kl_estimator == "k1":
            raise UsageError("kl_estimator k1 has no effect in a loss: its gradient is 0 on average; use k2 or k3")
        if self.kl_estimator not in (None, "k2", "k3"):
            raise UsageError(f"kl_estimator must be k2 or k3, got {self.kl_estimator!r}")

    def _check_ignored(self) -> None:
        constant = self.normalisation == "constant"
        if constant and not (self.tokens_per_rollout or 0) > 0:
            raise UsageError("constant normalisation needs tokens_per_rollout, a number above 0")
        if self.tokens_per_rollout is not None and not constant:
            raise UsageError(f"tokens_per_rollout has no effect with {self.normalisation} normalisation")
        if self.decay_to is not None and self.schedule == "constant":
            raise UsageError("decay_to has no effect on a constant schedule; choose linear or cosine")
        if self.kl_estimator is not None and not self.kl_loss:
            raise UsageError("kl_estimator has no effect without kl_loss")

    def _check_terms(self, loss: Loss, correction: Correction | None) -> None:
        if self.deals is not None and loss.together != self.deals:
            raise UsageError(
                f"loss {self.loss!r} takes {loss.together} transitions at a time, and this algorithm passes "
                f"{self.deals}"
            )
        if loss.together > 1 and self.normalisation != "token":
            raise UsageError(
                f"normalisation has no effect on loss {self.loss!r}: all of its units have the same weight"
            )
        if self.kl_reward and not loss.reads_advantages:
            raise UsageError(f"kl_reward has no effect on loss {self.loss!r}, which ignores rewards")
        if correction is None:
            return
        if not loss.reads_advantages:
            raise UsageError(f"correction has no effect on loss {self.loss!r}, which learns from tokens of any policy")
        if isinstance(correction, Recomputed) and not loss.reads_ratios:
            raise UsageError(f"correction 'recomputed' has no effect on loss {self.loss!r}, which does not use ratios")


class UpdateConfig(UpdateOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user's options, and what the algorithm adds to them."""

    deals: ClassVar[int | None] = None

    steps: int | None = None
    """Steps of the whole run, over which a linear or cosine schedule extends."""
    merge: bool = True
    """Read a rollout's calls as one sequence if one extends the other."""
    share_prefix: bool = True
    """Read a prefix that all sequences share only once, if that is exact for the model."""
    seed: int = 0
    """Seed for assigning rollouts to minibatches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule != "constant" and self.steps is None:
            raise UsageError(f"a {self.schedule} schedule needs steps, the length of the run")


def update_config(options: UpdateOptions, *, steps: int, seed: int) -> UpdateConfig:
    """Return the configuration of a run's updates; `options` are the algorithm's, which extend `UpdateOptions`."""
    given = {name: getattr(options, name) for name in UpdateOptions.__struct_fields__}
    return UpdateConfig(**given, steps=steps, seed=seed)
