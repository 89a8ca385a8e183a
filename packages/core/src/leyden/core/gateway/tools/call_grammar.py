"""Call grammar: writes the grammar of tool calls in a family's format, with the JSON schema of each tool."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from leyden.core.gateway.codec import Forced, ToolDefinition
from leyden.core.grammar.compiler import MAX_GRAMMAR_CHARACTERS
from leyden.core.grammar.rules import ANY_OBJECT, json_rule, why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """Texts around the names and arguments of calls: begin (before name middle arguments after)+ end."""

    begin: str = ""
    before: str
    middle: str
    after: str
    between: str
    """Text between two calls."""
    end: str = ""
    json_name: bool = True
    """Whether the name is inside a JSON string."""

    def named(self, name: str) -> str:
        """Return the text of a name and what follows it, up to the arguments."""
        return (json.dumps(name)[1:-1] if self.json_name else name) + self.middle


def calls_grammar(
    syntax: CallSyntax,
    tools: Sequence[ToolDefinition],
    forced: Forced | None,
    opening: str,
    literal: Callable[[str], str],
    *,
    only_one: bool,
) -> list[str]:
    """Return the lines of a grammar whose rule `calls` is one or more calls of `tools`.

    `opening` is what the prompt contains of the first call already; the rule continues it. `literal` returns the
    expression of a text with the marks of calls. With `only_one`, there is one call.
    """
    names = [str(tool["function"]["name"]) for tool in tools]
    wanted = [n for n, name in enumerate(names) if forced is None or forced.name in (None, name)]
    first = [_call(syntax, names[n], n, syntax.begin + syntax.before, opening, literal) for n in wanted]
    lines = [f"first: {' | '.join(first)}"]
    more = ""
    if not only_one:
        any_name = " | ".join(_call(syntax, name, n, syntax.before, "", literal) for n, name in enumerate(names))
        lines.append(f"another: {any_name}")
        more = f" ({_spaced(literal(syntax.between))}another)*"
    lines.append(f"calls: first{more} {literal(syntax.end)}".rstrip())
    used = wanted if only_one else range(len(names))
    return [*lines, *_arguments({n: tools[n] for n in used})]


def _call(syntax: CallSyntax, name: str, number: int, before: str, opening: str, literal: Callable[[str], str]) -> str:
    text = before + syntax.named(name)
    if not text.startswith(opening):
        raise ValueError(f"{text!r} does not continue {opening!r}")
    return f"{_spaced(literal(text[len(opening) :]))}arguments{number} {literal(syntax.after)}".rstrip()


def _spaced(expression: str) -> str:
    return f"{expression} " if expression else ""


def _arguments(tools: Mapping[int, ToolDefinition]) -> Iterator[str]:
    """Yield the rule of each tool's arguments, by number; any object where the schemas together are too long."""
    room = MAX_GRAMMAR_CHARACTERS // 2
    for number, tool in tools.items():
        rule = _parameters(tool)
        if len(rule) > room:
            rule = json_rule(ANY_OBJECT)
        room -= len(rule)
        yield f"arguments{number}: {rule}"


def _parameters(tool: ToolDefinition) -> str:
    """Return the rule of a tool's arguments: any object if it has no schema, or one that no grammar expresses.

    Limits of which no grammar can be made are left out.
    """
    schema = tool["function"].get("parameters")
    try:
        text = msgspec.json.encode({"type": "object"} | schema).decode() if schema else ANY_OBJECT
    except RecursionError:
        text = ANY_OBJECT
    for lenient in (False, True):
        if why_not(text, lenient=lenient) is None:
            return json_rule(text, lenient=lenient)
    return json_rule(ANY_OBJECT)
