# pyright: basic
"""A text-to-SQL agent and its training in the form of Agent Lightning's tutorial, over the names that Leyden offers.

`python -m migrated.sql RUNS` in the repository's root. Besides the import, only the dictionary's model, sizes and what
a CPU requires differ from the tutorial's, and the run's name and folder are given. Prompts are those of the project's
example, which its small policy has learned.
"""

import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, cast

import pandas as pd
from langchain.chat_models import init_chat_model
from langgraph.graph import END, START, StateGraph
from verl_cpu.training import CONFIG, SIZES
from verl_cpu.tutorial import TUTORIAL

import leyden.core.agent_lightning as agl
from leyden.core.algorithm.verl.driver.derived_settings import merged

EXAMPLE = Path("examples/text_to_sql").resolve()
sys.path.insert(0, str(EXAMPLE))

execution_match: Any = import_module("execution_match")
safe_sqlite: Any = import_module("safe_sqlite")
agl.setup_logging(apply_to=[__name__])

NAME, TRAINED = "sql", "write"
"""Of the run, and of the nodes whose calls are trained: `write_query` and `rewrite_query`."""
LIMITS = {"data": {"max_prompt_length": 1984, "max_response_length": 64}}


class State(TypedDict):
    question: str
    query: str
    execution: str
    feedback: str
    num_turns: int


class QueryGraph:
    """A graph that writes a query, runs it, checks the result, and writes another one if the check finds a fault."""

    def __init__(self, database: Path, max_turns: int, endpoint: str, model: str, temperature: float) -> None:
        self.database, self.max_turns = database, max_turns
        self.llm = init_chat_model(
            model,
            model_provider="openai",
            openai_api_base=endpoint,
            openai_api_key="dummy",
            temperature=temperature,
            max_retries=0,
            max_tokens=2048,
        )

    def ask(self, instruction: str, *lines: str) -> str:
        return str(self.llm.invoke([("system", instruction), ("user", "\n".join(lines))]).text)

    def write_query(self, state: State) -> Any:
        query = self.ask(
            "Write one SQLite query that answers the question.", safe_sqlite.schema_of(self.database), state["question"]
        )
        return {"query": query.strip(), "num_turns": 1}

    def execute_query(self, state: State) -> Any:
        try:
            rows = safe_sqlite.run_readonly(self.database, state["query"]).rows
        except safe_sqlite.QueryError as error:
            return {"execution": f"error: {error}"[:200]}
        return {"execution": "\n".join(", ".join(map(str, row)) for row in rows[:3]) or "no rows"}

    def check_query(self, state: State) -> Any:
        instruction = "Reply OK if the query answers the question, else say what is wrong."
        return {"feedback": self.ask(instruction, state["question"], state["query"], state["execution"])}

    def rewrite_query(self, state: State) -> Any:
        lines = (state["question"], state["query"], state["execution"], state["feedback"])
        query = self.ask("The query is wrong. Write a better one.", safe_sqlite.schema_of(self.database), *lines)
        return {"query": query.strip(), "num_turns": state["num_turns"] + 1}

    def after_check(self, state: State) -> str:
        is_good = state["feedback"].startswith("OK") and not state["execution"].startswith("error")
        return END if is_good or state["num_turns"] >= self.max_turns else "rewrite_query"

    def graph(self) -> Any:
        builder: Any = StateGraph(State)
        for node in (self.write_query, self.execute_query, self.check_query, self.rewrite_query):
            builder.add_node(node)
        builder.add_edge(START, "write_query")
        builder.add_edge("write_query", "execute_query")
        builder.add_edge("execute_query", "check_query")
        builder.add_conditional_edges("check_query", self.after_check, ["rewrite_query", END])
        builder.add_edge("rewrite_query", "execute_query")
        return builder.compile()


class QueryAgent(agl.LitAgent[dict[str, Any]]):
    """Runs the graph on a copy of the task's database: 1 for the expected result, 0.25 for any, 0 for an error."""

    def __init__(self, trained_agents: str | None = TRAINED, max_turns: int = 3) -> None:
        super().__init__(trained_agents=trained_agents)
        self.max_turns = max_turns

    def rollout(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        llm = cast("agl.LLM", resources["main_llm"])
        attempted = cast("agl.AttemptedRollout", rollout)
        given = {"model": llm.model, **llm.sampling_parameters}
        temperature = given["temperature"] if rollout.mode == "train" else llm.sampling_parameters.get("temperature", 0)
        original = EXAMPLE / "databases" / f"{task['db_id']}.sqlite"
        with tempfile.TemporaryDirectory() as folder:
            database = Path(shutil.copy(original, folder))
            endpoint = llm.get_base_url(rollout.rollout_id, attempted.attempt.attempt_id)
            graph = QueryGraph(database, self.max_turns, endpoint, given["model"], temperature).graph()
            handler = self.tracer.get_langchain_handler()
            options = {"callbacks": [handler], "recursion_limit": 100}
            result = graph.invoke({"question": task["question"]}, options)
            is_same = execution_match.same_result(database, result["query"], task["query"])
            return 1.0 if is_same else 0.0 if result["execution"].startswith("error") else 0.25


def rows(split: str, count: int) -> pd.DataFrame:
    """Return tasks of the example with the columns of the tutorial's."""
    table: Any = pd.read_json(EXAMPLE / f"{split}.jsonl", lines=True).head(count)
    table["db_id"] = table["database"].map(lambda path: Path(path).stem)
    return table.rename(columns={"gold": "query"})[["db_id", "question", "query"]]


def dictionary(folder: Path) -> dict[str, Any]:
    """Return the tutorial's dictionary for a CPU, with files of a few tasks, which are written into `folder`."""
    files = {"train_files": str(folder / "train.parquet"), "val_files": str(folder / "test.parquet")}
    rows("train", 8).to_parquet(files["train_files"], index=False)
    rows("val", 4).to_parquet(files["val_files"], index=False)
    model = {"actor_rollout_ref": {"model": {"path": str(EXAMPLE / "policy")}}}
    once = {"trainer": {"total_training_steps": 1, "test_freq": 1, "logger": ["console"]}}
    return merged(TUTORIAL, CONFIG, SIZES, LIMITS, model, once, {"data": files})


def train(runs: Path) -> None:
    config = dictionary(runs)
    algorithm = agl.VERL(config)
    trainer = agl.Trainer(
        n_runners=8, algorithm=algorithm, adapter={"agent_match": TRAINED}, name=NAME, runs=runs, quiet=True
    )
    assert cast("Any", trainer).adapter.agent_match == TRAINED
    train_data: Any = pd.read_parquet(config["data"]["train_files"]).to_dict(orient="records")
    val_data: Any = pd.read_parquet(config["data"]["val_files"]).to_dict(orient="records")
    trainer.fit(QueryAgent(), train_dataset=train_data, val_dataset=val_data)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
