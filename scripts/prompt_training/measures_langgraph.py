# pyright: basic
"""A LangGraph graph of two nodes: one reads the measure in a customer's message, the other replies."""

from typing import Any, TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import SecretStr


class Conversation(TypedDict):
    """A customer's message, the measure in it, and the reply."""

    customer: str
    question: str
    measure: str
    reply: str


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
)


async def read(state: Conversation) -> dict[str, Any]:
    """Find the measure."""
    messages = [SystemMessage("Copy the measure from the message."), HumanMessage(state["question"])]
    return {"measure": (await model.ainvoke(messages)).content}


async def reply(state: Conversation) -> dict[str, Any]:
    """Reply to the customer."""
    system = SystemMessage(f"You reply to {state['customer']}, a customer abroad who asks about a measure.")
    return {"reply": (await model.ainvoke([system, HumanMessage(state["measure"])])).content}


builder = StateGraph(Conversation)
builder.add_node("read", read)
builder.add_node("reply", reply)
builder.add_edge(START, "read")
builder.add_edge("read", "reply")
builder.add_edge("reply", END)
agent = builder.compile(name="measures")
