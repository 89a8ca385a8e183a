r"""Retrieval from an in-memory vector store with OpenAI's embeddings.
---
author: agent.invoke(task["question"])
input: question_of
tasks:
  - question: Who keeps the lighthouse?
  - question: Who steers the submarine?
model:
  - when: the (\w+)\?
    say: Somebody of the \1 does.
calls: 1
other_requests: 2
result: [of the lighthouse, of the submarine]
agents: [agent]
"""

from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

TEXTS = ["Keepers climb stairs.", "Captains read charts.", "Cooks peel onions."]


def retrieve(question):
    store = InMemoryVectorStore(OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False))
    store.add_documents([Document(page_content=text) for text in TEXTS])
    return "\n".join(document.page_content for document in store.similarity_search(question, k=1))


def question_of(task):
    return task["question"]


prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
agent = (
    {"context": RunnableLambda(retrieve), "question": RunnablePassthrough()}
    | prompt
    | ChatOpenAI(model="gpt-4o-mini")
    | StrOutputParser()
)
