r"""A Memory in a folder, used directly: facts are remembered with their scope, and recalled for a prompt.
---
run: main
tasks:
  - name: Ada
    city: Lisbon
  - name: Alan
    city: Naples
author: main(task)
model:
  - when: (\w+) moved to (\w+)\..*Where
    say: \1 lives in \2.
calls: 1
result: [Ada lives in Lisbon., Alan lives in Naples.]
"""

import string
import tempfile

from crewai import LLM, Memory


def embed(texts):
    return [[float(text.lower().count(letter)) for letter in string.ascii_lowercase] for text in texts]


def main(task):
    llm = LLM(model="gpt-4o-mini")
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory(llm=llm, storage=folder, embedder=embed)
        memory.remember(
            f"{task['name']} moved to {task['city']}.", scope="/people", categories=["people"], importance=0.8
        )
        matches = memory.recall(f"Where does {task['name']} live?", scope="/people", limit=1, depth="shallow")
        known = matches[0].record.content
        memory.close()
    return llm.call(f"{known} Where does {task['name']} live?")
