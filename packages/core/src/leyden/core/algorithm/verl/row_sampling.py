"""Sampling of rows: what changed the logits that a row's response was sampled from, as one field of the row.

VERL computes log-probabilities from a model's logits and one temperature. What else changed the logits is applied by
`inside_verl.adjusting_engine` in VERL's workers. The masks of a grammar are computed when the row is made, so that
workers need neither a tokenizer nor a grammar library. This module does not import VERL.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from leyden.core.data.encoding.token_sets import pack_token_sets, unpack_token_sets
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Transition
from leyden.core.errors import LeydenError, TrainingError

if TYPE_CHECKING:
    from leyden.core.engine.embedded.adjusted_logits import Adjustment
    from leyden.core.policy.adjusted_responses import AdjustedResponses

SAMPLING_FIELD = "leyden_sampling"
"""Field of a row: the bytes that `RowSampling.packed` returns, or `UNADJUSTED`."""
UNADJUSTED = b"\0"
"""The field of a row whose response was sampled from the model's logits and a temperature alone."""
STRATEGIES = ("fsdp", "fsdp2")
"""VERL's training engines whose logits can be adjusted, by `actor_rollout_ref.actor.strategy`."""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """The sampling of one response; `kept` is the packed sets of the tokens that could be sampled."""

    sampling: Sampling
    kept: bytes | None


_RECORD = msgspec.msgpack.Decoder(_Record)


class RowSampling:
    """Packs how responses of one policy were sampled. `policy` returns its tokenizer's folder and number of logits."""

    def __init__(self, policy: Callable[[], tuple[str, int]]) -> None:
        self._policy = policy
        self._responses: AdjustedResponses | None = None

    def packed(self, call: Transition) -> bytes:
        """Return a row's field; raises TrainingError if the response's distribution cannot be recomputed."""
        if call.sampling is None:
            return UNADJUSTED
        from leyden.core.policy.adjusted_responses import AdjustedResponses

        try:
            if self._responses is None:
                self._responses = AdjustedResponses(*self._policy())
            masks_TW = self._responses.masks(call)
        except (LeydenError, OSError, ValueError) as error:
            raise TrainingError(f"call {call.span_id} of rollout {call.rollout_id}: {error}") from error
        kept = call.kept
        if kept is None and masks_TW is not None:
            kept = pack_token_sets([masks_TW])
            if kept is None:
                raise TrainingError(f"call {call.span_id} of rollout {call.rollout_id}: its masks are too large")
        # of the rest, workers need only what changes logits
        sampling = msgspec.structs.replace(call.sampling, grammar="", stop=(), stop_ids=())
        return msgspec.msgpack.encode(_Record(sampling, kept))


def adjustments(packed: bytes, prompt_ids: Sequence[int], response_ids: Sequence[int]) -> "list[Adjustment]":
    """Return the adjustment of each token of a row's response, from a field that is not `UNADJUSTED`."""
    from leyden.core.engine.embedded.adjusted_logits import ResponseSoFar

    record = _RECORD.decode(packed)
    sets_TW = None if record.kept is None else unpack_token_sets(record.kept, len(response_ids))
    so_far = ResponseSoFar(prompt_ids, record.sampling)
    found: list[Adjustment] = []
    for at, token in enumerate(response_ids):
        found.append(so_far.adjustment(None if sets_TW is None else sets_TW[at]))
        so_far.take(token)
    return found


def can_adjust(config: Any) -> bool:
    """Return whether VERL's engines under this configuration have logits of whole sequences to adjust."""
    part = config.actor_rollout_ref
    engines = [part.actor, part.ref]
    return not part.model.get("use_fused_kernels", False) and all(
        engine.strategy in STRATEGIES
        and engine.get("ulysses_sequence_parallel_size", 1) == 1
        and engine.fsdp_config.get("ulysses_sequence_parallel_size", 1) == 1
        for engine in engines
    )
