# pyright: basic
"""A single agent that writes one query, and a majority vote over five of its runs, on the rows of the query."""

from agent import FOLDER, Question, State, write
from langgraph.graph import END, START, StateGraph
from safe_sqlite import QueryError, run_readonly

import leyden.core as agl

builder = StateGraph(State, input_schema=Question)
builder.add_node("write", write)
builder.add_edge(START, "write")
builder.add_edge("write", END)
single = builder.compile(name="single")


def answer(result):
    """The rows in any order; None for a query that fails."""
    try:
        rows = run_readonly(FOLDER / result["database"], result["query"]).rows
    except QueryError:
        return None
    return tuple(sorted(map(repr, rows)))


vote = agl.Vote(agent=single, samples=5, answer=answer)
