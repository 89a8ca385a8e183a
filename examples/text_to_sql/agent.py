# pyright: basic
"""Three agents answer a question about a database: one writes a query, one checks its result, one rewrites it."""

from pathlib import Path
from typing import TypedDict

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import SecretStr
from safe_sqlite import QueryError, run_readonly, schema_of

FOLDER = Path(__file__).parent
MAX_TURNS = 3

WRITE = "Write one SQLite query that answers the question."
CHECK = "Reply OK if the query answers the question, else say what is wrong."
REWRITE = "The query is wrong. Write a better one."


class Question(TypedDict):
    question: str
    database: str  # a path, absolute or relative to this folder


class State(Question):
    query: str
    result: str
    failed: bool
    feedback: str
    turns: int


model = ChatOpenAI(
    model="gpt-4.1-mini",
    base_url="https://api.openai.com/v1",
    api_key=SecretStr("sk-your-key-here"),
    temperature=0,
    max_completion_tokens=256,
)


@tool
def run_sql(database: str, query: str) -> str:
    """Run a query on a database and return its first rows."""
    rows = run_readonly(FOLDER / database, query).rows
    lines = [", ".join(str(value)[:40] for value in row) for row in rows[:3]]
    return "\n".join([*lines, f"... {len(rows)} rows"] if len(rows) > 3 else lines) or "no rows"


def schema(state: State):
    return schema_of(FOLDER / state["database"])


def sql_in(text: str):
    """The query in a reply, which some models put in a code block."""
    if "```" in text:
        text = text.split("```")[1].removeprefix("sqlite").removeprefix("sql")
    return text.strip()


async def write(state: State):
    prompt = f"{schema(state)}\n{state['question']}"
    reply = await model.ainvoke([("system", WRITE), ("user", prompt)])
    return {"query": sql_in(reply.text), "turns": 1}


def execute(state: State):
    try:
        result = run_sql.invoke({"database": state["database"], "query": state["query"]})
    except QueryError as error:
        return {"result": f"error: {error}"[:200], "failed": True}
    return {"result": result, "failed": False}


async def check(state: State):
    if state["failed"]:
        return {"feedback": "It failed."}
    prompt = f"{state['question']}\n{state['query']}\n{state['result']}"
    reply = await model.ainvoke([("system", CHECK), ("user", prompt)])
    return {"feedback": reply.text}


async def rewrite(state: State):
    prompt = f"{schema(state)}\n{state['question']}\n{state['query']}\n{state['result']}\n{state['feedback']}"
    reply = await model.ainvoke([("system", REWRITE), ("user", prompt)])
    return {"query": sql_in(reply.text), "turns": state["turns"] + 1}


def after_execute(state: State):
    """The last query is not checked: there is no turn left to rewrite it."""
    return "check" if state["turns"] < MAX_TURNS else END


def after_check(state: State):
    return END if state["feedback"].strip().upper().startswith("OK") else "rewrite"


builder = StateGraph(State, input_schema=Question)
builder.add_node("write", write)
builder.add_node("execute", execute)
builder.add_node("check", check)
builder.add_node("rewrite", rewrite)
builder.add_edge(START, "write")
builder.add_edge("write", "execute")
builder.add_conditional_edges("execute", after_execute, ["check", END])
builder.add_conditional_edges("check", after_check, ["rewrite", END])
builder.add_edge("rewrite", "execute")
agent = builder.compile(name="text_to_sql")
