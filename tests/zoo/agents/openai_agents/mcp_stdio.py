r"""An agent with the tools of an MCP server over stdio, connected in a with block.
---
run: main
author: await main(task)
tasks:
  - city: Lisbon
  - city: Oslo
model:
  - role: user
    when: people live in (\w+)
    call: {name: population, arguments: {city: \1}}
  - role: tool
    when: (\w+) has (\d+) people
    say: In \1 live \2 people.
calls: 2
result: [In Lisbon live 6000 people., In Oslo live 4000 people.]
agents: [Assistant]
tools: [population]
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

from agents import Agent, Runner
from agents.mcp import MCPServerStdio


async def main(task):
    async with MCPServerStdio(
        name="Cities",
        params={"command": sys.executable, "args": ["server.py"]},
        cache_tools_list=True,
        client_session_timeout_seconds=300,
    ) as server:
        agent = Agent(name="Assistant", instructions="Use the tools to answer.", mcp_servers=[server])
        result = await Runner.run(starting_agent=agent, input=f"How many people live in {task['city']}?")
    return result.final_output
