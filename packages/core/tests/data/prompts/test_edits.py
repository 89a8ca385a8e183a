"""Prompt edits: what they accept, and candidates made of them."""

import re

import msgspec
import pytest

from leyden.core.data.prompts.edits import PromptComponent, PromptEdits
from leyden.core.data.resources import NamedResources
from leyden.core.errors import PromptError

SYSTEM = PromptComponent(name="solver.system", agent="solver", role="system", text="Solve it for {v1}.", calls=3)
USER = PromptComponent(name="solver.user", agent="solver", role="user", text="Task: {v1}")
EDITS = PromptEdits(components=(SYSTEM, USER))


def test_a_candidate_has_new_texts_by_name() -> None:
    candidate = EDITS.with_texts({"solver.system": "{v1} needs a solution.", "solver.user": "Task: {v1}"})
    assert [component.name for component in candidate.changed] == ["solver.system"]
    assert candidate.texts == {"solver.system": "{v1} needs a solution.", "solver.user": "Task: {v1}"}
    assert candidate.with_texts({"solver.system": SYSTEM.text}) == EDITS
    assert not EDITS.changed


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"solver.system": "No name."}, "new_text of the prompt component 'solver.system': the new text lacks"),
        ({"solver.user": "{v1} {v2}"}, "has the variable {v2}, which the agent's own text does not have"),
        ({"solver.user": "{v1} {"}, "new_text of the prompt component 'solver.user': line 1, column 6"),
        ({"other": "x"}, "there is no prompt component 'other'; there are: solver.system, solver.user"),
    ],
)
def test_a_candidate_that_cannot_be_sent_is_refused_before_it_runs(texts: dict[str, str], message: str) -> None:
    with pytest.raises(PromptError, match=re.escape(message)):
        EDITS.with_texts(texts)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (USER, "two prompt components are called"),
        (PromptComponent(name="b", agent="solver", role="user", text="Task: {v1}"), "are the same text"),
        (PromptComponent(name="b", role="user", text="{v1}{v2}"), "two variables follow each other"),
        (PromptComponent(name="b", role="user", text="{"), "^text of the prompt component 'b'"),
    ],
)
def test_components_that_cannot_be_told_apart_are_refused(other: PromptComponent, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        PromptEdits(components=(SYSTEM, USER, other))


def test_edits_are_a_resource_like_others() -> None:
    given: NamedResources = {"prompts": EDITS.with_texts({"solver.user": "Do: {v1}"})}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=NamedResources) == given
    assert msgspec.json.decode(msgspec.json.encode(given), type=NamedResources) == given


def test_invalid_edits_are_refused_where_they_are_decoded() -> None:
    component = {"name": "a", "role": "system", "text": "{v1}", "new_text": "lost"}
    with pytest.raises(PromptError, match="lacks the variable"):
        msgspec.convert({"p": {"type": "prompt_edits", "components": [component]}}, NamedResources)
