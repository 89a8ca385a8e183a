# pyright: basic
"""An agent that looks facts up in an encyclopaedia, one search at a time, until it can answer a question."""

import json
from pathlib import Path

import bm25s
from agents import (
    Agent,
    AgentsException,
    ModelSettings,
    RunContextWrapper,
    Runner,
    function_tool,
    set_default_openai_key,
)

set_default_openai_key("sk-your-key-here")

ENCYCLOPAEDIA = Path(__file__).parent / "encyclopaedia.jsonl"
RESULTS = 2
LONGEST_QUERY = 200


class Library:
    """Passages, and an index of their words."""

    def __init__(self, passages: list[str]):
        self.passages = tuple(passages)
        self.index = bm25s.BM25()
        self.index.index(bm25s.tokenize(passages, show_progress=False), show_progress=False)

    def search(self, query: str) -> list[str]:
        """The passages that fit a query best; none that shares no word with it."""
        tokens = bm25s.tokenize(query, return_ids=False, show_progress=False)
        count = min(RESULTS, len(self.passages))
        found, scores = self.index.retrieve(tokens, k=count, show_progress=False)
        return [self.passages[number] for number, score in zip(found[0], scores[0], strict=True) if score > 0]


lines = ENCYCLOPAEDIA.read_text(encoding="utf-8").splitlines()
encyclopaedia = Library([json.loads(line)["text"] for line in lines])


@function_tool
async def search(context: RunContextWrapper[Library], query: str) -> str:
    """Search the passages."""
    found = context.context.search(query[:LONGEST_QUERY])
    return "\n".join(f"{number}. {passage}" for number, passage in enumerate(found, 1)) or "nothing found"


agent = Agent[Library](
    name="qa_agent",
    model="gpt-4.1-mini",
    model_settings=ModelSettings(temperature=0),
    instructions="Search one fact at a time. Then reply '<answer> ... </answer>' with a name or 'unanswerable'.",
    tools=[search],
)


async def answer(task: dict) -> str:
    """Answer a task's question, from its own passages if it has some."""
    library = Library(task["passages"]) if task.get("passages") else encyclopaedia
    try:
        result = await Runner.run(agent, task["question"], context=library, max_turns=8)
    except AgentsException as error:
        return f"no answer: {error}"
    return result.final_output
