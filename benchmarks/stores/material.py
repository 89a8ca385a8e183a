"""Spans as agents make them: a light one, of a tool call, and a chat span with its tokens. Knows no store.

No span begins as another one does, so that a store that keeps shared beginnings once has to write each whole, as the
floors do.
"""

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Literal

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Attributes, Span
from leyden.core.data.tokens import pack_ids, pack_log_probs

PROMPT_IDS, RESPONSE_IDS, VOCABULARY = 1000, 200, 150_000
ANSWER_WORDS, QUESTION_WORDS = 130, 650
SPANS_OF_ATTEMPT = 20
"""How many spans an attempt has, one after the other; a commit of a hundred holds those of several attempts."""

Kind = Literal["light", "chat"]


def make_spans(kind: Kind, attempts: Sequence[Attempt], count: int, first: int = 0) -> list[Span]:
    """Return `count` spans, each attempt's twenty in a row; numbers of spans begin at `first`."""
    attributes = _light if kind == "light" else _chat
    return [
        Span(
            rollout_id=attempts[n // SPANS_OF_ATTEMPT].rollout_id,
            attempt_id=attempts[n // SPANS_OF_ATTEMPT].attempt_id,
            sequence_id=0,
            trace_id=f"{n // SPANS_OF_ATTEMPT + 1:032x}",
            span_id=f"{first + n:016x}",
            parent_id="00f067aa0ba902b7",
            name="search" if kind == "light" else "chat gpt-4o",
            start_time=1_700_000_000.25 + n,
            end_time=1_700_000_001.5 + n,
            attributes=attributes(first + n),
        )
        for n in range(count)
    ]


def attempts_for(spans: int) -> int:
    """How many attempts so many spans are of."""
    return -(-spans // SPANS_OF_ATTEMPT)


def _light(n: int) -> Attributes:
    """A tool call: half a kilobyte as JSON, with the fields around it."""
    return {
        semconv.OPERATION: "execute_tool",
        semconv.TOOL_NAME: "search",
        semconv.TOOL_CALL_ID: f"call_{n:024x}",
        semconv.TOOL_ARGUMENTS: json.dumps({"query": f"population of city {n}", "limit": 5}),
        semconv.TOOL_RESULT: json.dumps({"found": n, "text": f"City {n} has {7 * n} people."}),
        semconv.LATENCY: 0.125,
    }


def _chat(n: int) -> Attributes:
    """A model call with its ids and log-probabilities, and text of the length that as many tokens have."""
    draw = random.Random(n)
    answer = _words(draw, ANSWER_WORDS)
    return {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "leyden",
        semconv.REQUEST_MODEL: "gpt-4o",
        semconv.RESPONSE_MODEL: "gpt-4o",
        semconv.RESPONSE_ID: f"chatcmpl-{n:024x}",
        semconv.FINISH_REASONS: ["stop"],
        semconv.INPUT_TOKENS: PROMPT_IDS,
        semconv.OUTPUT_TOKENS: RESPONSE_IDS,
        semconv.INPUT_MESSAGES: json.dumps([{"role": "user", "content": _words(draw, QUESTION_WORDS)}]),
        semconv.OUTPUT_MESSAGES: json.dumps([{"role": "assistant", "content": answer}]),
        semconv.POLICY_VERSION: 1,
        semconv.PROMPT_IDS: pack_ids(draw.choices(range(VOCABULARY), k=PROMPT_IDS)),
        semconv.RESPONSE_IDS: pack_ids(draw.choices(range(VOCABULARY), k=RESPONSE_IDS)),
        semconv.RESPONSE_LOGPROBS: pack_log_probs([-draw.random() for _ in range(RESPONSE_IDS)]),
    }


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(_vocabulary(), k=count))


@cache
def _vocabulary() -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(5000)]
