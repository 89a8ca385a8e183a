r"""RunnableWithMessageHistory over a store at module level.
---
tasks:
  - question: Tell me about lighthouses.
  - question: Tell me about submarines.
model:
  - when: about (\w+)
    say: There is much to say about \1.
  - when: Shorter
    seen: Tell me about (\w+)
    say: In short, \1 are remarkable.
calls: 2
result: [lighthouses are remarkable, submarines are remarkable]
state: '{name: len(history.messages) for name, history in store.items()}'
"""

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI

store = {}


def get_history(session_id):
    if session_id not in store:
        store[session_id] = InMemoryChatMessageHistory()
    return store[session_id]


prompt = ChatPromptTemplate.from_messages(
    [("system", "You are brief."), MessagesPlaceholder("history"), ("human", "{question}")]
)
chain = RunnableWithMessageHistory(
    prompt | ChatOpenAI(model="gpt-4o-mini"), get_history, input_messages_key="question", history_messages_key="history"
)


def agent(task):
    config = {"configurable": {"session_id": "default"}}
    chain.invoke({"question": task["question"]}, config=config)
    return chain.invoke({"question": "Shorter, please."}, config=config).content
