"""Policy options: which weights are trained, and in which precision. Does not import torch."""

from typing import Literal

import msgspec

from leyden.core.errors import UsageError

TOKEN_BUDGET = 4096
"""Default number of tokens in one forward and backward pass, padding included, unless a rollout is long."""
Precision = Literal["float32", "bfloat16"]
"""Precision of forward and backward passes; the weights themselves are float32."""


class LoraOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W + alpha / rank × B A, of which only A and B train."""

    rank: int = 16
    alpha: float | None = None
    """Scale of the adapters, times the rank. Default: 2 × rank."""
    target_modules: tuple[str, ...] | None = None
    """Names of linear layers, such as `q_proj`, or ends of such names. Default: every linear layer of the blocks."""
    dropout: float = 0.0
    """Must be 0; the option exists so that its error message explains why."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"lora.rank must be at least 1, got {self.rank}")
        if self.alpha is not None and not 0 < self.alpha < float("inf"):
            raise UsageError(f"lora.alpha must be above 0, got {self.alpha}")
        if self.target_modules is not None and not all(self.target_modules):
            raise UsageError(
                "lora.target_modules must be names of linear layers; leave it out for all layers of the blocks"
            )
        if self.target_modules == ():
            raise UsageError(
                "lora.target_modules is empty, so nothing would be trained; leave it out for all layers of the blocks"
            )
        if self.dropout:
            raise UsageError(
                f"lora.dropout is {self.dropout}, and must be 0: with dropout, the trained policy would differ from "
                "the served one, and importance ratios would be wrong"
            )

    @property
    def scale(self) -> float:
        """Alpha, or its default."""
        return 2.0 * self.rank if self.alpha is None else self.alpha
