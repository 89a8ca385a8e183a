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
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.rollout import Attempt
from leyden.core.data.span import Attributes, Span

PROMPT_IDS, RESPONSE_IDS, TOOL_IDS, VOCABULARY = 1000, 200, 150, 150_000
ANSWER_WORDS, QUESTION_WORDS, TOOL_WORDS, SYSTEM_WORDS = 130, 650, 100, 400
"""So many words come to so many tokens; the first prompt of a conversation also has its tools."""
SPANS_OF_ATTEMPT = 20
"""How many spans an attempt has, one after the other; a commit of a hundred holds those of several attempts."""

Kind = Literal["light", "chat"]


def make_spans(kind: Kind, attempts: Sequence[Attempt], count: int, first: int = 0) -> list[Span]:
    """Return `count` spans, each attempt's twenty in a row; numbers of spans begin at `first`."""
    attributes = _light if kind == "light" else _chat
    name = "search" if kind == "light" else "chat gpt-4o"
    return [
        _span(attempts[n // SPANS_OF_ATTEMPT], first + n, name, attributes(first + n), n // SPANS_OF_ATTEMPT + 1)
        for n in range(count)
    ]


def _span(attempt: Attempt, n: int, name: str, attributes: Attributes, trace: int = 1) -> Span:
    return Span(
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.attempt_id,
        sequence_id=0,
        trace_id=f"{trace:032x}",
        span_id=f"{n:016x}",
        parent_id="00f067aa0ba902b7",
        name=name,
        start_time=1_700_000_000.25 + n,
        end_time=1_700_000_001.5 + n,
        attributes=attributes,
    )


def make_conversation(attempt: Attempt, turns: int, first: int = 0) -> list[Span]:
    """Return the calls of an agent with tools as the gateway records them; numbers of spans begin at `first`.

    Its first prompt has 1,000 tokens, each answer 200, and what its tool says then 150; every prompt goes on from the
    one before.
    """
    draw = random.Random(first)
    messages = [_message("system", _words(draw, SYSTEM_WORDS)), _message("user", _words(draw, ANSWER_WORDS))]
    ids = draw.choices(range(VOCABULARY), k=PROMPT_IDS)
    tools = json.dumps(
        [{"type": "function", "function": {"name": name, "description": _words(draw, 60)}} for name in "ab"]
    )
    spans: list[Span] = []
    for n in range(first, first + turns):
        answer, wrote = (
            draw.choices(range(VOCABULARY), k=RESPONSE_IDS),
            _message("assistant", _words(draw, ANSWER_WORDS)),
        )
        logprobs = pack_log_probs([-draw.random() for _ in answer])
        input_messages = json.dumps(messages)
        attributes: Attributes = {
            **_call_of(attempt, n),
            semconv.INPUT_MESSAGES: input_messages,
            semconv.TOOL_DEFINITIONS: tools,
            semconv.OUTPUT_MESSAGES: json.dumps([wrote]),
            semconv.INPUT_TOKENS: len(ids),
            semconv.OUTPUT_TOKENS: len(answer),
            semconv.PROMPT_IDS: pack_ids(ids),
            semconv.RESPONSE_IDS: pack_ids(answer),
            semconv.RESPONSE_LOGPROBS: logprobs,
            semconv.SAMPLING_LOGPROBS: logprobs,
        }
        spans.append(_span(attempt, n, "chat gpt-4o", attributes))
        ids += [*answer, *draw.choices(range(VOCABULARY), k=TOOL_IDS)]
        messages += [wrote, _message("tool", _words(draw, TOOL_WORDS))]
    return spans


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _call_of(attempt: Attempt, n: int) -> Attributes:
    """What the gateway says of every call, whatever it is about."""
    return {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "leyden",
        semconv.ROLLOUT_ID: attempt.rollout_id,
        semconv.ATTEMPT_ID: attempt.attempt_id,
        semconv.AGENT_NAME: "solver",
        semconv.REQUEST_MODEL: "gpt-4o",
        semconv.REQUEST_STREAM: False,
        semconv.SAMPLING_ASKED: json.dumps({"temperature": 0}),
        semconv.RESPONSE_MODEL: "policy",
        semconv.RESPONSE_ID: f"chatcmpl-{n:024x}",
        semconv.FINISH_REASONS: ["tool_calls"],
        semconv.CALL_ID: f"call-{n:024x}",
        semconv.CHOICE_INDEX: 0,
        semconv.FINGERPRINT: f"{n:032x}",
        semconv.DIALECT: "chat",
        semconv.POLICY: "policy",
        semconv.LATENCY: 1.25,
        semconv.POLICY_VERSION: 1,
        semconv.POLICY_VERSIONS: [1, RESPONSE_IDS],
        semconv.ENGINE_FINISH: "stop",
        semconv.SAMPLING_USED: json.dumps({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 512, "seed": n}),
    }


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
