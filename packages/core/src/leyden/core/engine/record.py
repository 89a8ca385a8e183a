"""What an engine's own log says of a call, made from the chunks it handed out. Knows nothing of how they were drawn."""

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
    """Give the record of a call that has ended to whoever keeps a log; the call does not suffer where that fails."""
    if on_finish is None:
        return
    try:
        on_finish(record_of(request, delivered, version))
    except Exception:
        logger.exception("The engine's log of call %s was not taken", request.request_id)


def record_of(request: GenerateRequest, delivered: Sequence[TokenChunk], version: int) -> EngineRecord:
    """Return the record of a call that ended after `delivered`; "abort" unless the last chunk says otherwise.

    `version` is what was being served, for a call that drew nothing.
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
    """Return (version, tokens) `parts` with neighbours of one version as one, and without those of no token."""
    ranges: list[tuple[int, int]] = []
    for version, tokens in parts:
        if not tokens:
            continue
        if ranges and ranges[-1][0] == version:
            ranges[-1] = (version, ranges[-1][1] + tokens)
        else:
            ranges.append((version, tokens))
    return ranges
