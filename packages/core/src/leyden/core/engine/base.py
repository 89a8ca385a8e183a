"""`Engine`: the interface between the gateway and the server of a policy; it handles token ids, not text."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from leyden.core.data.encoding.images import PromptImage
from leyden.core.data.sampling import Sampling
from leyden.core.errors import EngineError

if TYPE_CHECKING:
    from leyden.core.data.encoding.token_sets import TokenBits  # loads numpy, which a gateway alone does not need

FinishReason = Literal["stop", "length", "abort"]
EnginePrecision = Literal["float32", "bfloat16", "int8"]
"""Precision in which an engine keeps the weights that it serves."""

AMPLIFIED = 0.05
"""Share of the positions of a text at which a model may amplify rounding errors far beyond the usual ones.

SmolLM2-135M, fine-tuned in 48 steps, makes 0.005 to 0.009 of the rounding errors of float32 at one position of 65,
while all others are below 0.0001. Weights or a forward pass that are wrong give other results at many positions.
"""

MOST_TOP_LOGPROBS = 20
"""The largest `GenerateRequest.top_logprobs` that an engine accepts."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to generate one response to a prompt."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    """How tokens are sampled. The gateway handles `sampling.stop`, which is text; engines use the ids in `stop_ids`."""
    stop_ids: tuple[int, ...] = ()
    """The response ends with the first of these ids that is sampled, and includes it."""
    top_logprobs: int = 0
    """How many of the likeliest tokens to return at each position, up to `MOST_TOP_LOGPROBS`."""
    images: tuple[PromptImage, ...] = ()
    """Images of the prompt, in order; only for an engine that `takes_images`."""
    rollout_id: str | None = None
    """Calls of one rollout share much of their prompts, so with several replicas one of them gets all these calls."""


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Some consecutive tokens of a response."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each id at temperature 1, with nothing truncated; grammar, penalties and bias apply."""
    sampling_logprobs: list[float]
    """Log-probability of each id under the distribution it was sampled from; equals `logprobs` if greedy."""
    version: int
    """Policy version that generated all of these tokens."""
    top: list[list[tuple[int, float]]] | None = None
    """For each id the `top_logprobs` likeliest (id, raw log-probability), likeliest first; None if none were requested.

    The sampled id need not be among them. A smaller vocabulary gives fewer.
    """
    kept: "TokenBits | None" = None
    """For each id the set of tokens that truncation left; None if nothing was truncated, or if it is not known."""
    finish_reason: FinishReason | None = None
    """Set only on the last chunk."""


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's own record of one call, independent of what the gateway writes."""

    request_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    sampling_logprobs: list[float]
    version: int
    """Policy version that generated the first token; for a response without tokens, the version being served."""
    versions: list[tuple[int, int]]
    """Every version that generated tokens, in order, with the number of its tokens."""
    finish_reason: FinishReason


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the served model that the gateway uses."""

    name: str
    context_length: int
    """Maximum length of prompt and response together, in tokens."""
    vocab_size: int


class Engine(ABC):
    """Serves one policy. New weights are swapped in between decode steps, while calls are in flight."""

    @property
    @abstractmethod
    def model(self) -> ModelInfo:
        """The served model."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Version of the weights that the next decode step will use."""

    @abstractmethod
    async def start(self) -> None:
        """Start the engine, so that it can answer calls."""

    @abstractmethod
    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield the response while it is generated; closing the iterator aborts the call.

        Raises EngineError if the prompt does not fit the context, or if the engine is closed. Raises UnusableGrammar if
        the grammar cannot be used with the model's tokenizer, or becomes too complex within the response.
        """

    @abstractmethod
    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Serve a copy of `weights` (parameter name to tensor) as `version` from the next decode step on."""

    @property
    def precision(self) -> EnginePrecision:
        """Precision in which the served weights are kept."""
        return "float32"

    @property
    def records_truncation(self) -> bool:
        """Whether the chunks of a truncated response have `kept`, so that training can use the response."""
        return False

    @property
    def takes_images(self) -> bool:
        """Whether requests may have `images`."""
        return False

    @property
    def takes_adapters(self) -> bool:
        """Whether `update_adapters` may be called instead of `update_weights`."""
        return False

    async def update_adapters(self, save: Callable[[Path], None], version: int) -> None:
        """Serve low-rank adapters on the initial weights, as `version`.

        `save` writes the adapters into an empty folder, in PEFT's format. Raises EngineError if the engine takes no
        adapters.
        """
        raise EngineError(f"{type(self).__name__} can serve only whole weights, not adapters, for version {version}")

    async def begin_again(self, version: int) -> None:
        """Serve the initial weights without adapters, as `version`; EngineError if the engine takes no adapters."""
        raise EngineError(f"{type(self).__name__} has no stored weights that it could serve again as version {version}")

    @abstractmethod
    async def score(self, ids: list[int]) -> list[float]:
        """Return the raw log-probability of each of `ids[1:]` given the ids before it, under the served weights.

        The check after every update compares the result with the trainer's own.
        """

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        """Inside the block the engine frees its GPU's memory for the trainer, if it can and is configured to.

        It then generates nothing. Calls wait until the block ends, and no weights may be updated in the block.
        """
        yield

    async def measures(self) -> Mapping[str, bytes | None]:
        """Return the metrics of the engine's servers in Prometheus' text format, by a permanent name of each server.

        The value is None for a server that does not answer. Empty if the engine has no server.
        """
        return {}

    def check(self) -> None:
        """Raise EngineError if the engine will never answer again, although it was not closed."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Abort all calls in flight and release all resources."""
