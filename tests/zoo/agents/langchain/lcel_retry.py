r"""A chain with with_retry, over a rate limit.
---
author: agent.invoke(task)
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - status: 429
    times: 1
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
agents: [agent]
"""

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="gpt-4o", max_retries=0).with_retry(
    stop_after_attempt=3, exponential_jitter_params={"initial": 0.01, "max": 0.02, "jitter": 0.01}
)
agent = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
