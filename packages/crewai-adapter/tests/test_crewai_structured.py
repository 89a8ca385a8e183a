"""Structured output of CrewAI's tasks on random policies: only the gateway's grammar makes their answers valid."""

# The framework's own types are partly unknown:
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

from pathlib import Path
from typing import Any

import pytest
from crewai import LLM, Agent, Crew, Task
from structured_models import COUNTS, check_runs, model_of


@pytest.fixture(autouse=True)
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-the-agent")


def reader() -> Agent:
    return Agent(role="reader", goal="Extract what the text says", backstory="You read.", llm="gpt-4o-mini")


@COUNTS
@pytest.mark.parametrize("kind", ["output_pydantic", "output_json"])
async def test_output_of_a_task(tmp_path: Path, kind: str, count: int) -> None:
    def agent(task: Any) -> Any:
        member = reader()
        outputs: dict[str, Any] = {kind: model_of(task)}
        work = Task(description=task["question"], expected_output="What the text says.", agent=member, **outputs)
        result: Any = Crew(agents=[member], tasks=[work]).kickoff()
        return result.pydantic if kind == "output_pydantic" else model_of(task).model_validate(result.json_dict)

    await check_runs(tmp_path, agent, count)


@COUNTS
async def test_response_format_of_an_agent(tmp_path: Path, count: int) -> None:
    def agent(task: Any) -> Any:
        result: Any = reader().kickoff(task["question"], response_format=model_of(task))
        return result.pydantic

    await check_runs(tmp_path, agent, count)


@COUNTS
async def test_response_format_of_a_model(tmp_path: Path, count: int) -> None:
    def agent(task: Any) -> Any:
        result = LLM(model="openai/gpt-4o-mini", response_format=model_of(task)).call(task["question"])
        return model_of(task).model_validate_json(result) if isinstance(result, str) else result

    await check_runs(tmp_path, agent, count)
