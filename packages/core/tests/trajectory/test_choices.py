import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data import semconv
from leyden.core.data.span import Attributes, Span
from leyden.core.runner.attempts.annotations import shortened
from leyden.core.testing import factories
from leyden.core.trajectory.choices import unused_choices

Messages = list[dict[str, Any]]
ASKED: Messages = [{"role": "user", "content": "Which city?"}]
WORDS = st.sampled_from(["Leiden", "Delft", "yes", "no", "4", "42", "it's \n Köln"])


def span(place: int, attributes: Attributes) -> Span:
    return factories.span("chat", attributes, sequence_id=place, span_id=f"{place}", start_time=float(place))


def call(place: int, read: object, wrote: object, *, answer: str | None = None) -> Span:
    """A recorded call; those with one `answer` are its choices."""
    return span(
        place,
        {
            semconv.INPUT_MESSAGES: json.dumps(read),
            semconv.OUTPUT_MESSAGES: json.dumps(wrote),
            semconv.RESPONSE_ID: answer or f"answer-{place}",
            semconv.CHOICE_INDEX: place if answer else 0,
        },
    )


def said(text: str | None, *call_ids: str) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in call_ids]
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def choices(*texts: str, read: Messages = ASKED) -> list[Span]:
    return [call(place, read, [said(text)], answer="one") for place, text in enumerate(texts)]


def unused(calls: list[Span], result: object = None) -> set[str]:
    spans = calls if result is None else [*calls, span(99, {semconv.RESULT: shortened(result).value})]
    return set(unused_choices(calls, spans))


def test_the_choice_that_a_later_call_repeats_was_used() -> None:
    later = call(5, [*ASKED, said(" Delft\n"), {"role": "user", "content": "Sure? Leiden?"}], [said("Yes")])
    assert unused([*choices("Leiden", "Delft", "Gouda"), later]) == {"0", "2"}


def test_a_call_that_was_made_before_repeats_nothing() -> None:
    assert unused([call(0, [said("Delft")], [said("?")]), call(1, ASKED, [said("Delft")], answer="one")]) == set()
    earlier = call(0, [*ASKED, said("b")], [said("?")])
    both = [call(place, ASKED, [said(text)], answer="one") for place, text in ((1, "a"), (2, "b"))]
    assert unused([earlier, *both]) == {"1", "2"}


def test_what_the_call_had_read_already_must_stand_there_once_more() -> None:
    history = [*ASKED, said("yes"), {"role": "user", "content": "And now?"}]
    calls = choices("yes", "no", read=history)
    assert unused([*calls, call(5, [*history, said("no")], [said("ok")])]) == {"0"}
    assert unused([*calls, call(5, [*history, said("yes")], [said("ok")])]) == {"1"}


def test_what_another_answer_said_since_is_not_this_choice() -> None:
    calls = [*choices("yes", "no"), call(5, [*ASKED, said("no")], [said("yes")])]
    assert unused([*calls, call(6, [*ASKED, said("no"), said("yes")], [said("ok")])]) == {"0"}
    assert unused([*calls, call(6, [*ASKED, said("no"), said("yes"), said("yes")], [said("ok")])]) == set()


def test_twin_choices_of_another_answer_can_have_been_said_once_alone() -> None:
    beside = [call(3 + n, ASKED, [said("yes")], answer="other") for n in range(2)]
    later = call(6, [*ASKED, said("yes"), said("yes")], [said("ok")])
    assert unused([*choices("yes", "no"), *beside, later]) == {"1"}


def prompted(place: int, prompt: str, wrote: str, *, answer: str | None = None) -> Span:
    """A call of the Completions API."""
    one = call(place, [{"role": "user", "content": prompt}], [said(wrote)], answer=answer)
    return msgspec.structs.replace(one, attributes={**one.attributes, semconv.DIALECT: "completions"})


@pytest.mark.parametrize(
    ("later", "used"),
    [
        ("One. Two.\nThen?", 0),
        ("One. Two and a half.\nThen?", 1),
        ("One.\nTwo.", 0),
        ("Two. One.", None),
        ("One. Three.", None),
        ("One.", None),
    ],
)
def test_a_prompt_goes_on_from_the_choice_with_the_longest_text(later: str, used: int | None) -> None:
    texts = (" Two", " Two and a half", "  ")
    made = [prompted(n, "One.", text, answer="a") for n, text in enumerate(texts)]
    left = unused([*made, prompted(3, later, "x")])
    assert left == {span.span_id for n, span in enumerate(made) if n != used}


def test_a_tool_call_is_known_by_its_id() -> None:
    calls = [call(n, ASKED, [said(None, f"call-{n}", f"more-{n}")], answer="one") for n in range(3)]
    answered = [*ASKED, said(None, "call-1"), {"role": "tool", "tool_call_id": "call-1", "content": "12"}]
    assert unused([*calls, call(5, answered, [said("done")])]) == {"0", "2"}
    result_alone = [*ASKED, {"role": "tool", "tool_call_id": "more-2", "content": "12"}]
    assert unused([*calls, call(5, result_alone, [said("done")])]) == {"0", "1"}


def test_response_items_are_read_as_messages_are() -> None:
    def item(text: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}

    called = {"type": "function_call", "call_id": "call-2", "name": "f", "arguments": "{}"}
    calls = [call(n, "Which city?", [out], answer="one") for n, out in enumerate([item("a"), item("b"), called])]
    assert unused([*calls, call(5, [*ASKED, item("b")], [item("c")])]) == {"0", "2"}
    outcome = {"type": "function_call_output", "call_id": "call-2", "output": "12"}
    assert unused([*calls, call(5, [*ASKED, called, outcome], [item("c")])]) == {"0", "1"}


@pytest.mark.parametrize(
    "result",
    [
        "Leiden",
        "It is Leiden.",
        {"city": "Leiden", "sure": True},
        ["?", "A:\nLeiden"],
        json.dumps({"text": "A:\nLeiden"}),
    ],
)
def test_the_choice_that_the_agent_returned_was_used(result: object) -> None:
    assert unused(choices("Leiden", "Delft", "Lei", ""), result) == {"1", "2", "3"}


@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_json_escapes_is_read(ascii_only: bool) -> None:
    result = json.dumps({"do": 'say "Köln"'}, ensure_ascii=ascii_only)
    assert unused(choices('say "Köln"', 'say "Delft"'), result) == {"1"}


@pytest.mark.parametrize("kind", ["text", "dict", "list"])
@pytest.mark.parametrize("length", [150, 700, 3000])
def test_a_result_that_is_recorded_shortened_still_tells(kind: str, length: int) -> None:
    texts = [f"It's {name}:\n" + "really\t" * (length // 7) + name for name in ("Leiden", "Delft")]
    results: dict[str, object] = {"text": texts[1], "dict": {"answer": texts[1]}, "list": [texts[1]]}
    assert unused(choices(*texts), results[kind]) == {"0"}


def test_an_empty_choice_is_in_no_result() -> None:
    assert unused(choices("", "  "), "anything at all") == {"0", "1"}


@pytest.mark.parametrize(
    "messages", [None, 12, "not json", "{}", "[1, null, {}]", "[" * 100_000, '[{"role": "assistant"}]']
)
def test_messages_that_cannot_be_read_say_nothing(messages: Any) -> None:
    calls = choices("Leiden", "Delft")
    odd = span(5, {semconv.INPUT_MESSAGES: messages, semconv.OUTPUT_MESSAGES: messages})
    assert unused([*calls, odd], "Delft") == {"0"}


@given(texts=st.lists(WORDS, min_size=1, max_size=6), result=WORDS)
def test_the_only_choice_of_an_answer_is_always_used(texts: list[str], result: str) -> None:
    calls = [call(place, ASKED, [said(text)]) for place, text in enumerate(texts)]
    assert unused(calls, result) == set()
    same_choice_twice = [span(n, {semconv.RESPONSE_ID: "one", semconv.CHOICE_INDEX: 0}) for n in range(2)]
    assert unused(same_choice_twice, result) == set()


@given(rounds=st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=4), st.integers(0, 3)), min_size=1, max_size=5))
def test_of_any_conversation_just_the_choices_that_went_on_were_used(rounds: list[tuple[list[str], int]]) -> None:
    history, calls, went_on = list(ASKED), list[Span](), dict[str, str]()
    for turn, (texts, chosen) in enumerate(rounds):
        kept = texts[chosen % len(texts)]
        for index, text in enumerate(texts):
            calls.append(call(10 * turn + index, history, [said(text)], answer=f"turn-{turn}"))
            if text == kept or len(texts) == 1:
                went_on[calls[-1].span_id] = text
        history = [*history, said(kept), {"role": "user", "content": "Go on."}]
    calls.append(call(100, history, [said("Done.")]))
    assert unused(calls, "Done.") == {each.span_id for each in calls[:-1]} - set(went_on)
