"""Request validation that all engines share."""

import math

from leyden.core.data.encoding.images import fit
from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import MOST_TOP_LOGPROBS, GenerateRequest, ModelInfo
from leyden.core.errors import EngineError


def check_request(request: GenerateRequest, model: ModelInfo, *, takes_images: bool = False) -> None:
    """Raise EngineError unless the prompt leaves room for a response and its ids are in the vocabulary.

    Also raises EngineError for sampling options that no engine supports, and for images that the engine does not take
    or that do not fit into the prompt.
    """
    ids, length = request.prompt_ids, model.context_length
    if not ids:
        raise EngineError("the prompt is empty")
    if len(ids) >= length:
        raise EngineError(
            f"the prompt has {len(ids)} tokens; the context of {model.name} has {length}, the answer included"
        )
    if min(ids) < 0 or max(ids) >= model.vocab_size:
        raise EngineError(
            f"the prompt has ids outside the vocabulary of {model.name}, which has {model.vocab_size} tokens"
        )
    if request.images and not takes_images:
        raise EngineError(f"{model.name} takes no images")
    if not fit([(image.start, image.tokens) for image in request.images], len(ids)):
        raise EngineError("the images of the prompt overlap, or do not fit into it")
    if request.sampling.max_tokens is not None and request.sampling.max_tokens < 1:
        raise EngineError(f"max_tokens is {request.sampling.max_tokens}; it must be at least 1")
    if request.sampling.temperature < 0 or not 0 <= request.sampling.top_p <= 1:
        raise EngineError("temperature must be 0 or more and top_p from 0 to 1")
    _check_sampling(request.sampling, model)
    if not 0 <= request.top_logprobs <= MOST_TOP_LOGPROBS:
        raise EngineError(f"top_logprobs is {request.top_logprobs}; it must be between 0 and {MOST_TOP_LOGPROBS}")


def _check_sampling(sampling: Sampling, model: ModelInfo) -> None:
    if sampling.top_k < 0 or not 0 <= sampling.min_p <= 1:
        raise EngineError("top_k must be 0 or more, and min_p between 0 and 1")
    numbers = (sampling.presence_penalty, sampling.frequency_penalty, *(bias for _, bias in sampling.logit_bias))
    if not sampling.repetition_penalty > 0 or not all(map(math.isfinite, (*numbers, sampling.repetition_penalty))):
        raise EngineError("penalties and biases must be finite numbers, and repetition_penalty above 0")
    ids = [*(token for token, _ in sampling.logit_bias), *sampling.stop_ids]
    if ids and not 0 <= min(ids) <= max(ids) < model.vocab_size:
        raise EngineError(
            f"logit_bias or stop_ids has ids outside the vocabulary of {model.name}, which has {model.vocab_size} "
            "tokens"
        )


def answer_limit(request: GenerateRequest, model: ModelInfo) -> int:
    """Return the maximum number of response tokens: max_tokens, or what is left of the context."""
    room = model.context_length - len(request.prompt_ids)
    return room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)
