"""`leyden prompts try` with an agent of LangGraph and the policy that knows only the agent's own prompts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from leyden.core.cli.main import run
from leyden.core.store.open import open_store
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.models import Models
from leyden.core.trainer.run_folder.versions import VersionFile
from leyden.core.trajectory.calls import is_recorded_call, newest_version

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/calculator_langgraph"
COUNT = 8

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


POLICY = ("--policy", str(EXAMPLE / "policy"))


def trial_of(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> tuple[dict[str, Any], str]:
    given = ["--tasks", str(EXAMPLE / "val.jsonl"), "-n", str(COUNT)]
    given += ["--reward", f"{EXAMPLE}/reward.py:score", "--json"]
    assert run(["prompts", "try", f"{EXAMPLE}/agent.py:agent", *given, *more]) == code
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_another_text_of_the_tool_confuses_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    trial, err = trial_of(capsys, *POLICY, "--b", f"{EXAMPLE}/tool_text.yaml")
    assert not err
    assert trial["reward"]["tasks"] == COUNT
    assert trial["reward"]["difference"] < 0 and trial["reward"]["wins"] == 0
    assert trial["cost_unknown"] == "a policy answers"
    for variant in (trial["a"], trial["b"]):
        assert (variant["rollouts"], variant["failed"], variant["cost"]) == (COUNT, 0, None)
        assert COUNT <= variant["calls"] < variant["output_tokens"] < variant["input_tokens"]
    replaced = trial["b"]["replaced"]["calculator_agent.model.tool.calculator"]
    assert replaced == trial["b"]["edited_calls"] == trial["b"]["calls"]
    assert trial["a"]["edited_calls"] == 0
    answers = [(pair["output_a"], pair["task"]["answer"]) for pair in trial["pairs"] if pair["a"] == 1.0]
    assert answers and all(output == f"Answer: {number}" for output, number in answers)


def test_a_text_that_the_agent_does_not_send_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stale.yaml"
    text = (EXAMPLE / "tool_text.yaml").read_text()
    file.write_text(text.replace("text: Evaluate an", "text: Compute an", 1))
    trial, err = trial_of(capsys, *POLICY, "--a", str(file), code=1)
    assert trial["reward"]["ties"] == COUNT, "both variants are the agent with its own prompts"
    assert "A: the component 'calculator_agent.model.tool.calculator' was never replaced" in err


def test_the_first_version_of_a_run_and_a_trained_one_answer_a_variant_each(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The versions of the run, of which the last one is kept, answer as their own evaluations say."""
    uri = f"sqlite:///{tmp_path}/trial.db"
    named = ("--policy-a", "small:0", "--policy-b", "small", "--runs", str(small_run.parent), "--store", uri)
    versions = VersionFile(small_run).read()
    (held_out,) = versions[0].held_out
    trial, err = trial_of(capsys, *named, "--tasks", str(RunFolder(small_run).tasks_file(held_out)))
    assert not err
    for variant, number in (("a", 0), ("b", Models.open(small_run.parent, "small").kept)):
        rewards = versions[number].held_out[held_out].rewards
        assert [pair[variant] for pair in trial["pairs"]] == [rewards[str(pair["row"])] for pair in trial["pairs"]], (
            f"version {number}"
        )
        assert asyncio.run(recorded_versions(uri, variant)) == {number}


async def recorded_versions(uri: str, variant: str) -> set[int]:
    """The versions with which the calls of a variant's rollouts are recorded."""
    store = await open_store(uri)
    found = [one.rollout_id for one in await store.query_rollouts() if one.metadata["variant"] == variant]
    spans = [span for rollout_id in found for span in await store.query_spans(rollout_id)]
    await store.close()
    return {newest_version(span) for span in spans if is_recorded_call(span)}
