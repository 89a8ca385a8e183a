"""`LanguageModel`: a model that an algorithm calls itself, such as the one that writes new prompts."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from leyden.core.errors import LeydenError, UsageError

Message = Mapping[str, str]
"""A chat message: its `role` and its `content`."""
OWN = "own"
"""Value of `ModelOptions.endpoint` for what answers the run's agents."""


class ModelCallError(LeydenError):
    """A call of a language model failed, also when it was repeated."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which language model an algorithm calls, and how."""

    endpoint: str = OWN
    """Base URL of an OpenAI-compatible endpoint, a provider's model such as `anthropic/claude-sonnet-4-5`, or `own`:
    what answers the run's agents, which is the run's endpoint, or its policy."""
    model: str = ""
    """Name of the model at the endpoint. With `own` and several policies, the name of one; frozen ones are included."""
    key_env: str | None = None
    """Environment variable with the key; None: OPENAI_API_KEY, or the provider's own."""
    function: str | None = None
    """Import string of a function that takes the messages and returns the text; it replaces the model."""
    temperature: float | None = None
    max_tokens: int | None = None
    timeout_seconds: float = 300.0
    """Limit of one call, including its repetitions."""
    concurrency: int = 8
    """Largest number of calls at once."""
    price: tuple[float, float] | None = None
    """US dollars for a million input tokens, and for a million output tokens; None: LiteLLM's price list, which knows
    the models of providers."""

    def __post_init__(self) -> None:
        if self.function is not None and (self.model or self.endpoint != OWN):
            raise UsageError(f"function {self.function!r} replaces a model: remove endpoint and model")
        for name, lowest in (("temperature", 0), ("max_tokens", 1), ("timeout_seconds", 0.001), ("concurrency", 1)):
            value: float | None = getattr(self, name)
            if value is not None and value < lowest:
                raise UsageError(f"{name} must be at least {lowest}, not {value}")
        if self.price is not None and min(self.price) < 0:
            raise UsageError(f"price must not be negative: {self.price}")

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the cost in US dollars by `price`; None without one."""
        if self.price is None:
            return None
        return (self.price[0] * input_tokens + self.price[1] * output_tokens) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Answer of a language model."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """Cost in US dollars; None if it is unknown."""


class LanguageModel(ABC):
    """A model that is called with chat messages."""

    name: str
    """Name for messages and records."""
    is_priced: bool = False
    """Whether the cost of a call is known."""

    @abstractmethod
    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Return the model's answer; raises ModelCallError if there is none."""

    async def close(self) -> None:  # noqa: B027 -- a model without connections has nothing to close
        """Close connections."""
