"""What counts as the end of an answer that has one forced call."""

from typing import Any

import pytest

from leyden.core.gateway.chat.request import parse_chat
from leyden.core.gateway.codecs.answer_reader import AnswerReader
from leyden.core.gateway.dialect import FinishedChoice
from leyden.core.testing.byte_codec import ByteCodec

BODY = b"""{"model": "m", "messages": [{"role": "user", "content": "hi"}], "parallel_tool_calls": false,
"tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}], "tool_choice": %s}"""


@pytest.mark.parametrize("choice", [b'{"type": "function", "function": {"name": "add"}}', b'"required"'])
def test_a_forced_call_that_is_cut_has_the_reason_length(choice: bytes) -> None:
    request: Any = parse_chat(BODY % choice)
    reader = AnswerReader(ByteCodec(), request, "call")
    text = b' {"a": "cut he'
    reader.push(list(text), [0.0] * len(text))
    reader.finish()
    finished = FinishedChoice(reader=reader, engine_finish="length", response_ids=list(text))
    assert len(reader.calls) == 1 and finished.cut
    assert finished.finish(request) == "length"
