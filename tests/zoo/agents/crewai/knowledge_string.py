r"""A crew with a string as its knowledge, and a local embedder of one's own.
---
author: agent.kickoff(inputs=task)
tasks:
  - question: Where does Ada live?
  - question: Where does Alan live?
model:
  - seen: Where does (\w+) live.*lives in Lisbon
    say: \1 lives in Lisbon.
  - when: 'original query is: Where does (\w+) live'
    say: where \1 lives
calls: 2
result: [Ada lives in Lisbon., Alan lives in Lisbon.]
agents: [About User]
environment: {CREWAI_STORAGE_DIR: knowledge}
"""

import string

import numpy as np
from chromadb import EmbeddingFunction
from crewai import Agent, Crew, Task
from crewai.knowledge.source.string_knowledge_source import StringKnowledgeSource
from crewai.rag.embeddings.providers.custom.embedding_callable import CustomEmbeddingFunction


class LetterEmbedding(CustomEmbeddingFunction, EmbeddingFunction):
    def __init__(self, **kwargs):
        pass

    def __call__(self, input):
        rows = [[text.lower().count(letter) for letter in string.ascii_lowercase] for text in input]
        return [np.array(row, dtype=np.float32) for row in rows]


source = StringKnowledgeSource(content="Ada and Alan are friends. Each of them lives in Lisbon.")
about = Agent(role="About User", goal="Know the users", backstory="You know them.", llm="gpt-4o-mini")
answer = Task(description="{question}", expected_output="An answer.", agent=about)
agent = Crew(
    agents=[about],
    tasks=[answer],
    knowledge_sources=[source],
    embedder={"provider": "custom", "config": {"embedding_callable": LetterEmbedding}},
)
