"""`Sampling`: the sampling parameters of one model call."""

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of one model call."""

    temperature: float = 1.0
    """0 means greedy decoding."""
    top_p: float = 1.0
    top_k: int | None = None
    """Number of most likely tokens to sample from; None for all tokens."""
    max_tokens: int | None = None
    """None: as many tokens as the model's context holds."""
    stop: tuple[str, ...] = ()
    seed: int | None = None

    @property
    def trainable(self) -> bool:
        """Whether the recorded log-probabilities suffice to recompute the sampling distribution in the loss.

        With truncation (top-p below 1, or top-k), the loss would also need the truncation mask. With greedy decoding,
        tokens are not sampled at all.
        """
        return self.temperature > 0 and self.top_p == 1.0 and not self.top_k
