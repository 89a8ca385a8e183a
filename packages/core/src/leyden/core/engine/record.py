"""Engine records: builds the engine's own record of a call from the chunks that it returned."""

import logging
from collections.abc import Callable, Iterable, Sequence

from leyden.core.engine.base import EngineRecord, GenerateRequest, TokenChunk

logger = logging.getLogger(__name__)


def report(
    on_finish: Callable[[EngineRecord], None] | None,
    request: GenerateRequest,
    delivered: Sequence[TokenChunk],
    version: int,
) -> None:
    """Pass the record of a finished call to `on_finish`; an exception there is logged and does not affect the call."""
    if on_finish is None:
        return
    try:
        on_finish(record_of(request, delivered, version))
    except Exception:
        logger.exception("The engine's record of call %s could not be logged", request.request_id)


def record_of(request: GenerateRequest, delivered: Sequence[TokenChunk], version: int) -> EngineRecord:
    """Return the record of a call that ended after `delivered`; "abort" unless the last chunk has another reason.

    `version` is the version being served, for a call that generated nothing.
    """
    versions = version_ranges((chunk.version, len(chunk.ids)) for chunk in delivered)
    return EngineRecord(
        request_id=request.request_id,
        prompt_ids=request.prompt_ids,
        response_ids=[token for chunk in delivered for token in chunk.ids],
        logprobs=[value for chunk in delivered for value in chunk.logprobs],
        sampling_logprobs=[value for chunk in delivered for value in chunk.sampling_logprobs],
        version=versions[0][0] if versions else version,
        versions=versions,
        finish_reason=(delivered[-1].finish_reason if delivered else None) or "abort",
    )


def version_ranges(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (version, tokens) pairs with equal neighbours merged, and without pairs of no tokens."""
    ranges: list[tuple[int, int]] = []
    for version, tokens in parts:
        if not tokens:
            continue
        if ranges and ranges[-1][0] == version:
            ranges[-1] = (version, ranges[-1][1] + tokens)
        else:
            ranges.append((version, tokens))
    return ranges
