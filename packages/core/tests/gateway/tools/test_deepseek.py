import pytest

from leyden.core.gateway.codec import ToolCall
from leyden.core.gateway.tools.deepseek import CALL, CALLS, DEEPSEEK, END_CALL, END_CALLS, SEPARATOR
from leyden.core.gateway.tools.family import answer_parser, parse_answer

TOOLS = [{"type": "function", "function": {"name": "f"}}]
FENCED = f'{CALL}function{SEPARATOR}f\n```json\n{{"a": "```"}}\n```{END_CALL}'


def test_a_fence_in_a_string_does_not_end_the_arguments() -> None:
    answer = parse_answer(answer_parser(DEEPSEEK, TOOLS), f"Let me see.{CALLS}{FENCED}\n{FENCED}{END_CALLS}")
    assert answer.content == "Let me see."
    assert answer.tool_calls == (ToolCall(name="f", arguments='{"a": "```"}'),) * 2


def test_calls_whose_end_is_missing_are_still_calls() -> None:
    answer = parse_answer(answer_parser(DEEPSEEK, TOOLS), f"{CALLS}{FENCED}")
    assert (answer.content, len(answer.tool_calls)) == (None, 1)


@pytest.mark.parametrize(
    "text",
    [
        f"{CALLS}{END_CALLS}",
        f"{CALLS}{CALL}function{SEPARATOR}f\n```json\n[1]\n```{END_CALL}{END_CALLS}",
        f"{CALLS}{CALL}function{SEPARATOR}\n```json\n{{}}\n```{END_CALL}{END_CALLS}",
        f"{CALLS}{CALL}{SEPARATOR}{{}}{END_CALL}{END_CALLS}",
        FENCED,
    ],
)
def test_what_is_not_exactly_a_call_stays_content(text: str) -> None:
    answer = parse_answer(answer_parser(DEEPSEEK, TOOLS), text)
    assert (answer.content, answer.tool_calls) == (text, ())
