"""Request validation that all engines share."""

from leyden.core.engine.base import MOST_TOP_LOGPROBS, GenerateRequest, ModelInfo
from leyden.core.errors import EngineError


def check_request(request: GenerateRequest, model: ModelInfo) -> None:
    """Raise EngineError unless the prompt leaves room for a response and its ids are in the vocabulary.

    Also raises EngineError for sampling options that no engine supports.
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
    if request.sampling.max_tokens is not None and request.sampling.max_tokens < 1:
        raise EngineError(f"max_tokens is {request.sampling.max_tokens}; it must be at least 1")
    if request.sampling.temperature < 0 or not 0 < request.sampling.top_p <= 1:
        raise EngineError("temperature must be 0 or more and top_p above 0 and at most 1")
    if not 0 <= request.top_logprobs <= MOST_TOP_LOGPROBS:
        raise EngineError(f"top_logprobs is {request.top_logprobs}; it must be between 0 and {MOST_TOP_LOGPROBS}")


def answer_limit(request: GenerateRequest, model: ModelInfo) -> int:
    """Return the maximum number of response tokens: max_tokens, or what is left of the context."""
    room = model.context_length - len(request.prompt_ids)
    return room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)
