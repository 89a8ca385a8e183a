r"""An assistant with the tools of an MCP server over stdio, in a McpWorkbench.
---
run: main
author: await main(task)
tasks:
  - city: Lisbon
  - city: Oslo
model:
  - role: user
    when: population of (\w+)
    call: {name: population, arguments: {city: \1}}
  - role: tool
    when: (\w+) has (\d+) people
    say: In \1 live \2 people.
calls: 2
result: [In Lisbon live 6000 people., In Oslo live 4000 people.]
agents: [statistician]
files:
  server.py: |
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("cities", log_level="ERROR")


    @server.tool()
    def population(city: str) -> str:
        'How many people live in a city.'
        return f"{city} has {len(city) * 1000} people"


    server.run()
"""

import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams


async def main(task):
    params = StdioServerParams(command=sys.executable, args=["server.py"], read_timeout_seconds=300)
    async with McpWorkbench(server_params=params) as workbench:
        assistant = AssistantAgent(
            "statistician",
            model_client=OpenAIChatCompletionClient(model="gpt-4.1-nano"),
            workbench=workbench,
            reflect_on_tool_use=True,
        )
        result = await assistant.run(task=f"What is the population of {task['city']}?")
    return result.messages[-1].content
