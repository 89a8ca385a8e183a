"""What the scripted model answers: the rules of an agent's file, for the reference endpoint and the engine alike."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec


class Turn(NamedTuple):
    """One message of a conversation, as text."""

    role: str
    text: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model calls."""

    name: str
    arguments: dict[str, Any] | str = {}
    """An object, or the JSON text of one, for numbers from the conversation."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the model does."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    status: int | None = None
    """An error of the provider with this HTTP status, in place of an answer."""
    hang: bool = False
    """No answer, until the client goes away."""
    held: bool = False
    """The answer's last piece does not come before the client goes away."""

    @property
    def is_given(self) -> bool:
        """Whether the model answers at all."""
        return self.status is None and not self.hang

    def as_text(self) -> str:
        """As a model that writes tool calls like Qwen writes it."""
        written = [f"<tool_call>\n{json.dumps(_plain(call))}\n</tool_call>" for call in self.calls]
        return "\n".join([*([self.text] if self.text else []), *written])


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a rule fits, and what the model answers then."""

    when: str | None = None
    """Pattern that is searched in the text of the last message."""
    role: Literal["user", "tool", "assistant", "system"] | None = None
    """Role of the last message."""
    system: str | None = None
    """Pattern that is searched in the text of all system messages."""
    seen: str | None = None
    """Pattern that is searched in the text of all messages."""
    times: int | None = None
    """How often the rule fits in one run of the agent."""
    say: str | None = None
    call: ToolCall | None = None
    calls: list[ToolCall] | None = None
    status: int | None = None
    hang: bool = False
    held: bool = False

    def __post_init__(self) -> None:
        given = [self.say is not None, self.call is not None or self.calls is not None, bool(self.status), self.hang]
        # A model may say something and call tools in one answer.
        if sum(given) != 1 and given != [True, True, False, False]:
            raise ValueError("a rule needs `say`, `call` or `calls`, `status`, or `hang: true`")
        if self.call is not None and self.calls is not None:
            raise ValueError("a rule has `call` or `calls`, not both")
        for pattern in (self.when, self.system, self.seen):
            re.compile(pattern or "")

    def fit(self, turns: Sequence[Turn]) -> dict[str, str] | None:
        """What the groups of the patterns hold, by number, those of `seen` and `system` after those of `when`."""
        last = turns[-1]
        if self.role is not None and self.role != last.role:
            return None
        systems = "\n".join(turn.text for turn in turns if turn.role == "system")
        every = "\n".join(turn.text for turn in turns)
        groups: list[str] = []
        for pattern, text in ((self.when, last.text), (self.seen, every), (self.system, systems)):
            if pattern is None:
                continue
            match = re.search(pattern, text, re.DOTALL)
            if match is None:
                return None
            groups += [group or "" for group in match.groups()]
        return {str(number): group for number, group in enumerate(groups, 1)}

    def answer(self, groups: dict[str, str]) -> Answer:
        """Return the answer, with what the groups of the patterns hold in its texts."""
        calls = tuple(
            ToolCall(name=call.name, arguments=_filled(call.arguments, groups))
            for call in (self.calls or ([self.call] if self.call else []))
        )
        return Answer(
            text=_filled(self.say or "", groups), calls=calls, status=self.status, hang=self.hang, held=self.held
        )


class Script:
    """The rules, for one run of an agent; the first rule that fits decides."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._used: Counter[int] = Counter()
        self.unanswered: list[str] = []
        """Conversations for which no rule fits."""

    def answer(self, turns: Sequence[Turn], *, only_errors: bool = False) -> Answer:
        """Return what the model answers to a conversation.

        With `only_errors`, an answer that is given does not count: it is asked for again where the model is.
        """
        for place, rule in enumerate(self._rules):
            if rule.times is not None and self._used[place] >= rule.times:
                continue
            if turns and (groups := rule.fit(turns)) is not None:
                answer = rule.answer(groups)
                self._used[place] += not (only_errors and answer.is_given)
                return answer
        if only_errors:
            return Answer()
        self.unanswered.append(f"no rule fits the last message {turns[-1]!r}" if turns else "no messages")
        return Answer(text=f"(no rule for {turns[-1].text[:80] if turns else 'nothing'})")


def _filled(value: Any, groups: dict[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\\(\d)", lambda match: groups[match[1]], value)
    if isinstance(value, dict):
        return {key: _filled(item, groups) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]  # of YAML
    if isinstance(value, list):
        return [_filled(item, groups) for item in value]  # pyright: ignore[reportUnknownVariableType]  # of YAML
    return value


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object."""
    return json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments


def _plain(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": arguments_of(call)}
