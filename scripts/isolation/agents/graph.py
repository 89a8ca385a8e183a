"""A graph with a checkpointer made once, and a function that asks it under one thread id."""

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model="gpt-4o-mini", api_key="sk-any")


def answer(state: MessagesState):
    return {"messages": [model.invoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
graph = builder.compile(checkpointer=InMemorySaver())


def ask(task):
    state = graph.invoke({"messages": [("user", task["question"])]}, {"configurable": {"thread_id": "1"}})
    return state["messages"][-1].content
