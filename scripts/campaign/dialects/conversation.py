"""What the conversations of all dialects share: answers as their clients get them, questions, tools and errors."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from campaign.pictures import Picture
from campaign.plan import VIEWING_AGENT, CallPlan

Document: TypeAlias = dict[str, Any]
"""A whole answer, or one event of a stream."""

MODEL = "gpt-4.1-mini"
FETCHED = "https://pictures.test/1.png"
LONGEST = 3
"""Exchanges of a conversation, which then begins anew."""
FUNCTIONS: tuple[dict[str, Any], ...] = (
    {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "maxLength": 12}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
    {"name": "ask", "description": "Ask another agent.", "parameters": {"type": "object", "properties": {}}},
)
IMPOSSIBLE: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
"""A schema that no grammar can express."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of an answer, as its client got it."""

    text: str
    calls: list[tuple[str, str, str]] = []
    """Id, name and arguments of each tool call."""
    finish: str | None = None
    """As Chat Completions names it; None where the dialect does not say."""
    logprobs: list[float] | None = None
    ids: list[int] | None = None
    """Token ids of the choice, if the client received them."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that arrived in full."""

    id: str
    choices: list[Choice]
    tokens: tuple[int, int] | None = None
    """Of the prompt and of the answer, if the client received them."""
    prompt_ids: list[int] | None = None
    """Token ids of the prompt, if the client received them."""


class BadAnswer(Exception):
    """What arrived contradicts itself, or is an error."""


class Conversation(Protocol):
    """A conversation of one agent in one dialect."""

    path: str

    def body(self, call: CallPlan) -> dict[str, Any]:
        """Return the request that makes `call`."""
        ...

    def read(self, documents: Sequence[Document]) -> Answer | None:
        """Return the answer; None while some of it is missing. Raises BadAnswer."""
        ...

    def continue_from(self, call: CallPlan, answer: Answer, used: int) -> None:
        """Let the next request go on from choice `used` of `answer`."""
        ...


def question(call: CallPlan) -> str:
    """Return the text of the user's message, with the mark of the call."""
    return f"{call.question} {call.written}"


def divided(call: CallPlan, results: Collection[object]) -> tuple[tuple[Picture, ...], tuple[Picture, ...]]:
    """Return the pictures that the first of the `results` of tools shows, and those of the user's message."""
    shown = 1 if results and call.shows_result else 0
    return call.pictures[:shown], call.pictures[shown:]


def refused_picture(call: CallPlan) -> str:
    """Return the URL of an image that cannot be answered: no policy fetches one, and the text policy reads none."""
    return FETCHED if call.agent == VIEWING_AGENT else Picture(kind="PNG", width=8, height=8, name="refused").url


def too_long(call: CallPlan) -> str:
    """Return a text that exceeds the policy's context, with the mark of the call."""
    return f"{'tell me more, ' * 900}{call.written}"


def given(**fields: object) -> dict[str, object]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def check_errors(documents: Sequence[Document]) -> None:
    """Raise BadAnswer for an error among the documents."""
    error = next((document["error"] for document in documents if document.get("error")), None)
    if error is not None:
        raise BadAnswer(f"an error came in place of an answer: {error}")


def only_id(documents: Sequence[Document]) -> str:
    """Return the id that all parts of an answer have; raises BadAnswer for several."""
    ids = {document["id"] for document in documents}
    if len(ids) != 1:
        raise BadAnswer("the parts of one answer have several ids")
    return ids.pop()


def openai_choice_of_tool(call: CallPlan, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with which OpenAI's dialects choose tools."""
    match call.tools:
        case "required" | "strict":
            return {"tool_choice": "required"}
        case "named":
            return {"tool_choice": named}
        case "one at a time":
            return {"parallel_tool_calls": False}
        case _:
            return {}
