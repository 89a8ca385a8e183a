r"""A ToolAgent of autogen-core, and an agent that reaches it by tool_agent_caller_loop; two tools at once.
---
run: main
author: asyncio.run(main(task))
tasks:
  - question: Compare the stock prices of Acme and Globex.
  - question: Compare the stock prices of Initech and Umbrella.
model:
  - role: user
    when: prices of (\w+) and (\w+)
    calls:
      - {name: get_stock_price, arguments: {ticker: \1}}
      - {name: get_stock_price, arguments: {ticker: \2}}
  - role: tool
    seen: prices of (\w+) and (\w+)
    say: \1 and \2 cost the same.
calls: 2
result: [Acme and Globex cost the same., Initech and Umbrella cost the same.]
agents: [tool_use_agent]
tools: [get_stock_price]
"""

from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler
from autogen_core.models import ChatCompletionClient, LLMMessage, SystemMessage, UserMessage
from autogen_core.tool_agent import ToolAgent, tool_agent_caller_loop
from autogen_core.tools import FunctionTool, Tool, ToolSchema
from autogen_ext.models.openai import OpenAIChatCompletionClient


@dataclass
class Message:
    content: str


class ToolUseAgent(RoutedAgent):
    def __init__(self, model_client: ChatCompletionClient, tools: list[ToolSchema], tool_agent_type: str) -> None:
        super().__init__("An agent with tools")
        self._system_messages: list[LLMMessage] = [SystemMessage(content="You are a helpful AI assistant.")]
        self._model_client = model_client
        self._tools = tools
        self._tool_agent_id = AgentId(tool_agent_type, self.id.key)

    @message_handler
    async def handle_user_message(self, message: Message, ctx: MessageContext) -> Message:
        session = [*self._system_messages, UserMessage(content=message.content, source="user")]
        messages = await tool_agent_caller_loop(
            self,
            tool_agent_id=self._tool_agent_id,
            model_client=self._model_client,
            input_messages=session,
            tool_schema=self._tools,
            cancellation_token=ctx.cancellation_token,
        )
        return Message(content=messages[-1].content)


async def get_stock_price(ticker: str) -> float:
    """Get the stock price."""
    return len(ticker) * 10.5


async def main(task):
    runtime = SingleThreadedAgentRuntime()
    tools: list[Tool] = [FunctionTool(get_stock_price, description="Get the stock price.")]
    await ToolAgent.register(runtime, "tool_executor_agent", lambda: ToolAgent("tool executor agent", tools))
    await ToolUseAgent.register(
        runtime,
        "tool_use_agent",
        lambda: ToolUseAgent(
            OpenAIChatCompletionClient(model="gpt-4o-mini"), [tool.schema for tool in tools], "tool_executor_agent"
        ),
    )
    runtime.start()
    response = await runtime.send_message(Message(task["question"]), AgentId("tool_use_agent", "default"))
    await runtime.stop()
    return response.content
