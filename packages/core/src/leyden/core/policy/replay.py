"""Replay: recomputes the log-probabilities of recorded responses under a model, without gradients.

It reads sequences in the same way as the gradient computation. A policy compared with itself therefore differs by
nothing or by rounding.
"""

from collections.abc import Sequence

import numpy as np
import torch

from leyden.core.policy.capability_checks import Capabilities
from leyden.core.policy.logprobs import entry_logprobs
from leyden.core.policy.model import PolicyModel
from leyden.core.policy.update.entries import Floats, WeightedTransition
from leyden.core.policy.update.merge import TokenSequence, merged, unmerged
from leyden.core.policy.update.micro_batches import micro_batches, shared_prefix
from leyden.core.policy.update.shared_prefix import SharedPrefix

WORTH_SHARING = 16
"""Minimum length of a shared prefix in tokens; shorter ones cost more to share than to read again."""


def read_prefix(
    model: PolicyModel, sequences: Sequence[TokenSequence], exactness: Capabilities
) -> tuple[SharedPrefix | None, int]:
    """Read the prefix that all `sequences` share, if it is long enough; return it and its length, or (None, 0)."""
    if not exactness.shared_prefix or len(sequences) < 2:
        return None, 0
    length = shared_prefix(sequences)
    if length < WORTH_SHARING:
        return None, 0
    prefix = SharedPrefix.read(model, sequences[0].ids[:length], sequences[0].images)
    return prefix, 0 if prefix is None else length


@torch.no_grad()
def replay(
    model: PolicyModel,
    trained: Sequence[WeightedTransition],
    token_budget: int | None,
    exactness: Capabilities,
    *,
    merge: bool = True,
) -> list[Floats]:
    """Return the log-probabilities of each transition's response, at the temperature it was sampled at."""
    sequences = (merged if merge else unmerged)(trained, [0.0] * len(trained))
    prefix, length = read_prefix(model, sequences, exactness)
    found: dict[int, Floats] = {}
    width = model.width if exactness.branches else None
    for batch in micro_batches(sequences, token_budget, length, width=width):
        part = batch.to(model.device, model.dtype)
        logprobs_N, _ = entry_logprobs(model, part, prefix, plain_head=exactness.plain_head)
        numbers_N, values_N = batch.transition_N.numpy(), logprobs_N.double().cpu().numpy()
        starts = np.flatnonzero(np.diff(numbers_N, prepend=-1))
        found |= dict(zip(numbers_N[starts].tolist(), np.split(values_N, starts[1:]), strict=True))
    return [found[index] for index in range(len(trained))]
