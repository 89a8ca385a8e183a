"""`tool_choice`: which tools the policy sees, and whether it must call one. Knows nothing of templates."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from leyden.core.gateway.codec import Forced, ToolDefinition
from leyden.core.gateway.refusal import invalid, unsupported


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may be called, and whether one must be."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    """`named`: the one tool in `only` must be called."""
    only: tuple[str, ...] | None = None
    """Names of the tools that may be called; None: all of them."""


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Allowed(msgspec.Struct, frozen=True):
    tools: list[dict[str, Any]]
    mode: Literal["auto", "required"] = "auto"


def read_tool_choice(value: str | dict[str, Any] | None) -> ToolChoice:
    """Read a choice as either dialect writes it; raises Refusal for what is none."""
    if value is None or isinstance(value, str):
        if value is None or value == "auto":
            return ToolChoice()
        if value == "none" or value == "required":
            return ToolChoice(value)
        raise invalid(f"Invalid value for 'tool_choice': '{value}'.", "tool_choice")
    kind = value.get("type")
    try:
        if kind == "function":
            return ToolChoice("named", (_name(value),))
        if kind == "allowed_tools":
            allowed = msgspec.convert(value.get("allowed_tools", value), _Allowed)
            return ToolChoice(allowed.mode, tuple(map(_name, allowed.tools)))
    except msgspec.ValidationError as error:
        raise invalid(f"Invalid value for 'tool_choice': {error}", "tool_choice") from None
    raise unsupported("tool_choice", f"of type '{kind}' is not available; only functions can be chosen.")


def apply_tool_choice(choice: ToolChoice, tools: list[ToolDefinition]) -> tuple[list[ToolDefinition], Forced | None]:
    """Return the tools that the policy sees, and the call it is held to; raises Refusal for a tool that is missing."""
    if choice.mode == "none":
        return [], None
    names = [str(tool["function"]["name"]) for tool in tools]
    for name in choice.only or ():
        if name not in names:
            raise invalid(f"Invalid value for 'tool_choice': there is no tool '{name}' in 'tools'.", "tool_choice")
    if choice.only is not None:
        tools = [tool for tool, name in zip(tools, names, strict=True) if name in choice.only]
    if choice.mode == "auto":
        return tools, None
    if not tools:
        raise invalid("'tool_choice' demands a call, and there are no 'tools' to call.", "tool_choice")
    if choice.mode == "named" and choice.only:
        return tools, Forced(name=choice.only[0])
    # Where there is no choice the policy makes none: it could write the name of a tool that is not there.
    return tools, Forced(name=str(tools[0]["function"]["name"]), only_one=True) if len(tools) == 1 else Forced()


def _name(tool: dict[str, Any]) -> str:
    """Name of a function as Chat Completions (nested) or Responses (flat) writes it."""
    return msgspec.convert(tool.get("function", tool), _Named).name
