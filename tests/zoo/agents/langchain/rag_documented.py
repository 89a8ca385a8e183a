r"""The retrieval chain of the documentation, given as it is.
---
author: agent.invoke(task["question"])
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

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False)


def retrieve(question):
    store = InMemoryVectorStore.from_texts(["Keepers climb stairs.", "Captains read charts."], embeddings)
    return store.as_retriever(search_kwargs={"k": 1}).invoke(question)


def joined(documents):
    return "\n\n".join(document.page_content for document in documents)


prompt = ChatPromptTemplate.from_template("Answer from this context:\n{context}\n\nQuestion: {question}")
agent = (
    {"context": RunnableLambda(retrieve) | joined, "question": RunnablePassthrough()}
    | prompt
    | ChatOpenAI(model="gpt-4o-mini")
    | StrOutputParser()
)
