r"""A model with an InMemoryRateLimiter and an own httpx client.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
author: agent.invoke(task)
"""

import httpx
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="gpt-4o-mini",
    rate_limiter=InMemoryRateLimiter(requests_per_second=100, check_every_n_seconds=0.01, max_bucket_size=10),
    http_client=httpx.Client(proxy=None, timeout=30),
    http_async_client=httpx.AsyncClient(proxy=None, timeout=30),
)
agent = ChatPromptTemplate.from_template("{question}") | model
