"""`EmbeddedEngine`: serves a Hugging Face causal language model inside this process, on the CPU or one GPU.

It is meant for models small enough to decode beside the trainer, and for tests. A separate server suits large models
better.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import torch
from torch import nn

from leyden.core.data.encoding.images import FIRST_IMAGE_ID, PromptImage
from leyden.core.engine.base import Engine, EnginePrecision, EngineRecord, GenerateRequest, ModelInfo, TokenChunk
from leyden.core.engine.embedded.admission import Admission
from leyden.core.engine.embedded.cache import CacheShape, PrefixCache, SlotCache
from leyden.core.engine.embedded.check import Expected, check_forward, check_images
from leyden.core.engine.embedded.decode_thread import DecodeCall, DecodeThread
from leyden.core.engine.embedded.decoder import DecodedSequence, Decoder
from leyden.core.engine.embedded.fused_forward import FAMILIES, FusedForward
from leyden.core.engine.embedded.generic_forward import (
    LONGEST_CHECK,
    TESTED,
    Forward,
    GenericForward,
    attention_windows,
)
from leyden.core.engine.embedded.grammar_masks import RowGrammar
from leyden.core.engine.embedded.image_embeddings import ImageEmbeddings, ReadImage
from leyden.core.engine.embedded.linear import Linear, linear_class
from leyden.core.engine.embedded.weights import Weights, cache_shape, context_length, own_copy, round_weights
from leyden.core.engine.record import report
from leyden.core.engine.request_validation import answer_limit, check_request
from leyden.core.errors import EngineError, GrammarError, ImageError, LeydenError, UnusableGrammar, UsageError
from leyden.core.grammar.compiler import GrammarCompiler
from leyden.core.images.processor import ImageProcessor, reads_images

logger = logging.getLogger(__name__)

SMALL = 20_000_000
"""Below this number of parameters a second thread costs more than it saves, up to seven times on a busy machine."""


REMEMBERED_IMAGES = 65536
"""Images whose ids are remembered. A forgotten image gets new ids, and its cached prefixes are not found again."""


class EmbeddedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an `EmbeddedEngine` batches, caches and samples."""

    max_batch: int = 64
    """Sequences decoded together; further calls wait."""
    threads: int | None = None
    """Torch threads of the decode thread; None: one for a small model on the CPU, else torch's own choice."""
    batch_wait_seconds: float = 0.003
    """How long an idle engine waits for more calls after one has arrived."""
    join_seconds: float = 0.04
    """Maximum time that calls wait for each other if more recently arrived together: a joint start costs less."""
    chunk_seconds: float = 0.02
    """Interval at which tokens of unfinished responses are returned."""
    prefix_cache_tokens: int = 16384
    """Tokens whose keys and values are cached for prompts with the same beginning; 0 for none."""
    context_length: int | None = None
    """Maximum length of prompt and response together; None: the model's limit."""
    seed: int = 0
    """Seed of calls that have none, combined with their number in order of arrival."""
    lean: bool = True
    """Whether to use the faster forward pass if there is one for the model."""
    precision: EnginePrecision = "float32"
    """Precision in which weights are kept. `bfloat16` halves what each decoding step reads, and `int8` halves it again
    for up to four rows. Matrix products then round their inputs and results to bfloat16; with the faster forward pass,
    everything else stays in float32. `int8` needs the faster pass and a CPU."""

    def __post_init__(self) -> None:
        """Raise UsageError for values out of range."""
        if self.max_batch < 1 or (self.threads is not None and self.threads < 1) or (self.context_length or 2) < 2:
            raise UsageError("engine: max_batch and threads must be at least 1, context_length at least 2")
        if min(self.batch_wait_seconds, self.join_seconds, self.chunk_seconds, self.prefix_cache_tokens) < 0:
            names = "batch_wait_seconds, join_seconds, chunk_seconds and prefix_cache_tokens"
            raise UsageError(f"engine: {names} must not be negative")


class EmbeddedEngine(Engine):
    """Decodes on a separate thread, with a copy of `model`'s weights.

    `on_finish` is called on the caller's event loop with the record of each call when it ends. `tokenizer` is the
    folder or hub name of the model's tokenizer and image processor. Only calls with a grammar or images need it.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        version: int = 0,
        config: EmbeddedConfig | None = None,
        on_finish: Callable[[EngineRecord], None] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self._config = config or EmbeddedConfig()
        self._on_finish = on_finish
        self._served = own_copy(model)
        self._weights: Weights | None = None
        self._model = ModelInfo(
            name=name, context_length=_context(self._served, self._config), vocab_size=_vocab_size(self._served)
        )
        self._thread = DecodeThread(
            max_batch=self._config.max_batch,
            admission=Admission(idle=self._config.batch_wait_seconds, longest=self._config.join_seconds),
            chunk_seconds=self._config.chunk_seconds,
            version=version,
        )
        self._grammars = None if tokenizer is None else GrammarCompiler(tokenizer, self._model.vocab_size)
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="leyden-grammar-compiler")
        self._processor = _image_processor(self._served, tokenizer)
        self._image_ids: OrderedDict[tuple[str, int], int] = OrderedDict()
        """First id of each image, by digest and number of tokens."""
        self._next_image_id = FIRST_IMAGE_ID
        self._embeddings: ImageEmbeddings | None = None
        self._calls = 0
        self._closed = False

    @property
    def model(self) -> ModelInfo:
        """The served model."""
        return self._model

    @property
    def version(self) -> int:
        """Version of the weights that the next decode step will use."""
        return self._thread.version

    @property
    def precision(self) -> EnginePrecision:
        """Precision in which the served weights are kept."""
        return self._config.precision

    @property
    def records_truncation(self) -> bool:
        """True: its chunks have `kept`."""
        return True

    @property
    def takes_images(self) -> bool:
        """Whether the model reads images."""
        return self._processor is not None

    @property
    def in_flight(self) -> int:
        """Number of calls that are decoded or wait."""
        return self._thread.in_flight

    async def start(self) -> None:
        """Start decoding; EngineError if the model cannot be served exactly."""
        if self._closed:
            raise EngineError("the engine is closed")
        try:
            await asyncio.wrap_future(self._thread.start(self._make_decoder))
        except BaseException:
            await self.close()
            raise

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Yield the response while it is generated; see `Engine.generate`."""
        self._check_ready()
        check_request(request, self._model, takes_images=self.takes_images)
        grammar = await self._grammar(request.sampling.grammar)
        images = await self._read_images(request.images) if request.images else []
        self._check_ready()  # again, because the engine may have been closed while the grammar was compiled
        call = DecodeCall(self._sequence(request, grammar, images))
        delivered: list[TokenChunk] = []
        self._thread.submit(call)
        try:
            while not delivered or delivered[-1].finish_reason is None:
                delivered.append(await call.next_chunk())
                if delivered[-1].finish_reason is not None:
                    report(self._on_finish, request, delivered, self.version)
                yield delivered[-1]
        finally:
            if not delivered or delivered[-1].finish_reason is None:
                call.abandoned = True
                report(self._on_finish, request, delivered, self.version)

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        """Serve `weights` as `version`; when this returns, they are served, and the caller may change its tensors.

        Responses in flight continue; their prompts and tokens so far are computed again. Raises EngineError, and
        changes nothing, unless `weights` has every parameter in its shape (of tied ones, any).
        """
        served, forward = self._check_ready(), self._forward
        chosen = served.check(weights)

        def replace() -> None:
            self._thread.flush(version)
            served.replace(chosen)
            forward.refresh()

        await asyncio.wrap_future(self._thread.between_steps(replace))

    async def score(self, ids: list[int]) -> list[float]:
        """Return the raw log-probability of each of `ids[1:]`, computed as for responses, cached prefixes included.

        Raises EngineError if the ids do not fit the context or the vocabulary, or if the engine is not running.
        """
        self._check_ready()
        if not 0 < len(ids) <= self._model.context_length:
            raise EngineError(f"cannot score {len(ids)} tokens with a context of {self._model.context_length}")
        if not 0 <= min(ids) <= max(ids) < self._model.vocab_size:
            raise EngineError(
                f"cannot score ids outside the vocabulary of {self._model.name}, which has {self._model.vocab_size} "
                "tokens"
            )
        decoder = self._decoder
        return await asyncio.wrap_future(self._thread.between_steps(lambda: decoder.score(ids)))

    def check(self) -> None:
        """Raise EngineError if the decode thread cannot continue."""
        if self._thread.broken is not None:
            raise self._thread.broken

    async def close(self) -> None:
        """Abort all calls in flight and end the decode thread."""
        self._closed = True
        await asyncio.to_thread(self._thread.stop)
        self._compiling.shutdown(wait=False)

    def _check_ready(self) -> Weights:
        if self._closed or self._weights is None:
            raise EngineError("the engine is closed" if self._closed else "the engine is not started")
        return self._weights

    async def _grammar(self, grammar: str) -> RowGrammar | None:
        """Return a call's grammar, which is compiled on a thread; UnusableGrammar if it cannot be used."""
        if not grammar:
            return None
        if self._grammars is None:
            raise EngineError(f"{self._model.name} is served without its tokenizer, so it takes no grammar")
        try:
            state = self._grammars.begin_at_once(grammar)
            if state is None:
                loop = asyncio.get_running_loop()
                state = await loop.run_in_executor(self._compiling, self._grammars.begin, grammar)
        except GrammarError as error:
            raise UnusableGrammar(str(error)) from error
        except LeydenError as error:
            raise EngineError(str(error)) from error
        return RowGrammar(state)

    def _sequence(
        self, request: GenerateRequest, grammar: RowGrammar | None, images: Sequence[ReadImage]
    ) -> DecodedSequence:
        self._calls += 1
        seed = request.sampling.seed
        return DecodedSequence(
            request.prompt_ids,
            request.sampling,
            limit=answer_limit(request, self._model),
            stop_ids=request.stop_ids,
            seed=hash((self._config.seed, self._calls)) if seed is None else seed,
            top_logprobs=request.top_logprobs,
            grammar=grammar,
            images=images,
        )

    def _make_decoder(self) -> Decoder:
        """Choose the fastest forward pass that passes the check; runs on the decode thread."""
        threads = self._config.threads or (1 if _is_small(self._served) else None)
        if threads is not None and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        self._forward, cache, prefixes = self._checked_forward()
        self._weights = Weights(self._served)
        self._decoder = Decoder(self._forward, cache, prefixes, self._embeddings)
        return self._decoder

    async def _read_images(self, images: tuple[PromptImage, ...]) -> list[ReadImage]:
        """Return the images of a prompt as the model reads them; EngineError for one that it cannot read."""
        processor = self._processor
        if processor is None:
            raise EngineError(f"{self._model.name} reads no images")
        read: list[ReadImage] = []
        for image in images:
            try:
                pixels = await asyncio.to_thread(processor.pixels, image.digest, image.data)
            except ImageError as error:
                raise EngineError(f"an image of the prompt cannot be read: {error}") from error
            read.append(ReadImage(self._image_id(image), image.start, image.tokens, pixels))
        return read

    def _image_id(self, image: PromptImage) -> int:
        """Return the id of an image's first token; an id that was used for an image is never used for another one."""
        key = (image.digest, image.tokens)
        if key not in self._image_ids:
            self._image_ids[key] = self._next_image_id
            self._next_image_id += image.tokens
            if len(self._image_ids) > REMEMBERED_IMAGES:
                self._image_ids.popitem(last=False)
        self._image_ids.move_to_end(key)
        return self._image_ids[key]

    def _checked_forward(self) -> tuple[Forward, SlotCache, PrefixCache]:
        """Choose the fastest forward pass whose results are the model's own, and round its weights if configured."""
        model, shape, precision = self._served, cache_shape(self._served), self._config.precision
        self._embeddings = None if self._processor is None else ImageEmbeddings(model)
        expected = Expected.of(model)
        lean = self._config.lean and FusedForward.serves(model)
        candidates = (FusedForward, GenericForward) if lean else (GenericForward,)
        if precision == "int8":
            if not (lean and shape.device.type == "cpu" and shape.dtype == torch.float32):
                raise EngineError(
                    f"precision int8 is for float32 models of the families {', '.join(sorted(FAMILIES))} on a CPU; "
                    f"take bfloat16 for {type(model).__name__}"
                )
            candidates = (FusedForward,)
        reason = ""
        for make in candidates:
            try:
                exact = self._checked(make, shape, expected, "float32")
            except (EngineError, RuntimeError, TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
                reason = str(error)
                if make is not candidates[-1]:
                    name = type(model).__name__
                    logger.warning("%s is served by its own, slower forward pass: in the fast one, %s", name, reason)
                continue
            if precision == "float32":
                return exact
            if precision == "bfloat16":
                round_weights(model, matrices_only=make is FusedForward)
                shape = shape if make is FusedForward else cache_shape(model)
            return self._checked(make, shape, expected, precision)
        raise EngineError(f"{type(model).__name__} cannot be served exactly by the embedded engine: {reason}")

    def _checked(
        self,
        make: type[FusedForward] | type[GenericForward],
        shape: CacheShape,
        expected: Expected,
        precision: EnginePrecision,
    ) -> tuple[Forward, SlotCache, PrefixCache]:
        """Return a forward pass over the served weights, and its caches; EngineError if it gives other results."""
        model, cache = self._served, SlotCache(shape)
        prefixes = PrefixCache(shape, self._config.prefix_cache_tokens)
        if make is FusedForward:
            is_rounded_next = precision != self._config.precision  # the check before that needs no faster layers
            forward = FusedForward(model, Linear if is_rounded_next else linear_class(precision, model))
        else:
            forward = GenericForward(model, self._embeddings)
        check_forward(expected, forward, cache, prefixes, precision)
        if self._embeddings is not None and self._processor is not None:
            check_images(model, Decoder(forward, cache, prefixes, self._embeddings), self._processor)
        return forward, cache, prefixes


def _image_processor(model: nn.Module, source: str | None) -> ImageProcessor | None:
    return ImageProcessor(source) if source is not None and reads_images(cast(Any, model).config) else None


def _context(model: nn.Module, config: EmbeddedConfig) -> int:
    length = config.context_length or context_length(model)
    hf_config = cast(Any, model).config.get_text_config()
    wide = [w for w in attention_windows(hf_config).values() if w is not None and w > LONGEST_CHECK]
    # The self-check does not exceed wide windows. These are trusted for tested families only; for other families the
    # context must not exceed them.
    return min(length, *wide) if wide and hf_config.model_type not in TESTED else length


def _vocab_size(model: nn.Module) -> int:
    return int(cast(Any, model).config.get_text_config().vocab_size)


def _is_small(model: nn.Module) -> bool:
    parameters = list(model.parameters())
    return parameters[0].device.type == "cpu" and sum(p.numel() for p in parameters) < SMALL
