"""`Engine`, the seam between the gateway and whatever serves a policy. Knows nothing of text, templates or agents."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec

from leyden.core.data.sampling import Sampling
from leyden.core.errors import EngineError

FinishReason = Literal["stop", "length", "abort"]

MOST_TOP_LOGPROBS = 20
"""The largest `GenerateRequest.top_logprobs` an engine answers."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue."""

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    """`sampling.stop` is text and the gateway's business; an engine stops at `stop_ids` and `max_tokens`."""
    stop_ids: tuple[int, ...] = ()
    """The sequence ends with the first of these that is drawn; it is part of the answer."""
    top_logprobs: int = 0
    """How many of the likeliest tokens to tell of at each place, up to `MOST_TOP_LOGPROBS`."""
    rollout_id: str | None = None
    """Calls of one rollout share much of their prompts: where there are replicas, one answers them all."""


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Some tokens of an answer, in order."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each id under the raw distribution: temperature 1, nothing truncated."""
    sampling_logprobs: list[float]
    """Log-probability of each id under the distribution it was drawn from; equals `logprobs` when greedy."""
    version: int
    """Policy version that drew these tokens, all of them."""
    top: list[list[tuple[int, float]]] | None = None
    """For each id the `top_logprobs` likeliest (id, raw log-probability), likeliest first; None where none were asked
    for. The id that was drawn need not be among them; a vocabulary that holds fewer yields fewer."""
    finish_reason: FinishReason | None = None
    """Set on the last chunk, and only there."""


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's own log of one call, kept apart from anything the gateway writes."""

    request_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    sampling_logprobs: list[float]
    version: int
    """Policy version that drew the first token; of an answer without tokens, the one that was being served."""
    versions: list[tuple[int, int]]
    """Every version that drew tokens, in order, with how many it drew."""
    finish_reason: FinishReason


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway must know of the served model."""

    name: str
    context_length: int
    """Prompt and answer together, in tokens."""
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
        """Get ready to answer."""

    @abstractmethod
    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield the answer as it is drawn; closing the iterator aborts the call.

        Raises EngineError when the prompt does not fit the context or the engine is closed.
        """

    @abstractmethod
    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Serve `weights` (parameter name to tensor, copied) as `version` from the next decode step on."""

    @property
    def takes_adapters(self) -> bool:
        """Whether `update_adapters` may be called in the place of `update_weights`."""
        return False

    async def update_adapters(self, save: Callable[[Path], None], version: int) -> None:
        """Serve, as `version`, low-rank adapters over the weights that it began with.

        `save` writes them into an empty folder, in PEFT's format. Raises EngineError where it takes none.
        """
        raise EngineError(f"{type(self).__name__} takes whole weights alone, and no adapters for version {version}")

    async def begin_again(self, version: int) -> None:
        """Serve, as `version`, the weights that it began with, without adapters; for engines that take some."""
        raise EngineError(f"{type(self).__name__} keeps no weights to begin again with as version {version}")

    @abstractmethod
    async def score(self, ids: list[int]) -> list[float]:
        """Raw log-probability of each of `ids[1:]` given what precedes it, by the weights being served.

        The check after every update compares it with the trainer's own.
        """

    @asynccontextmanager
    async def asleep(self) -> AsyncGenerator[None]:
        """Inside the block it leaves the memory of its GPU to others, where it can and was told to.

        It then draws nothing, and calls wait for the block's end; no weights may be given meanwhile.
        """
        yield

    async def measures(self) -> Mapping[str, bytes | None]:
        """What the servers behind it say of themselves, in Prometheus' text format, by a name that each keeps.

        None of one that does not answer; nothing where the engine is no server's.
        """
        return {}

    def check(self) -> None:
        """Raise EngineError when it will never answer again, although nobody has closed it."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Abort what is in flight and release everything."""
