"""Model request: the checked request of an agent to a model, in a form that all dialects share.

Supported fields are parsed. Fields that are only hints are accepted and recorded. Any other field is refused as the
provider would refuse it, and never ignored.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.gateway.codec import Forced, Message, ToolDefinition
from leyden.core.gateway.parameter_notes import NOTES
from leyden.core.gateway.refusal import Refusal, invalid, unsupported
from leyden.core.grammar.rules import AnswerFormat
from leyden.core.masking import mask_json

MAX_TOP_LOGPROBS = 20
LARGEST_INTEGER = (1 << 63) - 1
"""Largest 64-bit signed integer; the code that reads the request later cannot store larger ones.

The smallest integer is `-LARGEST_INTEGER - 1`.
"""
LARGEST_TOKEN = (1 << 31) - 1
MAX_BIASES = 1024
"""Most tokens in `logit_bias` and in `stop_token_ids`."""
Prompt: TypeAlias = str | tuple[int, ...]
"""Prompt without a chat template: text, or token ids."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding a client's JSON may raise."""


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields by which a request of Chat Completions or Completions controls what is sampled.

    Those from `top_k` on are fields of vLLM's API, and not of OpenAI's.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Text of the request as the agent sent it, for the record."""

    model: str = ""
    stream: bool = False
    messages: str | None = None
    """JSON of the conversation."""
    tools: str | None = None
    rest: str = "{}"
    """JSON of the other fields of the request, including hints."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One checked request, independent of the dialect."""

    as_sent: RecordedRequest
    messages: list[Message]
    """The conversation in the format of Chat Completions."""
    tools: list[ToolDefinition]
    """Tools in the prompt; empty if the agent forbids tool calls."""
    forced: Forced | None = None
    """The tool call that the agent requires; None if it requires none."""
    parallel_tool_calls: bool = True
    call_id_prefix: str = "call_"
    """Prefix of the ids of tool calls in the answer."""
    choices: int = 1
    """Number of choices to generate for each prompt."""
    prompts: tuple[Prompt, ...] = ()
    """Prompts that the policy reads without a chat template; empty if it reads the conversation in `messages`."""
    echo: bool = False
    """Whether the response repeats the prompt before each choice."""
    logprobs: bool = False
    top_logprobs: int = 0
    answer_format: AnswerFormat | None = None
    """The format that the answer must have; None for any text."""
    template_variables: dict[str, Any] = {}
    """Further variables of the chat template, such as `enable_thinking`."""
    return_token_ids: bool = False
    """Whether the response contains the token ids of the prompt and of each choice, as vLLM's responses do."""
    sampling: Sampling
    """The sampling that the agent requested, with the provider's defaults."""

    @property
    def only_one_call(self) -> bool:
        """Whether a forced answer contains one tool call and no more."""
        named = self.forced is not None and self.forced.name is not None and not self.forced.only_one
        return named or not self.parallel_tool_calls

    @property
    def model(self) -> str:
        """Name of the model in the agent's request."""
        return self.as_sent.model

    @property
    def stream(self) -> bool:
        """Whether the agent requested a streamed response."""
        return self.as_sent.stream


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Split a request body into its fields, each as raw JSON; raises Refusal if the body is not a JSON object."""
    try:
        body.decode()
        return _FIELDS.decode(body)
    except UNREADABLE as error:
        raise unreadable(error) from None


def unreadable(error: Exception) -> Refusal:
    """Return the refusal of a body that could not be decoded."""
    return invalid(f"We could not parse the JSON body of your request: {error}")


def text_of(raw: msgspec.Raw | None) -> str | None:
    """Return the JSON text of a field as it was sent; None for None."""
    return None if raw is None else bytes(raw).decode()


def rest_of(fields: Mapping[str, msgspec.Raw], left_out: frozenset[str]) -> str:
    """Return the JSON of a request with its secrets masked, without the fields in `left_out`.

    Raises Refusal if it is not valid JSON.
    """
    rest = msgspec.json.encode({key: raw for key, raw in fields.items() if key not in left_out}).decode()
    try:
        return mask_json(rest)
    except UNREADABLE as error:
        raise unreadable(error) from None


def check_fields(
    fields: Mapping[str, msgspec.Raw], known: frozenset[str], neutral: Mapping[str, tuple[object, ...]]
) -> None:
    """Check the fields of a request.

    Raises Refusal for a field that is not in `known`. Also raises Refusal for a field in `neutral` with a value other
    than null or one of its neutral values.
    """
    for name, raw in fields.items():
        if name not in known:
            message = f"Unrecognized request argument supplied: {name}"
            raise Refusal(400, message)
        if name in neutral:
            value: object = msgspec.json.decode(raw)
            if value is not None and value not in neutral[name]:
                shown = bytes(raw).decode()
                reason = f"is not available from this endpoint with the value {shown[:60]} ({NOTES[name]})."
                raise unsupported(name, reason)


def check_range(name: str, value: float, minimum: int, maximum: int | None = None) -> None:
    """Raise Refusal with the provider's message if `value` is below `minimum` or above `maximum`."""
    if minimum <= value and (maximum is None or value <= maximum):
        return
    kind = "integer" if isinstance(value, int) else "decimal"
    for bad, side, sign, limit in (
        (value < minimum, "below minimum", ">=", minimum),
        (maximum is not None and value > maximum, "above maximum", "<=", maximum),
    ):
        if bad:
            given = str(value) if kind == "integer" else f"{value:g}"  # an integer may be too large for a float
            message = (
                f"Invalid '{name}': {kind} {side} value. Expected a value {sign} {limit}, but got {given} instead."
            )
            code = f"{kind}_{'below_min' if value < minimum else 'above_max'}_value"
            raise Refusal(400, message, param=name, code=code)


def checked_sampling(fields: SamplingFields, max_tokens: tuple[str, int | None]) -> Sampling:
    """Return the requested sampling; raises Refusal for values out of range.

    `max_tokens` is a pair: the field's name in the dialect, and its value.
    """
    temperature = 1.0 if fields.temperature is None else fields.temperature
    top_p = 1.0 if fields.top_p is None else fields.top_p
    name, limit = max_tokens
    check_range("temperature", temperature, 0, 2)
    check_range("top_p", top_p, 0, 1)
    if limit is not None:
        check_range(name, limit, 1, LARGEST_INTEGER)
    if fields.seed is not None:
        check_range("seed", fields.seed, -LARGEST_INTEGER - 1, LARGEST_INTEGER)
    usual = Sampling(temperature=temperature, top_p=top_p, max_tokens=limit, seed=fields.seed)
    return usual if _rare_parameters(fields) == _NO_RARE_PARAMETERS else _with_rare_parameters(usual, fields)


_RARE_PARAMETERS = (
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
)
_NO_RARE_PARAMETERS = (None,) * len(_RARE_PARAMETERS)
_rare_parameters = attrgetter(*_RARE_PARAMETERS)


def _with_rare_parameters(usual: Sampling, fields: SamplingFields) -> Sampling:
    check_range("presence_penalty", fields.presence_penalty or 0.0, -2, 2)
    check_range("frequency_penalty", fields.frequency_penalty or 0.0, -2, 2)
    biases = _biases(fields.logit_bias or {})
    check_range("top_k", fields.top_k or 0, -1, LARGEST_TOKEN)
    check_range("min_p", fields.min_p or 0.0, 0, 1)
    repetition_penalty = 1.0 if fields.repetition_penalty is None else fields.repetition_penalty
    check_range("repetition_penalty", repetition_penalty, 0, 10)
    if repetition_penalty == 0:
        raise invalid("'repetition_penalty' must be above 0.", "repetition_penalty")
    stop_ids = fields.stop_token_ids or ()
    if len(stop_ids) > MAX_BIASES or any(not 0 <= token <= LARGEST_TOKEN for token in stop_ids):
        raise invalid(f"'stop_token_ids' must hold at most {MAX_BIASES} ids of tokens.", "stop_token_ids")
    return msgspec.structs.replace(
        usual,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=biases,
        top_k=max(fields.top_k or 0, 0),  # vLLM: -1 and 0 mean all tokens
        min_p=fields.min_p or 0.0,
        repetition_penalty=repetition_penalty,
        stop_ids=tuple(dict.fromkeys(stop_ids)),
    )


def _biases(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    if len(given) > MAX_BIASES:
        raise invalid(f"'logit_bias' must hold at most {MAX_BIASES} tokens.", "logit_bias")
    biases: list[tuple[int, float]] = []
    for token, bias in given.items():
        if not token.isascii() or not token.isdecimal() or len(token) > 9:
            raise invalid(f"Invalid key in 'logit_bias': {token[:40]}. A key must be the id of a token.", "logit_bias")
        check_range("logit_bias", bias, -100, 100)
        biases.append((int(token), bias))
    return tuple(sorted(biases))


def with_known_ids(sampling: Sampling, vocab_size: int) -> Sampling:
    """Return the sampling without the ids that the policy's vocabulary does not have: they could have no effect.

    Agents name ids of the tokenizer of another model.
    """
    if not sampling.logit_bias and not sampling.stop_ids:
        return sampling
    biases = tuple(pair for pair in sampling.logit_bias if pair[0] < vocab_size)
    stop_ids = tuple(token for token in sampling.stop_ids if token < vocab_size)
    if len(biases) == len(sampling.logit_bias) and len(stop_ids) == len(sampling.stop_ids):
        return sampling
    return msgspec.structs.replace(sampling, logit_bias=biases, stop_ids=stop_ids)


def checked_top_logprobs(value: int | None, *, wanted: bool) -> int:
    """Return the number of most likely tokens to send for each position.

    Raises Refusal for a number out of range, or if log-probabilities were not requested (`wanted` is False).
    """
    if value is None:
        return 0
    check_range("top_logprobs", value, 0, MAX_TOP_LOGPROBS)
    if not wanted:
        raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    return value
