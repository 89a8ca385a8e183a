"""The agent in JavaScript, on the `openai` npm package and its own tool loop, run as it is."""

import json
import re
from pathlib import Path
from typing import Any

from observing import node_program
from warm_process import run_leyden

from leyden.core.data import semconv
from leyden.core.runner.commands.command import CommandAgent
from leyden.core.testing.gateway_bench import GatewayBench, Turn
from leyden.core.testing.running import rewards_in, running

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def calculator(conversation: list[Turn]) -> str:
    """The model behind the example: sums with the tool, then the answer."""
    results = [turn.text for turn in conversation if turn.role == "tool"]
    if results:
        return f"Answer: {results[-1]}"
    asked = re.search(r"What is (\d+) plus (\d+)\?", conversation[-1].text)
    assert asked is not None
    call = {"name": "calculator", "arguments": {"expression": f"{asked[1]}+{asked[2]}"}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def right(task: Any, result: Any) -> float:
    return float(result == f"Answer: {task['answer']}")


async def test_agents_use_their_tool_and_every_call_is_kept_apart(node_example: Path) -> None:
    agent = CommandAgent([node_program(), str(node_example / "agent.js"), "{question}"])
    rows = [{"question": f"What is {100 + n} plus {n}?", "answer": 100 + 2 * n} for n in range(8)]
    bench = GatewayBench(calculator)
    bench.start()
    try:
        store, ids = bench.store, [(await bench.store.enqueue_rollout(row, mode="train")).rollout_id for row in rows]
        where: dict[str, Any] = {"gateway_url": bench.url, "key": bench.gateway.key, "concurrency": len(rows)}
        async with running(store, agent, reward=right, **where):
            ended = await store.wait_for_rollouts(rollout_ids=ids, timeout=60)
        assert [rollout.status for rollout in ended] == ["succeeded"] * len(rows)
        for rollout_id in ids:
            spans = (await store.query_spans(rollout_id)).items
            assert sum(semconv.CALL_ID in span.attributes for span in spans) == 2
            assert rewards_in(spans) == [1.0]
        assert len(bench.log) == 2 * len(rows)
    finally:
        bench.stop()


def test_it_understands_the_shipped_policy(node_example: Path, environment: dict[str, str]) -> None:
    task = '{"question": "What is 20 plus 13?", "answer": 33}'
    arguments = ["exec", "--policy", str(EXAMPLES / "calculator_langgraph/policy"), "--task", task]
    arguments += ["--reward", f"{EXAMPLES}/calculator_node/reward.py:score", "--json"]
    arguments += ["--", node_program(), str(node_example / "agent.js"), "{question}"]
    done = run_leyden(arguments, cwd=ROOT, environment=environment, timeout=400)
    assert (done.stdout, done.returncode) == ("Answer: 33\n", 0), done.stderr
    spans = json.loads(done.stderr)["attempts"][0][1]
    reasons = [s["attributes"]["gen_ai.response.finish_reasons"] for s in spans if "leyden.call.id" in s["attributes"]]
    assert reasons == [["tool_calls"], ["stop"]]
    assert [s["attributes"]["leyden.reward.value"] for s in spans if "leyden.reward.value" in s["attributes"]] == [1.0]
