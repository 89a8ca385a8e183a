r"""An assistant that has two other agents as tools, made at call time.
---
run: main
author: await main(task)
tasks:
  - question: Solve the integral of lighthouses.
  - question: Solve the integral of submarines.
model:
  - system: general assistant
    role: user
    when: integral of (\w+)
    call: {name: math_expert, arguments: {task: 'What is the integral of \1?'}}
  - system: You are a math expert
    when: integral of (\w+)
    say: It is \1 squared.
  - system: general assistant
    role: tool
    when: is (\w+) squared
    say: After all, \1 squared it is.
calls: 3
result: [lighthouses squared it is, submarines squared it is]
agents: [math_expert, assistant]
tools: [math_expert]
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_ext.models.openai import OpenAIChatCompletionClient


async def main(task):
    model_client = OpenAIChatCompletionClient(model="gpt-4.1")
    math_agent = AssistantAgent(
        "math_expert",
        model_client=model_client,
        system_message="You are a math expert.",
        description="A math expert assistant.",
        model_client_stream=True,
    )
    chemistry_agent = AssistantAgent(
        "chemistry_expert",
        model_client=model_client,
        system_message="You are a chemistry expert.",
        description="A chemistry expert assistant.",
        model_client_stream=True,
    )
    assistant = AssistantAgent(
        "assistant",
        system_message="You are a general assistant. Use expert tools when needed.",
        model_client=OpenAIChatCompletionClient(model="gpt-4.1", parallel_tool_calls=False),
        model_client_stream=True,
        tools=[
            AgentTool(math_agent, return_value_as_last_message=True),
            AgentTool(chemistry_agent, return_value_as_last_message=True),
        ],
        max_tool_iterations=10,
    )
    result = await assistant.run(task=task["question"])
    return result.messages[-1].content
