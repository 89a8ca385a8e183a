r"""set_llm_cache with an InMemoryCache, and the same question twice.
---
tasks:
  - question: What is the capital of France?
  - question: What is the capital of Kenya?
model:
  - when: capital of (\w+)
    say: The capital of \1 is well known.
calls: 1
result: [France is well known, Kenya is well known]
state: get_llm_cache() is not None
broken: the model cache of LangChain is off while Leyden runs an agent, on purpose; in `leyden dev`, too
seen: the engine answered 2 calls, and the file says 1
"""

from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_openai import ChatOpenAI

set_llm_cache(InMemoryCache())
model = ChatOpenAI(model="gpt-4o-mini")


def agent(task):
    first = model.invoke(task["question"]).content
    second = model.invoke(task["question"]).content
    return first if first == second else "they differ"
