"""`ModelRequest`: what an agent asks of a model, checked, whichever dialect it spoke. Knows nothing of HTTP or engines.

What can be honoured is parsed; what is only a hint is accepted and recorded; anything else is refused as the provider
would refuse it, never ignored.
"""

from collections.abc import Mapping

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.gateway.codec import Forced, Message, ToolDefinition
from leyden.core.gateway.refusal import Refusal, invalid, unsupported
from leyden.core.masking import mask_json

MAX_TOP_LOGPROBS = 20
LARGEST_INTEGER = (1 << 63) - 1
"""Beyond it, and beyond its negative less one, nothing downstream can count."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding somebody else's JSON raises."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent asked for, as text."""

    model: str = ""
    stream: bool = False
    messages: str | None = None
    """JSON of the conversation that the model is to read."""
    tools: str | None = None
    rest: str = "{}"
    """JSON of the other fields of the request, hints included."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One checked request."""

    asked: Asked
    messages: list[Message]
    """The conversation in the shape of Chat Completions."""
    tools: list[ToolDefinition]
    """Empty where the agent forbids calls: the policy then does not see them either."""
    forced: Forced | None = None
    """The call that the answer must be, where the agent demands one."""
    parallel_tool_calls: bool = True
    choices: int = 1
    """Answers to draw."""
    logprobs: bool = False
    top_logprobs: int = 0
    sampling: Sampling
    """What the agent asked for, with the provider's defaults."""

    @property
    def model(self) -> str:
        """The model as the agent named it."""
        return self.asked.model

    @property
    def stream(self) -> bool:
        """Whether the agent wants to see the answer while it is made."""
        return self.asked.stream


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Split a request body into its fields, each as it was sent; raises Refusal when it is no JSON object."""
    try:
        body.decode()
        return _FIELDS.decode(body)
    except UNREADABLE as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> Refusal:
    """Refusal of a body that is not what it should be."""
    return invalid(f"We could not parse the JSON body of your request: {error}")


def text_of(raw: msgspec.Raw | None) -> str | None:
    """JSON of a field as it was sent."""
    return None if raw is None else bytes(raw).decode()


def rest_of(fields: Mapping[str, msgspec.Raw], left_out: frozenset[str]) -> str:
    """JSON of a request without secrets and the fields that are kept apart; raises Refusal where it is none."""
    rest = msgspec.json.encode({key: raw for key, raw in fields.items() if key not in left_out}).decode()
    try:
        return mask_json(rest)
    except UNREADABLE as error:
        raise unreadable(error) from None


def check_fields(
    fields: Mapping[str, msgspec.Raw], known: frozenset[str], neutral: Mapping[str, tuple[object, ...]]
) -> None:
    """Refuse fields that are not `known`, and those whose value is none of their `neutral` ones (or null)."""
    for name, raw in fields.items():
        if name not in known:
            message = f"Unrecognized request argument supplied: {name}"
            raise Refusal(400, message)
        if name in neutral:
            value: object = msgspec.json.decode(raw)
            if value is not None and value not in neutral[name]:
                shown = bytes(raw).decode()
                raise unsupported(name, f"is not available from this endpoint with the value {shown[:60]}.")


def check_range(name: str, value: float, least: int, most: int | None = None) -> None:
    """Refuse a number out of its range, in the provider's words."""
    kind = "integer" if isinstance(value, int) else "decimal"
    for bad, side, sign, limit in (
        (value < least, "below minimum", ">=", least),
        (most is not None and value > most, "above maximum", "<=", most),
    ):
        if bad:
            given = str(value) if kind == "integer" else f"{value:g}"  # an integer may be too large for a float
            message = (
                f"Invalid '{name}': {kind} {side} value. Expected a value {sign} {limit}, but got {given} instead."
            )
            code = f"{kind}_{'below_min' if value < least else 'above_max'}_value"
            raise Refusal(400, message, param=name, code=code)


def checked_sampling(
    *, temperature: float | None, top_p: float | None, max_tokens: tuple[str, int | None], seed: int | None = None
) -> Sampling:
    """Return the sampling that was asked for; raises Refusal for what no provider takes.

    `max_tokens` comes with the name that the dialect gives it.
    """
    temperature = 1.0 if temperature is None else temperature
    top_p = 1.0 if top_p is None else top_p
    name, limit = max_tokens
    check_range("temperature", temperature, 0, 2)
    check_range("top_p", top_p, 0, 1)
    if top_p == 0:
        raise invalid("'top_p' must be above 0: no token would be left.", "top_p")
    if limit is not None:
        check_range(name, limit, 1, LARGEST_INTEGER)
    if seed is not None:
        check_range("seed", seed, -LARGEST_INTEGER - 1, LARGEST_INTEGER)
    return Sampling(temperature=temperature, top_p=top_p, max_tokens=limit, seed=seed)


def checked_top_logprobs(value: int | None, *, wanted: bool) -> int:
    """Return how many alternatives of each token to show; raises Refusal where `wanted` does not allow for them."""
    if value is None:
        return 0
    check_range("top_logprobs", value, 0, MAX_TOP_LOGPROBS)
    if not wanted:
        raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return value
