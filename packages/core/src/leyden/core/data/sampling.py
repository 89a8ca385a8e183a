"""`Sampling`: the sampling parameters of one model call, and how a call's record holds them."""

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256

import msgspec

from leyden.core.data import semconv

LONG_GRAMMAR = 256
"""Length in characters above which a grammar has an attribute of its own in a call's record."""
_HASH = re.compile("sha256:[0-9a-f]{64}")


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of one model call, in the order in which they apply to the model's logits.

    `grammar` first removes the tokens that it does not allow. `logit_bias` is added. The penalties follow: the
    repetition penalty r divides a positive logit by r and multiplies a negative one by r, if the token is in the prompt
    or in the response so far. The frequency penalty is subtracted once for each time the token is in the response, the
    presence penalty if it is there at all. The logits are then divided by the temperature. `min_p`, `top_k` and
    `top_p` truncate the distribution, in this order. This is vLLM's order.
    """

    temperature: float = 1.0
    """0 means greedy decoding."""
    top_p: float = 1.0
    """0 leaves only the likeliest token."""
    max_tokens: int | None = None
    """None: as many tokens as the model's context holds."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    """Ids of tokens that end the response, besides the policy's own."""
    top_k: int = 0
    """Number of likeliest tokens that may be sampled; 0 means all."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one's probability are not sampled."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token id and the number that is added to its logit."""
    grammar: str = ""
    """Grammar of the response, in llguidance's Lark format; empty for none."""

    @property
    def truncates(self) -> bool:
        """Whether unlikely tokens are removed from the distribution; greedy decoding needs no truncation."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)

    @property
    def penalises(self) -> bool:
        """Whether a penalty or a bias changes the logits."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0 or self.logit_bias
        )

    @property
    def adjusts_logits(self) -> bool:
        """Whether anything but the temperature and truncation changes the distribution."""
        return bool(self.grammar) or self.penalises

    def recorded(self) -> dict[str, str]:
        """Return the attributes of a call's record: the parameters as JSON, and a long grammar beside them.

        The parameters then have the grammar's hash in its place. A store keeps such a text once for an attempt. Rarely
        used parameters are recorded only if they are set.
        """
        if len(self.grammar) <= LONG_GRAMMAR:
            return {semconv.SAMPLING_USED: _encoded(self)}
        hashed = msgspec.structs.replace(self, grammar=grammar_hash(self.grammar))
        return {semconv.SAMPLING_USED: _encoded(hashed), semconv.SAMPLING_GRAMMAR: self.grammar}


_ALWAYS = ("temperature", "top_p", "max_tokens", "stop", "seed")
_RECORDED = [
    (name, msgspec.UNSET if name in _ALWAYS else getattr(Sampling(), name)) for name in Sampling.__struct_fields__
]
"""Each parameter with the value that is not recorded; the usual parameters are always recorded."""


@lru_cache(256)  # most calls of a run have the same parameters
def _encoded(sampling: Sampling) -> str:
    values = {name: value for name, default in _RECORDED if (value := getattr(sampling, name)) != default}
    return msgspec.json.encode(values).decode()


def grammar_hash(grammar: str) -> str:
    """Return the hash that stands for a long grammar in a record; no grammar is such a text, as it has no `start`."""
    return f"sha256:{sha256(grammar.encode()).hexdigest()}"


def recorded_sampling(attributes: Mapping[str, object]) -> Sampling | None:
    """Return the sampling parameters in a call's record; None if it has none, or if they cannot be read."""
    used, grammar = attributes.get(semconv.SAMPLING_USED), attributes.get(semconv.SAMPLING_GRAMMAR)
    if not isinstance(used, str | bytes):
        return None
    try:
        found = msgspec.json.decode(used, type=Sampling)
    except msgspec.MsgspecError:
        return None
    if _HASH.fullmatch(found.grammar) is None:
        return found
    if not isinstance(grammar, str) or grammar_hash(grammar) != found.grammar:
        return None
    return msgspec.structs.replace(found, grammar=grammar)
