r"""Retrieval with embeddings and numpy, then one call.
---
tasks:
  - question: Which animal is the lighthouse keeper's?
  - question: Which animal is the submarine captain's?
model:
  - when: "Context: (\\w+).*animal is the (\\w+)"
    say: For the \2 I read \1.
calls: 1
other_requests: 2
result: [For the lighthouse I read, For the submarine I read]
"""

import numpy as np
from openai import OpenAI

client = OpenAI()
DOCUMENTS = ["Cats live in towers.", "Dolphins follow boats.", "Owls sleep by day."]
vectors = None


def embed(texts):
    data = client.embeddings.create(model="text-embedding-3-small", input=texts).data
    return np.array([item.embedding for item in data])


def agent(task):
    global vectors
    if vectors is None:
        vectors = embed(DOCUMENTS)
    best = DOCUMENTS[int(np.argmax(vectors @ embed([task["question"]])[0]))]
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": f"Context: {best}\n\n{task['question']}"}]
    )
    return completion.choices[0].message.content
