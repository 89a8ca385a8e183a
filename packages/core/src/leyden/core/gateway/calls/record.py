"""Call record: collects what is known of one served model call and builds the `chat` span that training reads.

Invariants: the token ids of a span are exactly those that the engine read and sampled. Every call that reached the
engine has a span.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from leyden.core.data import semconv
from leyden.core.data.encoding.images import PromptImage, pack_images
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.prompts.matching import ReplacedText
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Attributes, Span, SpanStatus
from leyden.core.engine.base import FinishReason, TokenChunk
from leyden.core.gateway.call_identity import Origin
from leyden.core.gateway.model_request import RecordedRequest
from leyden.core.masking import mask_text

if TYPE_CHECKING:
    from leyden.core.data.encoding.token_sets import TokenBits

PROVIDER = "leyden"


class CallRecord(msgspec.Struct, kw_only=True):
    """Data of one choice of one response, filled in while the choice is generated."""

    origin: Origin
    call_id: str
    """The engine's request id."""
    response_id: str
    """Id of the response; all choices of a response share it."""
    choice: int = 0
    dialect: str = "chat"
    fingerprint: str | None = None
    """Hash of the request; a retry of the request has the same hash. See `retry_cache.fingerprint`."""
    as_sent: RecordedRequest = RecordedRequest()
    replaced: list[ReplacedText] = []
    """Texts of the agent in whose places `as_sent` has others, by prompt edits."""
    policy: str | None = None
    prompt_ids: Sequence[int] | None = None
    images: tuple[PromptImage, ...] = ()
    """Images in the prompt, in order."""
    prompt_index: int | None = None
    """Index of the prompt among those of the request; None if the request has only one."""
    prompt_logprobs: Sequence[float] | None = None
    """Raw log-probability of each prompt token after the first, if the response repeats them."""
    sampling: Sampling | None = None
    ids: list[int] = []
    logprobs: list[float] = []
    sampling_logprobs: list[float] = []
    top: list[list[tuple[int, float]]] = []
    """For each position, the most likely tokens as (token id, log-probability), if the agent requested them."""
    versions: list[int] = []
    """Pairs in order: a policy version, then the number of tokens that this version sampled."""
    kept: "list[TokenBits]" = []
    """The sets of tokens that truncation left, in parts."""
    packed_kept: bytes | None = None
    engine_finish: FinishReason | None = None
    extra: Attributes = {}
    """Further span attributes that the dialect records."""
    output: str | None = None
    """JSON of the messages in the response."""
    finish_reason: str | None = None
    usage: tuple[int, int] | None = None
    """Numbers of prompt tokens and response tokens, where an upstream server counted them."""
    response_model: str | None = None
    not_trained: str | None = None
    error: str | None = None
    error_type: str | None = None
    started: float = msgspec.field(default_factory=time.time)
    _clock: float = msgspec.field(default_factory=time.perf_counter)

    def take(self, chunk: TokenChunk) -> None:
        """Append the tokens and log-probabilities of an engine's chunk."""
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs
        self.sampling_logprobs += chunk.sampling_logprobs
        if chunk.top:
            self.top += chunk.top
        if chunk.kept is not None:
            self.kept.append(chunk.kept)
        if not chunk.ids:
            return
        if self.versions and self.versions[-2] == chunk.version:
            self.versions[-1] += len(chunk.ids)
        else:
            self.versions += [chunk.version, len(chunk.ids)]

    async def pack_kept(self) -> None:
        """Compress the sets of tokens that truncation left, on a thread; they must be one for each response token."""
        if self.kept and sum(map(len, self.kept)) == len(self.ids):
            from leyden.core.data.encoding.token_sets import pack_token_sets

            self.packed_kept = await asyncio.to_thread(pack_token_sets, self.kept)

    def fail(self, reason: str, error: str, error_type: str) -> None:
        """Record that the call failed: the reason, the masked error message and the error's type."""
        self.not_trained, self.error, self.error_type = reason, mask_text(error), error_type

    def span(self) -> Span:
        """Return the span of the call; its end time is now."""
        latency = time.perf_counter() - self._clock
        return self.origin.span(
            f"{self._operation} {self.as_sent.model}".strip(),
            self._attributes(latency),
            self.started,
            self.started + latency,
            SpanStatus(code="error", description=self.error) if self.error else None,
        )

    @property
    def _operation(self) -> str:
        return "text_completion" if self.dialect == "completions" else "chat"

    def _attributes(self, latency: float) -> Attributes:
        values: dict[str, object] = {
            semconv.OPERATION: self._operation,
            semconv.PROVIDER: PROVIDER,
            semconv.ROLLOUT_ID: self.origin.rollout.rollout_id,
            semconv.ATTEMPT_ID: self.origin.attempt_id,
            semconv.AGENT_NAME: self.origin.agent,
            semconv.NODE: self.origin.node,
            semconv.REQUEST_MODEL: self.as_sent.model,
            semconv.REQUEST_STREAM: self.as_sent.stream,
            semconv.INPUT_MESSAGES: self.as_sent.messages,
            semconv.TOOL_DEFINITIONS: self.as_sent.tools,
            semconv.PROMPT_EDITS: msgspec.json.encode(self.replaced).decode() if self.replaced else None,
            semconv.SAMPLING_ASKED: self.as_sent.rest,
            semconv.RESPONSE_MODEL: self.response_model or self.policy,
            semconv.RESPONSE_ID: self.response_id,
            semconv.OUTPUT_MESSAGES: self.output,
            semconv.FINISH_REASONS: [self.finish_reason] if self.finish_reason else None,
            semconv.CALL_ID: self.call_id,
            semconv.CHOICE_INDEX: self.choice,
            semconv.FINGERPRINT: self.fingerprint,
            semconv.DIALECT: self.dialect,
            semconv.POLICY: self.policy,
            semconv.NOT_TRAINED: self.not_trained,
            semconv.ERROR_TYPE: self.error_type,
            semconv.LATENCY: latency,
            **self._token_attributes(),
            **self.extra,
        }
        known = {key: value for key, value in values.items() if value is not None}
        return known  # pyright: ignore[reportReturnType]  # every value above is an Attribute

    def _token_attributes(self) -> dict[str, object]:
        if self.prompt_ids is None:
            prompt, answer = self.usage or (None, None)
            return {semconv.INPUT_TOKENS: prompt, semconv.OUTPUT_TOKENS: answer}
        return {
            semconv.INPUT_TOKENS: len(self.prompt_ids),
            semconv.OUTPUT_TOKENS: len(self.ids),
            semconv.POLICY_VERSION: self.versions[0] if self.versions else None,
            semconv.POLICY_VERSIONS: self.versions or None,
            semconv.ENGINE_FINISH: self.engine_finish,
            semconv.TOP_LOGPROBS: msgspec.json.encode(self.top).decode() if self.top else None,
            semconv.PROMPT_IDS: pack_ids(self.prompt_ids),
            semconv.PROMPT_IMAGES: pack_images(self.images) if self.images else None,
            semconv.PROMPT_INDEX: self.prompt_index,
            semconv.PROMPT_LOGPROBS: None if self.prompt_logprobs is None else pack_log_probs(self.prompt_logprobs),
            semconv.RESPONSE_IDS: pack_ids(self.ids),
            **self._sampling_attributes(),
        }

    def _sampling_attributes(self) -> dict[str, object]:
        """Return log-probabilities and sampling parameters; an upstream server sends at most log-probabilities."""
        if self.sampling is None:
            return {semconv.RESPONSE_LOGPROBS: pack_log_probs(self.logprobs)} if self.logprobs else {}
        return {
            semconv.RESPONSE_LOGPROBS: pack_log_probs(self.logprobs),
            semconv.SAMPLING_LOGPROBS: pack_log_probs(self.sampling_logprobs),
            semconv.SAMPLING_KEPT: self.packed_kept,
            **self.sampling.recorded(),
        }
