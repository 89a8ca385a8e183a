"""The zoo's own checks find what they are there for: each test here gives them one thing that is wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from zoo_harness.agent_file import BadAgentFile, ZooAgent, read_agent
from zoo_harness.checks import author_problems, dev_problems, same_problems
from zoo_harness.observing import plain, without_uuids
from zoo_harness.script import Script, Turn
from zoo_harness.trial import GROUP, Seen, SeenRollout, Trial
from zoo_harness.wire import turns_of

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.rollout import Attempt, Rollout
from leyden.core.data.span import Attributes, Span
from leyden.core.engine.base import EngineRecord
from leyden.core.testing.factories import span
from leyden.core.trainer.rollouts.recorded import RecordedRollout

GOOD = """
tasks:
  - question: About lighthouses
  - question: About submarines
model:
  - when: About (\\w+)
    say: On \\1.
calls: 1
result: [On lighthouses., On submarines.]
agents: [guide]
tools: [search]
"""
TOPICS = ("lighthouses", "submarines")


def written(folder: Path, text: str) -> ZooAgent:
    path = folder / "plain" / "guide.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'r"""A guide.\n---\n{text}"""\n')
    return read_agent(path)


def body(topic: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": f"About {topic}"}]}


def seen(kind: type[Any], task: int, **more: Any) -> Any:
    topic = TOPICS[task]
    return kind(task=task, result=f"On {topic}.", state=1, requests=[body(topic)], printed=f"asked {topic}\n", **more)


def rollout(task: int, **more: Any) -> SeenRollout:
    name = f"test-{task}"
    call: Attributes = {
        semconv.CALL_ID: f"call-{name}",
        semconv.PROMPT_IDS: pack_ids([1, 2]),
        semconv.RESPONSE_IDS: pack_ids([3]),
        semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.1]),
        semconv.AGENT_NAME: "guide",
    }
    spans = [
        span("invoke_agent guide", span_id="a" * 16),
        span("execute_tool search", span_id="b" * 16, parent_id="a" * 16),
        span("chat", call, span_id="c" * 16, parent_id="a" * 16),
    ]
    log = EngineRecord(
        request_id=f"call-{name}",
        prompt_ids=[1, 2],
        response_ids=[3],
        logprobs=[-0.1],
        sampling_logprobs=[-0.1],
        version=0,
        versions=[(0, 1)],
        finish_reason="stop",
    )
    attempt = Attempt(rollout_id=name, attempt_id="at", sequence_id=1, start_time=0.0, status="succeeded")
    recorded = RecordedRollout(rollout=Rollout(rollout_id=name, input={}, start_time=0.0), attempts=[(attempt, spans)])
    return seen(SeenRollout, task, rollout_id=name, recorded=recorded, engine_log=[log], **more)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """A trial of which everything is right."""
    found = Trial(written(tmp_path, GOOD))
    found.author = [seen(Seen, task) for task in range(2)]
    found.dev = [rollout(task) for task in range(2)]
    found.log = "".join(one.printed for one in found.author) * (1 + GROUP)
    return found


def spans(trial: Trial) -> list[Span]:
    assert trial.dev[0].recorded is not None
    return trial.dev[0].recorded.attempts[0][1]


def change_call(trial: Trial, **attributes: Any) -> None:
    """Change attributes of the first rollout's call."""
    spans(trial)[2].attributes.update({getattr(semconv, name): value for name, value in attributes.items()})


def test_a_trial_in_which_all_is_right_has_no_problems(trial: Trial) -> None:
    assert author_problems(trial) == dev_problems(trial) == same_problems(trial) == []


RECORD: list[tuple[str, Callable[[Trial], Any], str]] = [
    ("lost", lambda trial: spans(trial).pop(), "call-test-0 is not recorded"),
    ("doubled", lambda trial: spans(trial).append(spans(trial)[2]), "call-test-0 is recorded 2 times"),
    ("invented", lambda trial: change_call(trial, CALL_ID="made-up"), "made-up is recorded and was never answered"),
    ("prompt", lambda trial: change_call(trial, PROMPT_IDS=pack_ids([1, 9])), "are not the engine's"),
    ("response", lambda trial: change_call(trial, RESPONSE_IDS=pack_ids([9])), "are not the engine's"),
    ("probability", lambda trial: change_call(trial, SAMPLING_LOGPROBS=pack_log_probs([-2.0])), "are not the engine's"),
    ("agent", lambda trial: change_call(trial, AGENT_NAME="another"), "calls are recorded for the agents ['another']"),
    ("parent", lambda trial: spans(trial).pop(0), "1 calls are recorded without what they are part of"),
    ("tool", lambda trial: spans(trial).pop(1), "the tools [] are recorded"),
    ("answers", lambda trial: trial.dev[0].engine_log.clear(), "the engine answered 0 calls"),
    (
        "crossing",
        lambda trial: change_call(trial, INPUT_MESSAGES="submarines"),
        "the word 'submarines' of another task",
    ),
    ("rule", lambda trial: trial.dev[0].unanswered.append("x"), "no rule for what the engine read"),
    ("failure", lambda trial: setattr(trial.dev[0], "error", {"type": "E", "text": "t"}), "it failed: E: t"),
]


@pytest.mark.parametrize(("change", "words"), [row[1:] for row in RECORD], ids=[row[0] for row in RECORD])
def test_a_fault_of_the_record_is_found(trial: Trial, change: Callable[[Trial], Any], words: str) -> None:
    change(trial)
    assert any(words in line for line in dev_problems(trial)), dev_problems(trial)


BEHAVIOUR: list[tuple[str, Callable[[Trial], Any], str]] = [
    ("result", lambda trial: setattr(trial.dev[0], "result", "else"), "result differs"),
    ("state", lambda trial: setattr(trial.dev[0], "state", 2), "state differs"),
    ("error", lambda trial: setattr(trial.dev[0], "error", {"type": "E", "text": "t"}), "error differs"),
    ("request", lambda trial: trial.dev[0].requests[0].update(temperature=1), "requests differs"),
    ("call more", lambda trial: trial.dev[0].requests.append(body("x")), "requests differs"),
    ("leak", lambda trial: trial.leaked.append(body("x")), "went to the agent's own provider"),
    ("request more", lambda trial: setattr(trial, "others", 1), "1 other requests"),
    ("printed less", lambda trial: setattr(trial, "log", "asked submarines\n"), "not printed with Leyden: asked light"),
    ("printed more", lambda trial: setattr(trial, "log", trial.log + "hello\n"), "printed with Leyden alone: hello"),
]


@pytest.mark.parametrize(("change", "words"), [row[1:] for row in BEHAVIOUR], ids=[row[0] for row in BEHAVIOUR])
def test_another_behaviour_is_found(trial: Trial, change: Callable[[Trial], Any], words: str) -> None:
    change(trial)
    assert any(words in line for line in same_problems(trial)), same_problems(trial)


def test_lines_of_rollouts_that_print_at_once_may_be_mixed(trial: Trial) -> None:
    trial.log = "asked asked lighthouses\nsubmarines\n" * (1 + GROUP)
    assert same_problems(trial) == []


def test_a_warning_may_stand_in_a_line_that_was_not_ended_yet(trial: Trial) -> None:
    trial.author[0].written = "slow\n"
    trial.log = trial.log.replace("asked lighthouses\n", "asked lighthousesWARNING:lib.llm:slow\n\n", 1)
    assert same_problems(trial) == []


def test_durations_levels_and_frames_of_tracebacks_are_not_compared(trial: Trial) -> None:
    trial.author[0].printed += "| Time: 396.48ms  |\n"
    trial.author[0].written = 'slow\n  File "a.py", line 1, in f\n    g()\n\nKeyError\n'
    trial.log += (
        "| Time: 65.32ms   |\nWARNING:lib.llm:slow\n" + '  File "b.py", line 7, in handled\n    h()\nKeyError\n'
    )
    assert same_problems(trial) == []


def test_an_agent_that_does_not_do_what_its_file_says_is_found(trial: Trial) -> None:
    trial.author[0].result, trial.author[1].requests = "else", []
    lines = author_problems(trial)
    assert any("does not hold 'On lighthouses.'" in line for line in lines)
    assert any("0 model calls, and the file says 1" in line for line in lines)


BAD_FILES = {
    "unknown field": (GOOD + "resutl: x\n", "resutl"),
    "one task": (GOOD.replace("  - question: About submarines\n", ""), "at least two tasks"),
    "no end": (GOOD.replace("result: [On lighthouses., On submarines.]\n", ""), "exactly one of `result` and `raises`"),
    "too few results": (GOOD.replace(", On submarines.", ""), "`result` has 1 items for 2 tasks"),
    "a mark without its problem": (GOOD + "broken: it does not work\n", "need `seen`"),
    "a rule without an answer": (GOOD.replace("    say: On \\1.\n", ""), "a rule needs `say`"),
    "a pattern that is none": (GOOD.replace("(\\w+)", "(\\w+"), "guide.py"),
}


@pytest.mark.parametrize(("text", "words"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_does_not_follow_the_format_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadAgentFile) as raised:
        written(tmp_path, text)
    assert words in str(raised.value)


def test_the_first_rule_that_fits_answers(tmp_path: Path) -> None:
    text = GOOD.replace(
        "model:\n", "model:\n  - {status: 429, times: 1}\n  - {role: tool, seen: About (\\w+), say: \\1}\n"
    )
    script = Script(written(tmp_path, text).spec.model)
    asked = [Turn("user", "About maps")]
    assert script.answer(asked, only_errors=True).status == 429
    assert script.answer(asked, only_errors=True).is_given
    assert script.answer(asked).text == "On maps."
    assert script.answer([*asked, Turn("tool", "found")]).text == "maps"
    assert not script.unanswered
    script.answer([Turn("user", "else")])
    assert len(script.unanswered) == 1


def test_both_apis_are_read_as_the_same_conversation() -> None:
    function = {"name": "search", "arguments": "{}"}
    chat = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
            {"role": "tool", "content": "found"},
        ]
    }
    responses = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "1", **function},
            {"type": "function_call_output", "call_id": "1", "output": "found"},
        ],
    }
    assert [turn.role for turn in turns_of(chat)] == ["system", "user", "assistant", "tool"]
    for turns in (turns_of(chat), turns_of(responses)):
        assert [turn.text for turn in turns if turn.role != "assistant"] == ["Be brief.", "hi", "found"]
        assert "search" in turns[2].text


class Odd:
    def __init__(self) -> None:
        self.text, self.id = "a", object()

    def __repr__(self) -> str:
        raise RuntimeError("not shown")


def test_values_are_compared_by_class_and_content() -> None:
    assert plain(Odd()) == {"class": "Odd", "text": "a"}
    assert plain(ValueError("at 0x7f00deadbeef")) == {"class": "ValueError", "text": "at 0x"}
    assert plain("writer_070078f4-e0a7-4beb-a796-16f5f9a11f9a") == "writer_UUID"
    assert plain({"a": (1, "call_abc"), "id": 3}) == {"a": [1, "ID"]}
    assert plain(type("Text", (str,), {})("t")) != plain("t")


def test_a_group_of_a_uuid_is_no_word_of_a_task() -> None:
    assert without_uuids("id 1b4e28ba-7743-4d3b-8a2e-0123456789ab of 7743 francs") == "id UUID of 7743 francs"
