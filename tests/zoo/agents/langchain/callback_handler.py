r"""A callback handler of one's own that collects what it sees.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: seen
"""

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

seen = []


class Collector(BaseCallbackHandler):
    def on_chat_model_start(self, serialized, messages, **kwargs):
        seen.append(("start", len(messages[0])))

    def on_llm_end(self, response, **kwargs):
        seen.append(("end", response.generations[0][0].text[:11]))

    def on_chain_end(self, outputs, **kwargs):
        seen.append(("chain", type(outputs).__name__))


chain = ChatPromptTemplate.from_template("{question}") | ChatOpenAI(model="gpt-4o-mini")


def agent(task):
    return chain.invoke({"question": task["question"]}, {"callbacks": [Collector()], "tags": ["zoology"]}).content
