"""Patch table: the functions and methods of AutoGen that hooks wrap, once their module is imported."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leyden.autogen._hooks import Hooks
from leyden.core.tracing.patching.on_import import OnImport
from leyden.core.tracing.patching.patches import Patches


def install(hooks: Hooks, patches: Patches) -> OnImport:
    """Wrap imported modules with `hooks`, and the others at their import; `patches` undoes it."""
    return OnImport({name: partial(patch, hooks=hooks, patches=patches) for name, patch in _PATCHERS.items()})


def _patch_core(core: Any, hooks: Hooks, patches: Patches) -> None:
    from leyden.autogen._core_hooks import CoreHooks  # loads AutoGen's core, which is loaded now

    core_hooks = CoreHooks(hooks)
    telemetry: Any = importlib.import_module("autogen_core._telemetry")
    models: Any = importlib.import_module("autogen_core.models")
    tools: Any = importlib.import_module("autogen_core.tools")
    patches.function(core, "trace_invoke_agent_span", hooks.agent_span)
    patches.function(core, "trace_tool_span", hooks.tool_span)
    patches.function(core, "trace_create_agent_span", hooks.create_span)
    patches.method(telemetry.TraceHelper, "trace_block", hooks.runtime_span)
    patches.method(core.BaseAgent, "on_message", core_hooks.handler_call)
    runtime = {
        "send_message": core_hooks.send_call,
        "publish_message": core_hooks.publish_call,
        "_process_send": core_hooks.delivery_call,
        "_process_publish": core_hooks.delivery_call,
    }
    for name, hook in runtime.items():
        if hasattr(core.SingleThreadedAgentRuntime, name):
            patches.method(core.SingleThreadedAgentRuntime, name, hook)
    patches.methods(tools.BaseTool, {"run_json": hooks.tool_call, "run_json_stream": hooks.tool_stream})
    patches.methods(tools.Workbench, {"call_tool": hooks.workbench_call})
    patches.methods(models.ChatCompletionClient, {"create": hooks.model_call, "create_stream": hooks.model_stream})


def _patch_agents(agents: Any, hooks: Hooks, patches: Patches) -> None:
    agent = {
        "on_messages": hooks.agent_call,
        "on_messages_stream": hooks.agent_stream,
        "run_stream": hooks.run_stream,
    }
    patches.methods(agents.BaseChatAgent, agent)


def _patch_teams(teams: Any, hooks: Hooks, patches: Patches) -> None:
    container: Any = importlib.import_module(f"{teams.__name__}._group_chat._chat_agent_container")
    patches.methods(teams.BaseGroupChat, {"run_stream": hooks.team_stream})
    patches.method(container.ChatAgentContainer, "publish_message", hooks.member_publish_call)


_PATCHERS: Mapping[str, Callable[..., None]] = {
    "autogen_core": _patch_core,
    "autogen_agentchat.agents": _patch_agents,
    "autogen_agentchat.teams": _patch_teams,
}
