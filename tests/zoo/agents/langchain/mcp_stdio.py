r"""Tools of an MCP server over stdio, wrapped as LangChain tools.
---
author: await agent(task)
tasks:
  - question: What is 17 plus 25?
  - question: What is 31 plus 48?
model:
  - role: user
    when: is (\d+) plus (\d+)
    call: {name: add, arguments: '{"a": \1, "b": \2}'}
  - role: tool
    when: (\d+)
    say: The sum is \1.
calls: 2
result: [The sum is 42., The sum is 79.]
files:
  sums.py: |
    from mcp.server.fastmcp import FastMCP
    server = FastMCP("sums", log_level="ERROR")
    @server.tool()
    def add(a: int, b: int) -> str:
        'Add two numbers.'
        return str(a + b)
    server.run()
tools: [add]
agents: [adder]
"""

import sys

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

parameters = StdioServerParameters(command=sys.executable, args=["sums.py"])


def as_tool(session, described):
    async def call(**arguments):
        result = await session.call_tool(described.name, arguments)
        return result.content[0].text

    return StructuredTool(
        name=described.name, description=described.description, args_schema=described.inputSchema, coroutine=call
    )


async def agent(task):
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = [as_tool(session, described) for described in (await session.list_tools()).tools]
        graph = create_agent(ChatOpenAI(model="gpt-4o-mini"), tools, name="adder")
        result = await graph.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})
    return result["messages"][-1].content
