"""Tool choice: parses `tool_choice`, and selects the tools in the prompt and the forced tool call."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from leyden.core.gateway.codec import Forced, ToolDefinition
from leyden.core.gateway.refusal import invalid, unsupported

_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that may be called, and whether the answer must call one."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    """`named`: the answer must call the only tool in `only`."""
    only: tuple[str, ...] | None = None
    """Names of the tools that may be called; None for all tools."""


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Allowed(msgspec.Struct, frozen=True):
    tools: list[dict[str, Any]]
    mode: Literal["auto", "required"] = "auto"


def read_tool_choice(value: str | dict[str, Any] | None) -> ToolChoice:
    """Parse `tool_choice` of Chat Completions or Responses; raises Refusal for an invalid or unsupported value."""
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
    """Return the tools for the prompt and the forced tool call, if any.

    Raises Refusal if `tool_choice` names a tool that is not in `tools`, or requires a call without any tools.
    """
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
    # With only one tool, its name is part of the forced beginning. The policy could write another name otherwise.
    return tools, Forced(name=str(tools[0]["function"]["name"]), only_one=True) if len(tools) == 1 else Forced()


def check_function_name(name: str, location: str) -> None:
    """Raise Refusal for a name of a function that OpenAI refuses."""
    if not _FUNCTION_NAME.fullmatch(name):
        raise invalid(
            f"Invalid '{location}': the name must match the pattern '^{_FUNCTION_NAME.pattern}$', and is "
            f"'{name[:80]}'.",
            location,
        )


def _name(tool: dict[str, Any]) -> str:
    """Return the name of a function in the format of Chat Completions (nested) or Responses (flat)."""
    return msgspec.convert(tool.get("function", tool), _Named).name
