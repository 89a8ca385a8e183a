import asyncio
from collections.abc import Iterator

import pytest

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning import semconv
from leyden.core.agent_lightning.replaced import ReplacedName
from leyden.core.errors import RewardError, UsageError
from leyden.core.testing import factories
from leyden.core.tracing.context import OpenAttempt, open_attempt


@pytest.fixture
def opened() -> Iterator[OpenAttempt]:
    attempt = factories.attempt()
    with open_attempt(attempt):
        yield attempt


def test_rewards_are_emitted_and_found(opened: OpenAttempt) -> None:
    agl.emit_reward(0.25, attributes={"why": "short"})
    agl.emit_message("between")
    agl.emit_reward({"format": 1.0, "correct": 0.5}, primary_key="correct")
    first, between, last = opened.notes
    assert agl.find_reward_spans(opened.notes) == [first, last]
    assert (agl.get_reward_value(first), agl.find_final_reward(opened.notes)) == (0.25, 0.5)
    assert not agl.is_reward_span(between)
    assert first.attributes["why"] == "short"
    assert [(one.name, one.value) for one in agl.get_rewards_from_span(last)] == [("correct", 0.5), ("format", 1.0)]
    assert [(one.name, one.value) for one in agl.get_rewards_from_span(first)] == [("primary", 0.25)]
    assert agl.get_rewards_from_span(between) == []
    assert agl.find_final_reward([]) is None


def test_named_rewards_need_the_one_that_counts() -> None:
    with pytest.raises(UsageError, match="primary_key="):
        agl.emit_reward({"correct": 1.0})
    with pytest.raises(RewardError, match="dimensions are: correct"):
        agl.emit_reward({"correct": 1.0}, primary_key="style")


def test_functions_with_reward_emit_what_they_return(opened: OpenAttempt) -> None:
    @agl.reward
    def score(answer: str) -> float:
        return len(answer) / 10

    @agl.reward
    async def judge() -> float:
        return 0.75

    assert score("four") == 0.4
    assert asyncio.run(judge()) == 0.75
    assert [agl.get_reward_value(span) for span in agl.find_reward_spans(opened.notes)] == [0.4, 0.75]


def test_values_are_emitted_and_read_again(opened: OpenAttempt) -> None:
    agl.emit_message("hello", {"lang": "en"})
    agl.emit_object({"rows": [1, 2]}, {"kind": "table"})
    agl.emit_exception(ValueError("no"), {"step": 3})
    agl.emit_annotation({"tag": "fast", "of": {"tool": "sql"}})
    message, thing, error, annotation = opened.notes
    assert (agl.get_message_value(message), message.attributes["lang"]) == ("hello", "en")
    assert (agl.get_object_value(thing), thing.attributes["kind"]) == ({"rows": [1, 2]}, "table")
    assert (agl.get_message_value(thing), agl.get_object_value(message)) == (None, None)
    assert (error.status.description, error.attributes["step"]) == ("no", 3)
    assert (annotation.name, annotation.attributes) == (semconv.AGL_ANNOTATION, {"tag": "fast", "of.tool": "sql"})
    names = [semconv.AGL_MESSAGE, semconv.AGL_OBJECT, semconv.AGL_EXCEPTION, semconv.AGL_ANNOTATION]
    assert [span.name for span in opened.notes] == names
    assert message.name == agl.SpanNames.MESSAGE


def test_operations_record_what_they_were_given_and_returned(opened: OpenAttempt) -> None:
    @agl.operation
    def search(query: str, limit: int = 3) -> list[str]:
        return [query] * limit

    @agl.operation(name="judge", of="answers")
    async def grade(answer: str) -> float:
        return float(len(answer))

    search("bikes", 2)
    asyncio.run(grade("ab"))
    with agl.operation(name="plan", depth=2) as one:
        one.set_input("a", goal="b")
        one.set_output({"steps": 1})
    with agl.operation():
        pass
    assert [(span.name, span.attributes) for span in opened.notes] == [
        ("search", {"input": '{"query": "bikes", "limit": 2}', "output": '["bikes", "bikes"]'}),
        ("judge", {"of": "answers", "input": '{"answer": "ab"}', "output": "2.0"}),
        ("plan", {"depth": 2, "input": '{"args": ["a"], "goal": "b"}', "output": '{"steps": 1}'}),
        (semconv.AGL_OPERATION, {}),
    ]


def test_an_operation_that_fails_records_its_error(opened: OpenAttempt) -> None:
    with pytest.raises(ValueError, match="broken"), agl.operation(name="search"):
        raise ValueError("broken")
    assert (opened.notes[0].status.code, opened.notes[0].attributes["error.type"]) == ("error", "ValueError")


def test_what_has_no_meaning_here_is_refused() -> None:
    with pytest.raises(ReplacedName, match=r"store\.add_span"):
        agl.emit_message("hello", propagate=False)
    with pytest.raises(TypeError, match="emit_object"):
        agl.emit_message(3)  # pyright: ignore[reportArgumentType]  # what an agent may pass
    with pytest.raises(RuntimeError, match="inside the block"):
        agl.operation(name="late").set_output(1)
