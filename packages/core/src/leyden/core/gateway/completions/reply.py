"""Completions replies: send a response as one JSON document or as server-sent events."""

from collections.abc import Sequence

from starlette.types import Send

from leyden.core.gateway.chat.format import DONE, AnswerHead, server_event
from leyden.core.gateway.codecs.answer_reader import ReadPart, ReadToken
from leyden.core.gateway.completions.format import (
    Choice,
    CompletionFinish,
    Logprobs,
    choice_event,
    completion,
    echo_logprobs,
    joined,
    logprobs,
    usage,
    usage_event,
)
from leyden.core.gateway.completions.request import CompletionsRequest
from leyden.core.gateway.dialect import EncodedPrompt, FinishedChoice
from leyden.core.gateway.http.asgi import EventWriter, send_json
from leyden.core.gateway.refusal import Refusal


class ChoiceWriter:
    """Builder of the choices of one response to `prompts`; choices are numbered prompt by prompt."""

    def __init__(self, request: CompletionsRequest, prompts: Sequence[EncodedPrompt]) -> None:
        self._request, self._prompts = request, prompts

    def echo(self, index: int) -> Choice | None:
        """Return the prompt of a choice as the beginning of its text; None unless the request asks for it."""
        if not self._request.echo:
            return None
        prompt = self._prompt(index)
        return Choice(text=prompt.text, index=index, logprobs=self._echo_logprobs(prompt))

    def addition(self, index: int, text: str, tokens: Sequence[ReadToken] | None) -> Choice:
        """Return a piece of an answer's text with the log-probabilities of its tokens, if they were requested."""
        offset = len(self._prompt(index).text)
        return Choice(text=text, index=index, logprobs=None if tokens is None else logprobs(tokens, offset))

    def ending(self, index: int, drawn: FinishedChoice) -> Choice:
        """Return the end of a choice."""
        return Choice(text="", index=index, finish_reason=_finish(drawn))

    def whole(self, index: int, drawn: FinishedChoice) -> Choice:
        """Return a whole choice."""
        echoed = self.echo(index)
        answer = self.addition(index, drawn.reader.content or "", drawn.reader.tokens())
        shown = answer.logprobs
        if echoed is not None and echoed.logprobs is not None and shown is not None:
            shown = joined(echoed.logprobs, shown)
        text = answer.text if echoed is None else echoed.text + answer.text
        return Choice(text=text, index=index, logprobs=shown, finish_reason=_finish(drawn))

    def _prompt(self, index: int) -> EncodedPrompt:
        return self._prompts[index // self._request.choices]

    def _echo_logprobs(self, prompt: EncodedPrompt) -> Logprobs | None:
        return echo_logprobs(prompt, top=self._request.top_logprobs > 0) if self._request.logprobs else None


class PlainReply:
    """Writer of a response as one JSON document."""

    live = False

    def __init__(self, send: Send, head: AnswerHead, choices: ChoiceWriter) -> None:
        self._send, self._head, self._choices = send, head, choices

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send nothing; `end` sends the whole response."""

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the document."""
        answers = [self._choices.whole(index, drawn) for index, drawn in enumerate(choices)]
        token_usage = usage(prompt_tokens, sum(drawn.tokens for drawn in choices))
        await send_json(self._send, 200, completion(self._head, answers, token_usage))

    async def fail(self, refusal: Refusal) -> None:
        """Raise `refusal`, because nothing has been sent yet."""
        raise refusal


class StreamReply:
    """Writer of a response as server-sent events."""

    live = True

    def __init__(self, send: Send, head: AnswerHead, choices: ChoiceWriter) -> None:
        self._head, self._choices = head, choices
        self._opened: set[int] = set()
        self._events = EventWriter(send, concurrent=True)

    async def show(self, choice: int, parts: Sequence[ReadPart], tokens: Sequence[ReadToken] | None) -> None:
        """Send the new text of a choice as one event; before its first text, the prompt if the request asks for it."""
        text = "".join(part for part in parts if isinstance(part, str))
        if text:
            addition = self._event(self._choices.addition(choice, text, tokens))
            await self._events.write(self._opening_event(choice) + addition)

    async def end(self, choices: Sequence[FinishedChoice], prompt_tokens: int) -> None:
        """Send the finish reason of each choice, the token counts if requested, and the end mark."""
        events: list[bytes] = []
        for index, drawn in enumerate(choices):
            events += [self._opening_event(index), self._event(self._choices.ending(index, drawn))]
        if self._head.include_usage:
            token_usage = usage(prompt_tokens, sum(drawn.tokens for drawn in choices))
            events.append(usage_event(self._head, token_usage))
        await self._events.write(b"".join([*events, DONE]), more=False)

    async def fail(self, refusal: Refusal) -> None:
        """Send an error event, which clients raise as an exception; raises `refusal` if nothing has been sent yet."""
        if not self._events.started:
            raise refusal
        await self._events.write(server_event(refusal.encode()), more=False)

    def _opening_event(self, choice: int) -> bytes:
        """Return the event with the prompt of a choice; empty after the first call, or if none was requested."""
        if choice in self._opened:
            return b""
        self._opened.add(choice)
        echoed = self._choices.echo(choice)
        return b"" if echoed is None else self._event(echoed)

    def _event(self, choice: Choice) -> bytes:
        return choice_event(self._head, choice)


def _finish(drawn: FinishedChoice) -> CompletionFinish:
    return "length" if drawn.cut else "stop"
