# pyright: basic
"""A calculator agent and its training in the form of Agent Lightning's Calc-X, over the names that Leyden offers.

`python -m migrated.calc RUNS` in the repository's root. Besides the import, only the dictionary's model, sizes and what
a CPU requires differ from the original's, and the run's name and folder are given. Prompts are those of the project's
example, which its small policy has learned. The tool is one of an MCP server.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any, TypedDict, cast

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams
from datasets import Dataset as HuggingFaceDataset
from verl_cpu.training import CONFIG, SIZES
from verl_cpu.tutorial import TUTORIAL

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning.env_var import LightningEnvVar, resolve_str_env_var
from leyden.core.algorithm.verl.driver.derived_settings import merged

EXAMPLE = Path("examples/calculator_autogen").resolve()
SERVER = Path(__file__).parent / "calculator.py"
ANSWER = re.compile(r"Answer: (-?\d{1,18})")
NAME = "calc"


class MathProblem(TypedDict):
    id: str
    question: str
    chain: str
    result: str
    source: str


def assistant(model: str, base_url: str, temperature: float, workbench: McpWorkbench) -> AssistantAgent:
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=base_url,
        api_key="token-abc123",
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "family": ModelFamily.UNKNOWN,
            "structured_output": False,
        },
        temperature=temperature,
    )
    return AssistantAgent(
        name="calc",
        model_client=client,
        workbench=workbench,
        system_message="Use the calculator, then reply 'Answer: <number>'.",
        max_tool_iterations=5,
    )


@agl.rollout
async def calc_agent(task: MathProblem, llm: agl.LLM) -> None:
    async with McpWorkbench(StdioServerParams(command=sys.executable, args=["-I", str(SERVER)])) as workbench:
        agent = assistant(llm.model, llm.endpoint, llm.sampling_parameters.get("temperature", 0.7), workbench)
        answered = await asyncio.wait_for(agent.run(task=task["question"]), timeout=300)
    found = ANSWER.fullmatch(str(cast("Any", answered.messages[-1]).content))
    agl.emit_reward(float(found is not None and found[1] == task["result"]))


def rows(folder: Path, split: str, count: int) -> str:
    """Write tasks of the project's example with the columns of Calc-X's, and return the file."""
    read: Any = HuggingFaceDataset.from_json
    table = read(str(EXAMPLE.parent / f"calculator_langgraph/{split}.jsonl"), cache_dir=str(folder / "cache"))
    found = [
        {"id": row["id"], "question": row["question"], "chain": "", "result": str(row["answer"]), "source": "made"}
        for row in table.select(range(count))
    ]
    path = folder / f"{split}.parquet"
    cast("Any", HuggingFaceDataset.from_list(found)).to_parquet(str(path))
    return str(path)


def train(runs: Path) -> None:
    read: Any = HuggingFaceDataset.from_parquet
    train_data, val_data = (read(rows(runs, *split)).to_list() for split in (("train", 8), ("val", 4)))
    assert resolve_str_env_var(LightningEnvVar.AGL_CURRENT_ROLE) is None
    config = merged(
        {name: section for name, section in TUTORIAL.items() if name != "data"},
        {"actor_rollout_ref": {"rollout": {"engine_kwargs": {"vllm": {"enable_auto_tool_choice": True}}}}},
        CONFIG,
        SIZES,
        {"actor_rollout_ref": {"model": {"path": str(EXAMPLE / "policy")}}},
        {"trainer": {"total_training_steps": 1, "test_freq": 1, "logger": ["console"]}},
    )
    algorithm = agl.VERL(config)
    adapter, tracer = agl.LlmProxyTraceToTriplet(), agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=algorithm, n_runners=8, tracer=tracer, adapter=adapter, name=NAME, runs=runs, quiet=True
    )
    agl.setup_logging("INFO")
    trainer.fit(calc_agent, train_data, val_dataset=val_data)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
