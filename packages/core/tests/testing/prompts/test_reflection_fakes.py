import pytest

from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.apo_templates import (
    EDIT_TEMPLATE,
    GRADIENT,
    GRADIENT_TEMPLATE,
    PROMPT,
    ROLLOUTS,
    filled,
)
from leyden.core.testing.prompts.hints import SENTENCES, hinted_tasks, judged
from leyden.core.testing.prompts.reflection import (
    ADD,
    NOTHING,
    ScriptedReflection,
    add_demanded,
    forget_variables,
)

HINT, SENTENCE = next(iter(SENTENCES.items()))


def said(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("kind", range(len(SENTENCES)))
def test_a_task_needs_its_sentence_and_the_feedback_only_hints_at_it(kind: int) -> None:
    question = hinted_tasks(6)[kind]["question"]
    hint, sentence = list(SENTENCES.items())[kind]
    assert judged(question) == (0.0, hint)
    assert judged(f"{question} {sentence}") == (1.0, "Good.")
    assert sentence not in hint and hinted_tasks(6)[kind + 3]["question"].endswith(f"of kind {kind}.")
    assert judged(sentence) == (0.0, "The question is missing.")


def test_a_textual_gradient_names_the_sentence_and_an_edit_adds_it() -> None:
    gradient = filled(GRADIENT_TEMPLATE, {PROMPT: "{q}", ROLLOUTS: f"Reason: {HINT}"})
    assert add_demanded(said(gradient)) == f"{ADD}{SENTENCE}"
    done = filled(GRADIENT_TEMPLATE, {PROMPT: f"{{q}} {SENTENCE}", ROLLOUTS: f"Reason: {HINT}"})
    assert add_demanded(said(done)) == NOTHING
    edit = filled(EDIT_TEMPLATE, {PROMPT: "{q}", GRADIENT: f"{ADD}{SENTENCE}"})
    assert add_demanded(said(edit)) == f"<new_prompt>\n{{q}} {SENTENCE}\n</new_prompt>"
    nothing = filled(EDIT_TEMPLATE, {PROMPT: "{q}", GRADIENT: NOTHING})
    assert add_demanded(said(nothing)) == "<new_prompt>\n{q}\n</new_prompt>"


def test_a_request_of_gepa_is_answered_with_the_text() -> None:
    assert add_demanded(said(f"Text:\n```\n{{q}}\n```\nSeen: {HINT}")) == f"```\n{{q}} {SENTENCE}\n```"


def test_a_forgetful_model_repairs_its_answer() -> None:
    edit = said(filled(EDIT_TEMPLATE, {PROMPT: "{q}", GRADIENT: f"{ADD}{SENTENCE}"}))
    assert "{q}" not in forget_variables(edit)
    again: list[Message] = [*edit, {"role": "assistant", "content": "x"}, {"role": "user", "content": "It lacks q."}]
    assert "{q}" in forget_variables(again)


def test_a_script_is_followed_and_its_last_answer_repeated() -> None:
    reflect = ScriptedReflection("one", "two")
    assert [reflect(said(str(number))) for number in range(3)] == ["one", "two", "two"]
    assert [one[0]["content"] for one in reflect.seen] == ["0", "1", "2"]
