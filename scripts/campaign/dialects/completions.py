"""A conversation in Completions: each prompt continues the text before it."""

from collections.abc import Sequence
from typing import Any

from campaign.dialects.conversation import (
    IMPOSSIBLE,
    LONGEST,
    MODEL,
    Answer,
    BadAnswer,
    Choice,
    Document,
    check_errors,
    given,
    only_id,
    too_long,
)
from campaign.formats import completions_format
from campaign.plan import CallPlan


class Completions:
    """Completions."""

    path = "/completions"

    def __init__(self) -> None:
        self._text, self._prompt = "", ""
        self._echo = False
        self._exchanges = 0

    def body(self, call: CallPlan) -> dict[str, Any]:
        """Return the request that makes `call`."""
        self._prompt = f"{self._text}You are {call.agent}. {call.question} {call.written}\n"
        self._echo = call.echo
        body: dict[str, Any] = {
            "model": MODEL,
            "prompt": self._prompt,
            "max_tokens": call.max_tokens,
            "user": f"fault:{call.fault}",
            **given(temperature=call.temperature, top_p=call.top_p, seed=call.seed, stop=call.stop),
            **call.shaping,
            **completions_format(call.format),
        }
        if call.choices > 1:
            body["n"] = call.choices
        if call.echo:
            body["echo"] = True
        if call.logprobs:
            body["logprobs"] = call.top_logprobs
        if call.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | (_impossible(call) if call.fault == "refused" else {})

    def read(self, documents: Sequence[Document]) -> Answer | None:
        """Return the answer; None while some of it is missing. Raises BadAnswer."""
        check_errors(documents)
        used = documents[-1].get("usage") if documents else None
        if used is None:
            return None
        found: dict[int, _Merged] = {}
        for choice in (choice for document in documents for choice in document["choices"]):
            found.setdefault(choice["index"], _Merged()).take(choice)
        choices = [found[index].choice(self._prompt if self._echo else "") for index in sorted(found)]
        if not choices or any(choice.finish is None for choice in choices):
            return None
        tokens = (used["prompt_tokens"], used["completion_tokens"])
        return Answer(id=only_id(documents), choices=choices, tokens=tokens)

    def continue_from(self, call: CallPlan, answer: Answer, used: int) -> None:
        """Begin the next prompt with the choice and what came before it."""
        self._exchanges += 1
        if self._exchanges == LONGEST:
            self._text, self._exchanges = "", 0
            return
        self._text = f"{self._prompt}{answer.choices[used].text}\n"


class _Merged:
    """One choice, in one piece or while its events come in."""

    def __init__(self) -> None:
        self._text = ""
        self._finish: str | None = None
        self._logprobs: list[tuple[int, float | None]] = []

    def take(self, choice: Document) -> None:
        self._text += choice["text"]
        self._finish = choice["finish_reason"] or self._finish
        if shown := choice["logprobs"]:
            self._logprobs += zip(shown["text_offset"], shown["token_logprobs"], strict=True)

    def choice(self, echoed: str) -> Choice:
        if not self._text.startswith(echoed):
            raise BadAnswer(f"{self._text!r} does not begin with the prompt")
        first = len(echoed)
        shown = [value for offset, value in self._logprobs if offset >= first and value is not None]
        return Choice(text=self._text[first:], finish=self._finish, logprobs=shown or None)


def _impossible(call: CallPlan) -> dict[str, Any]:
    """Return what makes a request one that must be refused."""
    match call.refusal:
        case "too warm":
            return {"temperature": 3.0}
        case "no such tool":
            return {"suffix": "!"}
        case "a schema":
            return {"guided_json": IMPOSSIBLE}
        case "an unknown field":
            return {"max_tokens_please": 3}
        case _:
            return {"prompt": too_long(call)}
