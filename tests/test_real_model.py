"""SmolLM2-135M, fetched from the package index, served, and trained for two steps."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from leyden.core.data.sampling import Sampling
from leyden.core.engine.base import GenerateRequest
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.engine.embedded.weights import load_model
from leyden.core.gateway.codecs.huggingface import HuggingFaceCodec

EXAMPLE = Path("examples/sums_lcel")
STEPS = 2
CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {}}}},
}
REWARD = """
def score(task, result):
    return 1 / (1 + len(str(result)))
"""
"""Short answers earn more, so that every group has something to teach."""

Leyden = Callable[..., "subprocess.CompletedProcess[str]"]
FILES: Any = safetensors.torch

pytestmark = [pytest.mark.timeout(1200)]


async def test_it_is_the_model_that_it_is_said_to_be(real_policy: Path) -> None:
    codec = HuggingFaceCodec(real_policy)
    engine = EmbeddedEngine(load_model(real_policy), name="smollm2")
    await engine.start()
    try:
        prompt = codec.encode([{"role": "user", "content": "What is the capital of France?"}])
        sampling = Sampling(temperature=0, max_tokens=30)
        request = GenerateRequest(request_id="a", prompt_ids=prompt, sampling=sampling, stop_ids=codec.stop_ids)
        drawn = [token async for chunk in engine.generate(request) for token in chunk.ids]
    finally:
        await engine.close()
    assert "Paris" in codec.decode(drawn)
    assert drawn[-1] in codec.stop_ids


def test_prompts_of_an_attempt_extend_one_another_in_its_own_tokens(real_policy: Path) -> None:
    codec = HuggingFaceCodec(real_policy)
    answer = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12345 + 9 * (3 - 1)"}}\n</tool_call>'
    call = codec.parse(answer, [CALCULATOR]).tool_calls[0]
    sent_back = {"id": "c", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is 12345 plus 18, naïvely? 🙂"}]
    first = codec.encode(messages, [CALCULATOR])
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [sent_back]},
        {"role": "tool", "tool_call_id": "c", "content": "12363"},
    ]
    second = codec.encode(messages, [CALCULATOR])
    assert second[: len(first)] == first
    assert codec.decode(second[len(first) :]).startswith(answer)
    assert codec.decode(second[len(first) :]).endswith(
        "</tool_response>\nassistant\n"
    )  # the result and a new turn follow
    assert codec.stop_ids[0] in second[len(first) :]


def test_two_steps_change_what_is_served_and_leave_a_policy(real_policy: Path, leyden: Leyden, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    arguments = ["train", f"{EXAMPLE}/agent.py:agent", "--tasks", f"{EXAMPLE}/train.jsonl"]
    arguments += ["--reward", f"{tmp_path}/reward.py:score", "--policy", str(real_policy), "--learning-rate", "1e-5"]
    arguments += ["--steps", str(STEPS), "--tasks-per-step", "2", "--group-size", "4"]
    done = leyden(*arguments, "--runs", str(tmp_path), "--name", "real", "--quiet", timeout=1100)
    assert done.returncode == 0, done.stderr

    run = tmp_path / "real"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["served_trained_gap"] < 1e-4 for line in lines)
    assert all(line["importance_ratio_deviation"] < 1e-3 for line in lines)
    before, after = (FILES.load_file(folder / "model.safetensors") for folder in (real_policy, run / "policy"))
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before)
    assert (run / "policy/LICENSE").read_bytes() == (real_policy / "LICENSE").read_bytes()
    assert (run / "reward_curve.png").stat().st_size > 10_000
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step-00000001", "step-00000002"]
