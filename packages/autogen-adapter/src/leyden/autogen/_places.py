"""Which functions and methods of AutoGen the hooks are put around."""

import autogen_core
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.teams import BaseGroupChat
from autogen_agentchat.teams._group_chat._chat_agent_container import ChatAgentContainer
from autogen_core._telemetry import TraceHelper
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench

from leyden.autogen._hooks import Hooks
from leyden.core.tracing.patches import Patches


def install(hooks: Hooks, patches: Patches) -> None:
    """Put `hooks` around AutoGen's functions; `patches` takes them off again."""
    patches.function(autogen_core, "trace_invoke_agent_span", hooks.agent_span)
    patches.function(autogen_core, "trace_tool_span", hooks.tool_span)
    patches.function(autogen_core, "trace_create_agent_span", hooks.create_span)
    patches.method(TraceHelper, "trace_block", hooks.runtime_span)
    agent = {
        "on_messages": hooks.agent_call,
        "on_messages_stream": hooks.agent_stream,
        "run_stream": hooks.run_stream,
    }
    patches.methods(BaseChatAgent, agent)
    patches.methods(BaseGroupChat, {"run_stream": hooks.team_stream})
    patches.method(ChatAgentContainer, "publish_message", hooks.published)
    patches.methods(BaseTool, {"run_json": hooks.tool_call, "run_json_stream": hooks.tool_stream})
    patches.methods(Workbench, {"call_tool": hooks.workbench_call})
    patches.methods(ChatCompletionClient, {"create": hooks.model_call, "create_stream": hooks.model_stream})
