"""Proposals: new texts of components by a language model, which can repair once a text that cannot be used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leyden.core.algorithm.language_model import Message
from leyden.core.algorithm.prompts.base import PromptSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A component of a candidate for which a new text is requested."""

    name: str
    texts: Mapping[str, str]
    """The candidate that is changed."""
    request: str | None
    """What the model is sent; None: nothing, and there will be no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A text that the model wrote."""

    text: str
    answer: str
    """The whole answer of the model."""
    problem: str = ""
    """Why the text cannot be used, although the model could repair it once; empty if it can."""


async def propose(
    session: PromptSession, drafts: Sequence[Draft], extract: Callable[[str], str], *, form: str, model: int = 0
) -> list[Proposal | None]:
    """Return for each draft the text that the model proposes; None where it gave no answer.

    `extract` returns the text in an answer, and `form` names where a repaired answer must have it. `model` is the
    number of the model (see `PromptAlgorithmOptions.models`). Raises what `Reflector.complete` does.
    """
    requests = [None if one.request is None else [_user(one.request)] for one in drafts]
    answers = await session.reflector.complete(requests, model)
    found = [
        None if answer is None else _proposal(session, draft, answer, extract)
        for draft, answer in zip(drafts, answers, strict=True)
    ]
    repairs = [
        [*request, {"role": "assistant", "content": one.answer}, _user(_repair(one.problem, form))]
        if one is not None and one.problem and request is not None
        else None
        for one, request in zip(found, requests, strict=True)
    ]
    repaired = await session.reflector.complete(repairs, model)
    return [
        one if answer is None else _proposal(session, draft, answer, extract)
        for draft, one, answer in zip(drafts, found, repaired, strict=True)
    ]


def _proposal(session: PromptSession, draft: Draft, answer: str, extract: Callable[[str], str]) -> Proposal:
    text = extract(answer)
    problem = session.problem({draft.name: text}, {draft.name: draft.texts[draft.name]})
    return Proposal(text=text, answer=answer, problem=problem)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _repair(problem: str, form: str) -> str:
    return f"This text cannot be used: {problem}. Write the whole text again, {form}, without this error."
