from collections.abc import Sequence

from prompt_sessions import hinted, session_of

from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.base import PromptAlgorithmOptions, PromptSession
from leyden.core.algorithm.prompts.proposals import Draft, propose
from leyden.core.testing.prompts.reflection import ScriptedReflection
from leyden.core.testing.prompts.scripted_context import ScriptedPromptContext

DRAFT = Draft(name="prompt", texts={"prompt": "{q}"}, request="Improve it.")


def session_with(reflect: ScriptedReflection) -> PromptSession:
    resources = dict(session_of().context.resources)
    context = ScriptedPromptContext(["a", "b"], resources, hinted, reflect=reflect)
    options = PromptAlgorithmOptions()
    return PromptSession(context, options, [context.language_model(options.reflection)])


def roles(conversation: Sequence[Message]) -> list[str]:
    return [message["role"] for message in conversation]


async def test_a_text_that_can_be_used_is_taken() -> None:
    reflect = ScriptedReflection(" {q}, please ")
    (found,) = await propose(session_with(reflect), [DRAFT], str.strip, form="here")
    assert found is not None
    assert (found.text, found.answer, found.problem) == ("{q}, please", " {q}, please ", "")
    assert len(reflect.seen) == 1


async def test_a_text_that_lost_a_variable_is_repaired_once() -> None:
    reflect = ScriptedReflection("no variable", "{q} again")
    (found,) = await propose(session_with(reflect), [DRAFT], str.strip, form="between marks")
    assert found is not None
    assert (found.text, found.problem) == ("{q} again", "")
    first, second = reflect.seen
    assert (roles(first), roles(second)) == (["user"], ["user", "assistant", "user"])
    assert "lacks the variable q" in second[2]["content"] and "between marks" in second[2]["content"]


async def test_a_text_that_stays_wrong_has_its_problem() -> None:
    reflect = ScriptedReflection("no variable", "{q} {mood}")
    (found,) = await propose(session_with(reflect), [DRAFT], str.strip, form="here")
    assert found is not None
    assert found.problem == "prompt: the new text has the variable mood, which nothing fills"
    assert len(reflect.seen) == 2


async def test_an_empty_text_is_a_problem() -> None:
    (found,) = await propose(session_with(ScriptedReflection("x")), [DRAFT], lambda _: " ", form="here")
    assert found is not None
    assert found.problem == "prompt: the new text is empty"


async def test_a_draft_without_a_request_has_no_text_and_sends_nothing() -> None:
    reflect = ScriptedReflection("{q} new")
    drafts = [Draft(name="prompt", texts={"prompt": "{q}"}, request=None), DRAFT]
    found = await propose(session_with(reflect), drafts, str.strip, form="here")
    assert found[0] is None and found[1] is not None
    assert len(reflect.seen) == 1
