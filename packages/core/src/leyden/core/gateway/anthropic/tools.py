"""Tools of the Messages API: checks `tools` and `tool_choice`, and converts them to the format of Chat Completions."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from leyden.core.gateway.anthropic.errors import not_available, wrong
from leyden.core.gateway.codec import Forced, ToolDefinition
from leyden.core.gateway.tool_choice import ToolChoice, apply_tool_choice

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_CLIENT_TOOL = re.compile(r"(?:bash|text_editor|memory|computer|computer_toolset|browser_toolset)_\d+")
"""Types of tools that the agent runs, and of which only the provider has the schema."""


class MessagesTool(msgspec.Struct, frozen=True):
    """Fields of a tool that are read."""

    name: str | None = None
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class MessagesToolChoice(msgspec.Struct, frozen=True):
    """The field `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def definitions(tools: Sequence[MessagesTool]) -> list[ToolDefinition]:
    """Return the tools in the format of Chat Completions; raises Refusal for a tool that the gateway cannot offer."""
    return [_definition(tool, f"tools.{index}") for index, tool in enumerate(tools)]


def chosen_tools(
    choice: MessagesToolChoice | None, tools: list[ToolDefinition]
) -> tuple[list[ToolDefinition], Forced | None]:
    """Return the tools for the prompt and the forced tool call, if any; raises Refusal for a choice without a tool."""
    wanted = read_choice(choice)
    names = {tool["function"]["name"] for tool in tools}
    for name in wanted.only or ():
        if name not in names:
            raise wrong("tool_choice", f"Tool '{name}' not found in provided tools")
    if wanted.mode == "required" and not tools:
        raise wrong("tool_choice", "may only be specified while providing `tools`")
    return apply_tool_choice(wanted, tools)


def read_choice(choice: MessagesToolChoice | None) -> ToolChoice:
    """Return `tool_choice` in the form that all dialects share; raises Refusal if the named tool is missing."""
    if choice is None or choice.type == "auto":
        return ToolChoice()
    if choice.type == "any":
        return ToolChoice("required")
    if choice.type == "none":
        return ToolChoice("none")
    if choice.name is None:
        raise wrong("tool_choice.tool.name", "Field required")
    return ToolChoice("named", (choice.name,))


def _definition(tool: MessagesTool, location: str) -> ToolDefinition:
    if tool.type not in (None, "custom"):
        if _CLIENT_TOOL.fullmatch(tool.type):
            reason = "only the provider has its schema. Define a tool with a name and an input_schema instead."
        else:
            reason = "it runs on the provider's servers. Remove it, or define a tool that the agent runs instead."
        raise not_available(location, f"tools of type '{tool.type}' are not available: {reason}")
    name = tool.name
    if name is None:
        raise wrong(f"{location}.custom.name", "Field required")
    if not _NAME.fullmatch(name):
        raise wrong(f"{location}.custom.name", f"String should match pattern '^{_NAME.pattern}$'")
    if tool.input_schema is None:
        raise wrong(f"{location}.custom.input_schema", "Field required")
    if tool.defer_loading:
        raise not_available(f"{location}.custom.defer_loading", "all tools are in the prompt. Leave this field out.")
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise not_available(f"{location}.custom.allowed_callers", "only the caller 'direct' is available.")
    function: dict[str, Any] = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
