"""Token record: what an update computed for each trained token, so that a step can be inspected later.

Invariant: the losses of all tokens of a step add up to the step's logged loss. A step of several optimizer steps logs
the mean of their losses, so each of their losses counts divided by their number. All other numbers are those of the
first optimizer step that read the token.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from leyden.core.data.transition import Transition
from leyden.core.errors import RunError
from leyden.core.policy.update.entries import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenNumbers:
    """Numbers of the T response tokens of one call, in order; of the N entries of an update, in any order of calls."""

    logprobs: Floats
    """Log-probabilities under the policy as it was when the loss was computed."""
    log_ratios: Floats
    """`logprobs` minus the log-probabilities in the denominator of the ratio; NaN if none were recorded."""
    advantages: Floats
    weights: Floats
    """Weights of the tokens in the loss, with the factor of a correction; 0 for a token that a correction masks."""
    losses: Floats
    """Weight × loss of each token."""
    clipped: Floats
    """1 where the loss limited the token's effect, else 0."""
    entropy: Floats
    """Entropy in nats of the distribution that the token was chosen from."""

    def at(self, index: Ints | slice) -> "TokenNumbers":
        """Return the numbers at these places."""
        return TokenNumbers(**{name: getattr(self, name)[index] for name in NAMES})

    @classmethod
    def joined(cls, parts: "Sequence[TokenNumbers]") -> "TokenNumbers":
        """Return the numbers of all parts, in order."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in NAMES})


NAMES = tuple(field.name for field in fields(TokenNumbers))


def by_transition(transition_N: Ints, numbers: TokenNumbers) -> dict[int, TokenNumbers]:
    """Divide the numbers of N entries by the index of their transition, keeping the order of each one's tokens."""
    order = np.argsort(transition_N, kind="stable")
    found, starts = np.unique(transition_N[order], return_index=True)
    parts = np.split(order, starts[1:])
    return {int(index): numbers.at(part) for index, part in zip(found, parts, strict=True)}


@dataclass(slots=True, eq=False)
class TrainedCall:
    """One trained call and the numbers of its response tokens."""

    transition: Transition
    numbers: TokenNumbers


class StepTokens:
    """Collects the numbers of a step's tokens over its optimizer steps."""

    def __init__(self) -> None:
        self._calls: dict[int, TrainedCall] = {}
        self._passes = 0

    def add(self, transitions: Sequence[Transition], transition_N: Ints, numbers: TokenNumbers) -> None:
        """Add an optimizer step; `transition_N` are the entries' indices in `transitions`."""
        self._passes += 1
        for index, own in by_transition(transition_N, numbers).items():
            call = transitions[index]
            known = self._calls.get(id(call))
            if known is None:
                self._calls[id(call)] = TrainedCall(call, own)
            else:
                known.numbers = replace(known.numbers, losses=known.numbers.losses + own.losses)

    def calls(self) -> list[TrainedCall]:
        """Return the calls; the losses of their tokens are means over the optimizer steps."""
        return [
            TrainedCall(call.transition, replace(call.numbers, losses=call.numbers.losses / self._passes))
            for call in self._calls.values()
        ]


class CallTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one trained call. Numbers are little-endian float32, packed; see `TokenNumbers`."""

    rollout_id: str
    attempt_id: str
    span_id: str
    logprobs: bytes
    log_ratios: bytes
    advantages: bytes
    weights: bytes
    losses: bytes
    clipped: bytes
    entropy: bytes

    def numbers(self) -> TokenNumbers:
        """Return the numbers of the call's response tokens."""
        return TokenNumbers(**{name: _unpacked(getattr(self, name)) for name in NAMES})


class PolicyTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Record of what one policy was trained on in a step."""

    loss: float
    """The logged loss."""
    optimizer_steps: int
    """Number of optimizer steps over which the loss is a mean."""
    calls: list[CallTokens]

    @classmethod
    def of(cls, loss: float, optimizer_steps: int, calls: Iterable[TrainedCall]) -> "PolicyTokens":
        """Return the record of a step."""
        return cls(loss=loss, optimizer_steps=optimizer_steps, calls=[_packed(call) for call in calls])


TokenRecord = Mapping[str, PolicyTokens]
"""Record of a step by policy, or by side in a run with sides."""


def encode(record: TokenRecord) -> bytes:
    """Return the compressed record of a step."""
    return zlib.compress(msgspec.msgpack.encode(record), level=1)


def decode(data: bytes) -> dict[str, PolicyTokens]:
    """Return the record that `encode` wrote. Raises RunError if the data is damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=dict[str, PolicyTokens])
    except (zlib.error, msgspec.MsgspecError) as error:
        raise RunError(f"the record of trained tokens cannot be read: {error}") from None


def calls_of(record: TokenRecord, attempt_id: str, span_id: str) -> Iterator[tuple[str, PolicyTokens, CallTokens]]:
    """Yield the records of one call, with the policy or side and its step."""
    for name, own in record.items():
        for call in own.calls:
            if (call.attempt_id, call.span_id) == (attempt_id, span_id):
                yield name, own, call


def _packed(call: TrainedCall) -> CallTokens:
    transition = call.transition
    return CallTokens(
        rollout_id=transition.rollout_id,
        attempt_id=transition.attempt_id,
        span_id=transition.span_id,
        **{name: getattr(call.numbers, name).astype("<f4").tobytes() for name in NAMES},
    )


def _unpacked(data: bytes) -> Floats:
    packed: NDArray[np.float32] = np.frombuffer(data, dtype="<f4")
    return packed.astype(np.float64)
