"""The original's tutorial code, with its one import line changed: a `LitAgent` around a LangGraph graph."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import itertools
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

import leyden.core as agl
from leyden.core.data import semconv
from leyden.core.data.reasons import NOT_SELECTED
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.store.open import open_store
from leyden.core.testing.servers.chat_endpoint import chat_endpoint
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

POLICY = Path(__file__).parents[1] / "examples/calculator_langgraph/policy"
ROWS = [{"question": f"What is {n} plus {n}?", "ground_truth": 2 * n} for n in range(10, 18)]
REWARDS = itertools.count()
"""Every attempt has an agent of its own, so what is counted across them is counted here."""

pytestmark = pytest.mark.timeout(600)


def build_graph(base_url: str, model: str) -> Any:
    llm = ChatOpenAI(model=model, base_url=base_url, api_key=SecretStr("unused"), max_completion_tokens=6)

    async def write(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    async def check(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"][:1])]}

    graph = StateGraph(MessagesState)
    graph.add_node("write", write)
    graph.add_node("check", check)
    graph.add_edge(START, "write")
    graph.add_edge("write", "check")
    graph.add_edge("check", END)
    return graph.compile(name="sql")


class SqlAgent(agl.LitAgent[dict[str, Any]]):
    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        llm = resources["main_llm"]
        graph = build_graph(llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id), llm.model)
        question = {"messages": [("user", task["question"])]}
        await graph.ainvoke(question, {"callbacks": [self.tracer.get_langchain_handler()]})
        return float(next(REWARDS) % 2)


@pytest.mark.long
async def test_fit_trains_the_selected_nodes_only(tmp_path: Path) -> None:
    import asyncio

    trainer = agl.Trainer(
        n_runners=10,
        isolation="shared",  # REWARDS is the test's own
        algorithm=agl.LightningRL(agl.LightningRLConfig(learning_rate=1e-4)),
        adapter={"agent_match": "write|rewrite"},
        policy=POLICY,
        name="tutorial",
        runs=tmp_path,
        steps=1,
        tasks_per_step=4,
        group_size=4,
        quiet=True,
    )
    report = await asyncio.to_thread(trainer.fit, SqlAgent(), train_dataset=ROWS, val_dataset=ROWS[:2])
    assert (report.steps, report.failed_rollouts) == (1, 0)
    assert report.excluded_calls == {NOT_SELECTED: 16}
    store = await open_store(f"sqlite:///{tmp_path / 'tutorial' / 'store.db'}")
    try:
        for rollout in await store.query_rollouts():
            assert isinstance(rollout, AttemptedRollout)
            spans = (await store.query_spans(rollout.rollout_id)).items
            nodes = [span.attributes.get(semconv.NODE) for span in spans if semconv.CALL_ID in span.attributes]
            assert nodes == ["write", "check"]
            if rollout.mode == "train":
                trajectory = assemble(rollout, rollout.attempt, spans, Selector(agent_match="write|rewrite"))
                assert [call.node for call in trajectory.transitions] == ["write"]
    finally:
        await store.close()


def test_dev_runs_against_an_endpoint_of_the_users_own() -> None:
    with chat_endpoint("SELECT 1") as endpoint:
        llm = agl.LLM(endpoint=endpoint.url, model="their-model", api_key="sk-theirs")
        trainer = agl.Trainer(n_workers=1, initial_resources={"main_llm": llm}, isolation="shared", quiet=True)
        results = trainer.dev(SqlAgent(), dev_dataset=ROWS[:2])
    assert [result.rollout.status for result in results] == ["succeeded", "succeeded"]
    assert {request["body"]["model"] for request in endpoint.seen} == {"their-model"}
    assert len(endpoint.seen) == 4
