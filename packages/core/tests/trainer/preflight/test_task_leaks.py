import json
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Span
from leyden.core.runner.isolation.choice import NOTHING_SHARED
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.preflight.evidence import Evidence
from leyden.core.trainer.preflight.task_leaks import check_isolation, leaks, own_words
from leyden.core.trainer.rollouts.recorded import RecordedRollout

PARIS = {"question": "Which river flows through Paris in France?", "answer": "Seine"}
OSLO = {"question": "What is the currency of Norway?", "answer": "krone"}
CAIRO = {"question": "Who built the pyramids near Cairo?", "answer": "pharaohs"}
SHARED = "all rollouts share history (list), which ask() of agent.py uses"


def recorded(
    task: Any, number: int = 0, *, user: str = "", assistant: str = "", wrote: str = "", result: str = ""
) -> RecordedRollout:
    """A rollout of one call, whose prompt holds the task's question and what else is given."""
    question: str = task if isinstance(task, str) else task["question"]
    messages = [
        {"role": "system", "content": "You know geography."},
        {"role": "assistant", "content": assistant},
        {"role": "user", "content": [{"type": "text", "text": f"{user} {question}"}]},
    ]
    attributes: dict[str, Any] = {
        semconv.CALL_ID: "c",
        semconv.INPUT_MESSAGES: json.dumps(messages),
        semconv.OUTPUT_MESSAGES: json.dumps([{"role": "assistant", "content": wrote}]),
    }
    ids: dict[str, Any] = {"rollout_id": f"r{number}", "attempt_id": "a", "trace_id": "1" * 32, "start_time": 0.0}
    spans = [
        Span(**ids, sequence_id=1, span_id="1" * 16, name="chat", attributes=attributes),
        Span(**ids, sequence_id=2, span_id="2" * 16, name=semconv.RESULT, attributes={semconv.RESULT: result}),
    ]
    rollout = Rollout(rollout_id=f"r{number}", input=task, status="succeeded", start_time=0.0)
    attempt = Attempt(rollout_id=f"r{number}", attempt_id="a", sequence_id=1, status="succeeded", start_time=0.0)
    return RecordedRollout(rollout=rollout, attempts=[(attempt, spans)])


def evidence(rollouts: list[RecordedRollout], *isolation: str) -> Evidence:
    config = RunConfig(name="n", agent="a.py:a", tasks="t", policy="p")
    return Evidence(config, 4096, rollouts=rollouts, isolation=list(isolation))


def test_words_are_a_tasks_own_when_no_other_task_has_them() -> None:
    own = own_words([recorded(PARIS, 0), recorded(PARIS, 1), recorded({"question": "Paris or Oslo, which river?"}, 2)])
    assert [sorted(words) for words in own.values()] == [["flows", "france", "seine", "through"], ["oslo"]]


def test_rollouts_that_hold_their_own_task_alone_are_fine() -> None:
    rollouts = [recorded(task, n, result=task["answer"]) for n, task in enumerate([PARIS, OSLO, PARIS, CAIRO])]
    result = check_isolation(evidence(rollouts))
    assert result.status == "ok"
    assert "is in another's rollouts" in result.seen


@pytest.mark.parametrize("where", ["user", "result"])
def test_another_tasks_question_in_a_prompt_or_a_result_fails_the_run(where: str) -> None:
    extra: dict[str, Any] = {where: f"Earlier: {OSLO['question']}"}
    rollouts = [recorded(PARIS, 0, **extra), recorded(OSLO, 1), recorded(CAIRO, 2)]
    result = check_isolation(evidence(rollouts, SHARED))
    assert result.status == "failure"
    assert "1 of 3 rollouts hold words of another task: r0 has 'what is the currency of norway?'" in result.seen
    assert "history (list)" in result.seen
    assert "--isolation process" in result.change


def test_a_question_in_other_words_is_certain_when_nearly_all_of_its_own_words_are_there() -> None:
    rollouts = [recorded(PARIS, 0, user="what currency, krone, Norway has"), recorded(OSLO, 1), recorded(CAIRO, 2)]
    (found,) = leaks(rollouts)
    assert (found.rollout_id, found.words, found.is_certain) == ("r0", ("currency", "krone", "norway", "what"), True)


def test_a_single_word_is_a_warning_that_becomes_a_failure_where_something_is_shared() -> None:
    rollouts = [recorded(PARIS, 0, user="Unlike Cairo:"), recorded(OSLO, 1), recorded(CAIRO, 2)]
    assert check_isolation(evidence(rollouts)).status == "warning"
    assert check_isolation(evidence(rollouts, "each rollout runs in a process of its own")).status == "warning"
    assert check_isolation(evidence(rollouts, SHARED)).status == "failure"


def test_single_words_are_reported_and_no_warning_where_nothing_can_pass() -> None:
    rollouts = [recorded(PARIS, 0, user="Unlike Cairo:"), recorded(OSLO, 1), recorded(CAIRO, 2)]
    result = check_isolation(evidence(rollouts, NOTHING_SHARED))
    assert result.status == "ok"
    assert result.seen == f"1 of 3 rollouts hold words of another task: r0 has 'cairo'; {NOTHING_SHARED}"
    assert check_isolation(evidence(rollouts, NOTHING_SHARED, SHARED)).status == "failure"
    whole = [recorded(PARIS, 0, user=OSLO["question"]), recorded(OSLO, 1), recorded(CAIRO, 2)]
    assert check_isolation(evidence(whole, NOTHING_SHARED)).status == "failure"


def test_what_the_model_wrote_and_what_every_prompt_holds_is_no_crossing() -> None:
    guessed = recorded(PARIS, 0, assistant="Norway, currency and krone", wrote="pyramids", result="pyramids")
    example = "Example: Who built the pyramids near Cairo? The pharaohs."
    everywhere = [recorded(task, n, user=example) for n, task in enumerate([PARIS, OSLO, CAIRO] * 2)]
    assert leaks([guessed, recorded(OSLO, 1), recorded(CAIRO, 2)]) == []
    assert leaks(everywhere) == []


def test_where_there_is_nothing_to_compare_it_is_said() -> None:
    assert check_isolation(evidence([])).status == "unchecked"
    assert "only one task" in check_isolation(evidence([recorded(PARIS, 0), recorded(PARIS, 1)])).seen
    sums = [recorded("1+1", 0), recorded("2+2", 1)]
    proven = check_isolation(evidence(sums, NOTHING_SHARED))
    assert (proven.status, NOTHING_SHARED in proven.seen) == ("ok", True)
    assert check_isolation(evidence(sums, SHARED)).status == "warning"


def test_short_words_are_found_as_a_whole_sentence() -> None:
    rollouts = [recorded("What is 1 + 2?", 0, user="what is 3 + 4?"), recorded("What is 3 + 4?", 1)]
    (found,) = leaks(rollouts)
    assert (found.rollout_id, found.words, found.is_certain) == ("r0", ("what is 3 + 4?",), True)


def test_a_text_that_the_model_itself_wrote_is_no_leak_where_a_later_prompt_repeats_it() -> None:
    query = {"question": "How tall is it on average?", "gold": "SELECT AVG(height) FROM towers"}
    rollouts = [
        recorded(PARIS, 0, user=f"Check this: {query['gold']}", wrote=query["gold"]),
        *(recorded(task, number) for number, task in enumerate([query, OSLO, CAIRO], 1)),
    ]
    assert check_isolation(evidence(rollouts, SHARED)).status == "ok"
