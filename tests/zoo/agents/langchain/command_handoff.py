r"""Two agents in a graph that hand over with Command.
---
author: 'await agent.ainvoke({"messages": [{"role": "user", "content": task["question"]}]})'
tasks:
  - question: Translate the word lighthouse.
  - question: Translate the word submarine.
model:
  - system: reception
    role: user
    call: {name: transfer_to_translator, arguments: {}}
  - system: translate
    seen: word (\w+)
    say: \1 in French.
calls: 2
result: [lighthouse in French., submarine in French.]
agents: [reception, translator]
tools: [transfer_to_translator]
"""

from typing import Annotated

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

model = ChatOpenAI(model="gpt-4o-mini")


@tool
def transfer_to_translator(runtime: ToolRuntime) -> Command:
    """Hand the conversation over to the translator."""
    message = ToolMessage("transferred", tool_call_id=runtime.tool_call_id)
    return Command(
        goto="translator",
        update={"messages": [*runtime.state["messages"], message]},
        graph=Command.PARENT,
    )


reception = create_agent(model, [transfer_to_translator], system_prompt="You are the reception.", name="reception")
translator = create_agent(model, [], system_prompt="You translate.", name="translator")
builder = StateGraph(MessagesState)
builder.add_node("reception", reception, destinations=("translator",))
builder.add_node("translator", translator)
builder.add_edge(START, "reception")
agent = builder.compile(name="desk")
