"""Prompt components in recorded calls: which texts are components, and which of their parts are variables."""

import random
import time
from itertools import count
from typing import Any

import msgspec
import pytest

from leyden.core.data import semconv
from leyden.core.data.prompts.edits import PromptComponent
from leyden.core.data.prompts.template import TextTemplate
from leyden.core.data.span import Span
from leyden.core.trajectory.prompts.discover import FoundPrompts, RecordedCalls, find_prompts

NUMBERS = count()
NOON = 1_764_158_400.0  # 26 November 2025, 12:00 UTC
TASKS = ["How many people live in Lima?", "Who wrote the first novel?", "Why is the sky blue at noon?"]


def call(
    *messages: tuple[str, Any], agent: str | None = None, node: str | None = None, **attributes: Any
) -> dict[str, Any]:
    recorded = [{"role": role, "content": content} for role, content in messages]
    known = {semconv.AGENT_NAME: agent, semconv.NODE: node}
    return {
        semconv.INPUT_MESSAGES: msgspec.json.encode(recorded).decode(),
        semconv.DIALECT: "chat",
        semconv.SAMPLING_USED: "{}",
        **{name: value for name, value in known.items() if value is not None},
        **{getattr(semconv, name): value for name, value in attributes.items()},
    }


def rollout(task: Any, *calls: dict[str, Any], at: float = NOON) -> RecordedCalls:
    rollout_id = f"rollout-{next(NUMBERS)}"
    spans = [
        Span(
            rollout_id=rollout_id, attempt_id="a", sequence_id=n, trace_id="0" * 32, span_id=f"{n:016x}", name="chat",
            start_time=at, attributes={semconv.CALL_ID: f"c{n}", semconv.RESPONSE_ID: f"r{next(NUMBERS)}", **values},
        )
        for n, values in enumerate(calls, 1)
    ]  # fmt: skip
    return RecordedCalls(task=task, spans=spans)


def texts(found: FoundPrompts) -> list[tuple[str, str]]:
    return [(component.name, component.text) for component in found.edits.components]


def test_instructions_and_a_template_around_the_task_are_components() -> None:
    found = find_prompts([
        rollout(
            {"question": task},
            call(("system", "Answer {briefly}."), ("user", f"Question: {task}\nAnswer:"), agent="writer", node="draft"),
            call(("system", "Answer {briefly}."), ("user", f"Question: {task}\nAnswer:"), agent="writer", node="draft"),
        )
        for task in TASKS
    ])  # fmt: skip
    assert found.edits.components == (
        PromptComponent(
            name="writer.draft.system", agent="writer", node="draft", role="system", text="Answer {{briefly}}.", calls=6
        ),
        PromptComponent(
            name="writer.draft.user", agent="writer", node="draft", role="user", text="Question: {v1}\nAnswer:", calls=6
        ),
    )
    assert (found.calls, found.notes) == (6, ())


def test_a_task_alone_and_what_comes_after_the_first_answer_are_no_components() -> None:
    system = ("developer", "You are a helpful assistant.")
    found = find_prompts([
        rollout(task, call(system, ("user", task)), call(
            system, ("user", task), ("assistant", "Let me look."), ("tool", "a result"), ("user", "Please go on now.")
        ))
        for task in TASKS
    ])  # fmt: skip
    assert texts(found) == [("developer", "You are a helpful assistant.")]
    assert found.notes[0] == "Left out, because no fixed text is known in them: the user message 1 of the agent."
    assert "name no agent" in found.notes[1]


def test_agents_with_one_text_and_positions_with_one_text_are_components_of_their_own() -> None:
    same = ("system", "Be brief.")
    found = find_prompts([
        rollout(task, call(same, same, ("user", task), agent="a"), call(same, ("user", task), agent="b"))
        for task in TASKS
    ])  # fmt: skip
    assert texts(found) == [("a.system", "Be brief."), ("a.system2", "Be brief."), ("b.system", "Be brief.")]
    assert [component.position for component in found.edits.components] == [0, 1, 0]


def test_several_prompts_of_an_agent_without_names_are_told_apart() -> None:
    plan = "You are the planner of a team. Write a short plan with three steps for the question."
    check = "You are a strict reviewer! Say whether this answer is right: "
    found = find_prompts([
        rollout(task, call(("system", plan), ("user", task)), call(("system", f"{check}{number * 7919}")))
        for number, task in enumerate(TASKS, 3)
    ])  # fmt: skip
    assert texts(found) == [("system", plan), ("system.2", f"{check}{{v1}}")]


def test_two_prompts_that_begin_alike_are_told_apart_and_variants_by_task_are_one() -> None:
    schema = "Tables: singer(id, name, country), concert(id, singer_id, year, place)."
    pair = [f"{schema} Write the query.", f"{schema} Check the query."]
    both = find_prompts([rollout(task, *(call(("system", text)) for text in pair)) for task in TASKS])
    assert [text for _, text in texts(both)] == pair
    one_each = find_prompts([rollout(task, call(("system", pair[n % 2]))) for n, task in enumerate(TASKS * 2)])
    assert texts(one_each) == [("system", f"{schema} {{v1}} the query.")]


@pytest.mark.parametrize(
    "written",
    [
        "2025-11-26T12:00:03.5+00:00",
        "2025-11-26",
        "Wednesday, November 26, 2025",
        "26 Nov 2025, 13:00 UTC",
        "11/26/2025",
    ],
)
def test_the_date_and_identifiers_are_variables_even_if_one_task_was_run(written: str) -> None:
    uuid = "0b6c5a52-7e3c-4a09-9c38-1f5d1f0a6a55"
    system = f"You are a bot since 2019-05-01. It is {written}. Session {uuid}."
    found = find_prompts([rollout("What time is it now?", call(("system", system)))])
    assert texts(found) == [("system", "You are a bot since 2019-05-01. It is {v1}. Session {v2}.")]
    assert "Only one task was run" in found.notes[0]


def test_a_secret_in_a_prompt_is_a_variable() -> None:
    secret = "sk-proj-AbCdEf0123456789AbCdEf0123456789AbCdEf01"
    system = f"You call the service with the key {secret} only. Be brief."
    found = find_prompts([rollout(task, call(("system", system))) for task in TASKS])
    assert texts(found) == [("system", "You call the service with the key sk-{v1} only. Be brief.")]


def test_a_long_document_is_one_variable_and_found_quickly() -> None:
    random.seed(7)
    words = [f"word{n}" for n in range(400)]
    began = time.perf_counter()
    rollouts: list[RecordedCalls] = []
    for task in TASKS:
        document = " ".join(random.choice(words) + random.choice(["", ".", ",", "\n"]) for _ in range(40_000))
        prompt = f"Use only this context.\n\nContext: {document}\n\nAnswer in one line, and cite it."
        rollouts.append(rollout(task, call(("system", prompt), ("user", f"Question: {task}"))))
    found = find_prompts(rollouts)
    assert texts(found) == [
        ("system", "Use only this context.\n\nContext: {v1}\n\nAnswer in one line, and cite it."),
        ("user", "Question: {v1}"),
    ]
    assert time.perf_counter() - began < 20


def test_texts_in_parts_unicode_and_white_space_are_kept_as_they_are() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    intro = "  Schau genau hin: «é»\t\u200d👩\u200d👧 \n\n"
    found = find_prompts([
        rollout(task, call(("user", [{"type": "text", "text": intro}, image, {"type": "text", "text": f"{task} "}])))
        for task in TASKS
    ])  # fmt: skip
    assert texts(found) == [("user", intro)]
    assert TextTemplate.parse(texts(found)[0][1]).match(intro) == {}


def test_tools_and_formats_are_components() -> None:
    tools = [{"type": "function", "function": {"name": "look up", "description": "Finds a page."}}]
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "description": "The sum."}}}
    known: dict[str, Any] = {
        "TOOL_DEFINITIONS": msgspec.json.encode(tools).decode(),
        "SAMPLING_ASKED": msgspec.json.encode(asked).decode(),
    }
    of_policy = call(("user", "x"), agent="a", **known)
    of_endpoint = {name: value for name, value in of_policy.items() if name != semconv.SAMPLING_USED}
    assert texts(find_prompts([rollout("x", of_policy)])) == [("a.tool.look_up", "Finds a page.")]
    assert texts(find_prompts([rollout("x", of_endpoint)])) == [
        ("a.tool.look_up", "Finds a page."),
        ("a.output.s", "The sum."),
    ]


def test_calls_of_the_responses_api_to_an_endpoint_have_instructions_first() -> None:
    rollouts: list[RecordedCalls] = []
    for task in TASKS:
        given: list[Any] = [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": f"Question: {task}"},
        ]
        first: dict[str, Any] = {
            semconv.DIALECT: "responses",
            semconv.INPUT_MESSAGES: msgspec.json.encode(given).decode(),
            semconv.SAMPLING_ASKED: '{"instructions": "Be brief."}',
        }
        more = {
            **first,
            semconv.INPUT_MESSAGES: '"go on with the next part"',
            semconv.SAMPLING_ASKED: '{"instructions": "Be brief.", "previous_response_id": "r"}',
        }
        rollouts.append(rollout(task, first, more))
    assert texts(find_prompts(rollouts)) == [
        ("system", "Be brief."),
        ("developer", "Be kind."),
        ("user", "Question: {v1}"),
    ]


def test_prompts_of_completions_are_components_by_their_number() -> None:
    rollouts = [
        rollout(
            task,
            *(
                call(
                    ("user", f"Question: {task}\nAnswer:"),
                    DIALECT="completions",
                    RESPONSE_ID="r",
                    PROMPT_INDEX=prompt,
                    CHOICE_INDEX=choice,
                )
                for prompt, choice in ((0, 0), (1, 1), (1, 2))
            ),
        )
        for task in TASKS
    ]
    found = find_prompts(rollouts)
    assert texts(found) == [("prompt", "Question: {v1}\nAnswer:"), ("prompt2", "Question: {v1}\nAnswer:")]
    assert [component.calls for component in found.edits.components] == [3, 3]


@pytest.mark.parametrize("response_id", ["chatcmpl-1", ""])
def test_calls_of_an_endpoint_whose_answers_have_one_id_are_told_apart(response_id: str) -> None:
    rollouts = [
        rollout(
            task,
            call(("system", "Read."), agent="a", RESPONSE_ID=response_id, CHOICE_INDEX=0),
            call(("system", "Read."), agent="a", RESPONSE_ID=response_id, CHOICE_INDEX=1),
            call(("system", "Write."), agent="b", RESPONSE_ID=response_id, CHOICE_INDEX=0),
        )
        for task in TASKS
    ]
    found = find_prompts(rollouts)
    assert texts(found) == [("a.system", "Read."), ("b.system", "Write.")]
    assert found.calls == 6


def test_an_answer_that_a_later_call_has_in_a_prompt_is_a_variable_and_not_a_prompt() -> None:
    def wrote(text: str) -> str:
        return msgspec.json.encode([{"role": "assistant", "content": text}]).decode()

    rollouts: list[RecordedCalls] = []
    for number, task in enumerate(TASKS):
        answer = f"I think that it is about {number} or a little more."
        first = call(("system", "Think."), ("user", task), agent="a", OUTPUT_MESSAGES=wrote(answer))
        second = call(("user", task), ("user", answer), agent="b")
        third = call(("user", f"Edit the draft.\nDraft: {answer}\nReply:"), agent="c")
        rollouts.append(rollout(task, first, second, third))
    assert texts(find_prompts(rollouts)) == [
        ("a.system", "Think."),
        ("c.user", "Edit the draft.\nDraft: {v1}\nReply:"),
    ]


def test_of_a_replaced_text_the_agents_own_is_found() -> None:
    edits = [{"component": "system", "role": "system", "own": "Own text."}]
    given = call(("system", "New text."), PROMPT_EDITS=msgspec.json.encode(edits).decode())
    assert texts(find_prompts([rollout("x", given)])) == [("system", "Own text.")]


def test_without_a_call_nothing_is_found() -> None:
    found = find_prompts([rollout("x"), rollout("y")])
    assert (found.edits.components, found.calls) == ((), 0)
    assert "no model call" in found.notes[0]


def test_a_value_that_all_tasks_share_is_fixed_text_and_a_short_one_a_word() -> None:
    rows = [{"style": "very formal English", "topic": topic} for topic in ("sea", "sun", "sky")]
    found = find_prompts([
        rollout(row, call(("system", f"Write in {row['style']} on the {row['topic']}."), ("user", row["topic"])))
        for row in rows
    ])  # fmt: skip
    assert texts(found) == [("system", "Write in very formal English on the {v1}")]


IMITATIONS = ["You are a helpful assistant. Be brief.", "helpful assistant", "Question", "Question: {v1}\nAnswer:"]


@pytest.mark.parametrize("imitation", [*IMITATIONS, "x\nAnswer: y\nAnswer:", "You are", "v1"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("others", [1, 3])
def test_a_task_that_imitates_a_prompt_hides_and_changes_no_component(imitation: str, place: int, others: int) -> None:
    tasks = TASKS[:others]
    tasks.insert(place, imitation)
    found = find_prompts([
        rollout(
            {"question": task},
            call(("system", "You are a helpful assistant. Be brief."), ("user", f"Question: {task}\nAnswer:")),
        )
        for task in tasks
    ])  # fmt: skip
    assert texts(found) == [
        ("system", "You are a helpful assistant. Be brief."),
        ("user", "Question: {v1}\nAnswer:"),
    ]


def test_a_task_in_the_system_prompt_is_a_variable_also_if_it_repeats_the_prompt() -> None:
    tasks = [*TASKS, "You are a helpful assistant. Task: ", "you are a helpful assistant"]
    found = find_prompts([
        rollout(task, call(("system", f"You are a helpful assistant. Task: {change(task)}"), ("user", task)))
        for task in tasks
        for change in (str, str.upper)
    ])  # fmt: skip
    assert texts(found) == [("system", "You are a helpful assistant. Task: {v1}")]


def test_a_value_that_another_tasks_document_has_is_a_variable() -> None:
    rows = [("Lima", "Lima has many people."), ("Bonn", "It is not Lima."), ("Oslo", "A town in the north.")]
    found = find_prompts([rollout({"town": town}, call(("user", f"Town: {town}\nPage: {page}\nAnswer in one word.")))
                          for town, page in rows])  # fmt: skip
    assert texts(found) == [("user", "Town: {v1}\nPage: {v2}.\nAnswer in one word.")]


def test_tasks_of_line_breaks_and_marks_take_linear_time() -> None:
    began = time.perf_counter()
    for mark in ("\n", "-\n", "<a", ": ", "\n>"):
        find_prompts([
            rollout(f"{n} {n}", call(("user", f"Say {n} {mark * 50_000} end of {n}"))) for n in range(2)
        ])  # fmt: skip
    assert time.perf_counter() - began < 20
