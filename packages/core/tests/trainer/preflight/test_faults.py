"""Each fault that would waste a run, made for real, and the check that names it; and a run that has none."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.algorithm.lightning_rl import LightningRL, LightningRLConfig
from leyden.core.cli.main import run
from leyden.core.engine.base import GenerateRequest, TokenChunk
from leyden.core.engine.embedded.engine import EmbeddedEngine
from leyden.core.trainer.preflight.report import CheckReport, CheckResult

CheckRun = Callable[..., CheckReport]


def half(task: Any, result: str) -> float:
    """The same reward for everything."""
    return 0.5


def length(task: Any, result: str) -> float:
    """A reward of what was asked alone."""
    return float(len(task["question"]))


def silent(task: Any) -> str:
    """An agent that asks nobody."""
    return "no"


def only_failure(report: CheckReport) -> CheckResult:
    (failure,) = report.failures
    assert not report.proven
    assert failure.change, "a failure says what to change"
    return failure


def test_nothing_is_found_where_nothing_is_wrong(check_run: CheckRun) -> None:
    report = check_run()
    assert [result.name for result in report.results if result.status != "ok"] == []
    assert report.proven
    assert report.rollouts == 16, "one batch says enough"


class Mute(EmbeddedEngine):
    """Says that it answered, and not with what."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in super().generate(request):
            if chunk.finish_reason is not None:
                yield msgspec.structs.replace(chunk, ids=[], logprobs=[], sampling_logprobs=[], top=None)


class Careless(EmbeddedEngine):
    """Tells ids without the probabilities that they were drawn with."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in super().generate(request):
            yield msgspec.structs.replace(chunk, logprobs=[], sampling_logprobs=[])


@pytest.mark.parametrize("engine", [Mute, Careless])
def test_missing_ids_or_log_probabilities(check_run: Any, engine: type[EmbeddedEngine]) -> None:
    check_run.served_by(engine)
    report = check_run()
    assert only_failure(report).name == "tokens"
    assert "16 of 16 calls" in only_failure(report).seen
    assert report.rollouts == 16, "a certain failure is not looked at twice"


def test_no_reward(check_run: CheckRun) -> None:
    failure = only_failure(check_run(reward=None))
    assert (failure.name, failure.seen) == ("rewards", "none of 16 rollouts has a reward")


def test_a_constant_reward_is_a_failure_once_it_is_no_chance(check_run: CheckRun) -> None:
    report = check_run(reward=half)
    assert only_failure(report).name == "spread"
    assert "all 96 rollouts of 24 tasks earned 0.5" in only_failure(report).seen
    assert report.result("gradient").status == "unchecked"


def test_a_constant_reward_is_a_warning_where_new_prompts_may_change_it(check_run: CheckRun) -> None:
    reflection = {"config": {"reflection": {"function": "a.py:f"}}}
    report = check_run(reward=half, algorithm="alternate", algorithm_config={"prompts": reflection})
    assert report.failures == []
    assert report.result("spread").status == "warning"
    assert report.result("spread").change.startswith("updates learn nothing until new prompts change this")


def test_a_frozen_policy_that_writes_prompts_needs_no_route(check_run: Any) -> None:
    teacher = {"config": {"reflection": {"model": "teacher"}}}
    report = check_run(
        algorithm="alternate", algorithm_config={"prompts": teacher}, frozen={"teacher": str(check_run.policy)}
    )
    assert report.result("options").status == "ok"


def test_a_reward_of_the_task_alone_never_varies_within_one(check_run: CheckRun) -> None:
    failure = only_failure(check_run(reward=length, tasks_per_step=12, group_size=8))
    assert failure.name == "spread"
    assert "rewards differ between tasks, but never within one" in failure.seen


def test_a_constant_reward_of_a_few_rollouts_is_a_warning(check_run: CheckRun) -> None:
    report = check_run(reward=half, tasks_per_step=1, group_size=2)
    assert report.failures == []
    assert report.result("spread").status == "warning"
    assert "49 %" in report.result("spread").seen, "0.95^14"
    assert report.result("gradient").status == "unchecked"
    assert not report.proven, "what was not seen was not proven"


class Greedy(EmbeddedEngine):
    """Takes the likeliest token, and records its probability as if it had been drawn."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        sampling = msgspec.structs.replace(request.sampling, temperature=0.0)
        async for chunk in super().generate(msgspec.structs.replace(request, sampling=sampling)):
            yield chunk


def test_greedy_sampling(check_run: Any) -> None:
    check_run.served_by(Greedy)
    report = check_run()
    assert {failure.name for failure in report.failures} == {"sampling", "spread"}
    assert "the same answer each time" in report.result("sampling").seen


def test_a_wrong_agent_match_is_told_who_was_there(check_run: Any) -> None:
    failure = only_failure(check_run(check_run.two_roles, agent_match="editor"))
    assert failure.name == "selection"
    assert "agent 'writer', node 'draft' (16 calls)" in failure.seen
    assert "agent 'judge' (16 calls)" in failure.seen


def test_a_right_agent_match_is_told_what_it_leaves_out(check_run: Any) -> None:
    report = check_run(check_run.two_roles, agent_match="^writer$")
    assert report.proven
    assert "leaves out 16 of 32 calls" in report.result("selection").seen


def test_prompts_over_the_limit(check_run: CheckRun) -> None:
    report = check_run(tasks=[{"question": "two " * 400}])
    assert {failure.name for failure in report.failures} == {"rollouts", "prompts"}
    assert "over the limit of 256 tokens" in report.result("prompts").seen


class Frozen(EmbeddedEngine):
    """Ignores new weights."""

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        self._check_ready()


class StaleHead(EmbeddedEngine):
    """Takes new weights, all but one."""

    kept: object = None

    async def update_weights(self, weights: Mapping[str, object], version: int) -> None:
        name = "model.layers.1.mlp.down_proj.weight"
        if self.kept is None:
            self.kept = self._served.state_dict()[name].clone()
        await super().update_weights({**weights, name: self.kept}, version)


@pytest.mark.parametrize(("engine", "learning_rate"), [(Frozen, 1e-6), (StaleHead, 1e-6), (Frozen, 1e-3)])
def test_an_engine_that_serves_old_weights(check_run: Any, engine: type[EmbeddedEngine], learning_rate: float) -> None:
    check_run.served_by(engine)
    failure = only_failure(check_run(algorithm_config={"learning_rate": learning_rate}))
    assert failure.name == "served weights"
    assert "old weights are served after an update" in failure.seen


class DeafConfig(LightningRLConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    volume: float = 1.0


class Deaf(LightningRL):
    """Has an option that nothing reads."""

    name = "deaf"
    Config = DeafConfig


def test_an_option_that_nothing_reads(check_run: CheckRun) -> None:
    config = {"volume": 2.0, "learning_rate": 1e-3}
    failure = only_failure(check_run(algorithm=f"{__file__}:Deaf", algorithm_config=config))
    assert failure.name == "options"
    assert "volume was given" in failure.seen
    assert "learning_rate" not in failure.seen


def test_a_frozen_policy_that_no_route_names(check_run: CheckRun, policy: Path) -> None:
    report = check_run(frozen={"critic": str(policy)})
    assert only_failure(report).name == "options"
    assert report.rollouts == 0, "it is told before anything is loaded"


def test_a_policy_too_large_for_memory_is_not_loaded(check_run: CheckRun, policy: Path, tmp_path: Path) -> None:
    config = json.loads((policy / "config.json").read_text())
    large = {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 400, "head_dim": 512}
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps({**config, **large, "layer_types": None}))
    report = check_run(policy=str(tmp_path / "large"))
    assert only_failure(report).name == "memory"
    assert "is too large" in only_failure(report).seen
    assert report.result("rollouts").status == "unchecked"


def test_an_agent_that_never_asks_a_model(check_run: CheckRun) -> None:
    failure = only_failure(check_run(silent))
    assert failure.name == "calls"
    assert "Leyden saw no model call in 16 rollouts" in failure.seen


def test_an_agent_that_always_fails_is_told_why(check_run: CheckRun) -> None:
    def broken(task: Any) -> str:
        raise KeyError("answer")

    failure = only_failure(check_run(broken))
    assert failure.name == "rollouts"
    assert "KeyError" in failure.seen


def test_a_learning_rate_of_nothing(check_run: CheckRun) -> None:
    failure = only_failure(check_run(algorithm_config={"learning_rate": 0.0}))
    assert failure.name == "gradient"
    assert "the learning rate is 0" in failure.seen


class Foreign(EmbeddedEngine):
    """Records other probabilities than the model's own."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in super().generate(request):
            shifted = [value - 0.01 for value in chunk.sampling_logprobs]
            yield msgspec.structs.replace(chunk, sampling_logprobs=shifted)


def test_log_probabilities_of_another_model(check_run: Any) -> None:
    check_run.served_by(Foreign)
    assert only_failure(check_run()).name == "log-probabilities"


AGENT = """
import httpx

async def ask(task):
    async with httpx.AsyncClient() as client:
        answer = await client.post(
            "https://api.openai.com/v1/chat/completions",
            json={"model": "gpt", "messages": [{"role": "user", "content": task["question"]}], "max_tokens": 6},
        )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]["content"]

def even(task, result):
    return float(sum(result.encode()) % 2)

def half(task, result):
    return 0.5
"""
BY_COMMAND: dict[str, tuple[str, list[str], type[EmbeddedEngine] | None]] = {
    "ids missing": ("tokens", [], Mute),
    "no reward": ("rewards", ["--reward", ""], None),
    "constant reward": ("spread", ["--reward", "{agent}:half"], None),
    "greedy sampling": ("sampling", [], Greedy),
    "wrong agent_match": ("selection", ["--agent-match", "editor"], None),
    "prompt over limit": ("prompts", ["--tasks", "{long}"], None),
    "engine serving old weights": ("served weights", [], Frozen),
    "an ignored option": ("options", ["--algorithm", f"{__file__}:Deaf", "--set", "volume=2.0"], None),
    "a policy too large for memory": ("memory", ["--policy", "{large}"], None),
}
"""The check that names each fault; what is given on the command line; what serves the policy."""


@pytest.fixture
def places(policy: Path, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "agent.py").write_text(AGENT)
    for name, times in (("short", 1), ("long", 400)):
        rows = [{"question": f"one and {word}? " * times} for word in ("two", "one", "calculator", "naive")]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = json.loads((policy / "config.json").read_text())
    large = {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 400, "layer_types": None}
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text(json.dumps({**config, **large, "head_dim": 512}))
    files = {"agent": "agent.py", "short": "short.jsonl", "long": "long.jsonl", "large": "large"}
    return {name: str(tmp_path / file) for name, file in files.items()}


@pytest.mark.parametrize("fault", BY_COMMAND)
def test_leyden_check_names_the_fault(
    fault: str, policy: Path, places: dict[str, str], check_run: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    name, given, engine = BY_COMMAND[fault]
    if engine is not None:
        check_run.served_by(engine)
    options = {"--tasks": "{short}", "--reward": "{agent}:even", "--policy": str(policy), "--group-size": "4"}
    options |= dict(zip(given[::2], given[1::2], strict=True))
    arguments = [part.format(**places) for pair in options.items() if pair[1] for part in pair]

    code = run(["check", f"{places['agent']}:ask", *arguments, "--tasks-per-step", "4", "--name", "checked", "--json"])

    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    failed = {line["name"]: line["change"] for line in lines if line.get("status") == "failure"}
    assert (code, lines[-1]["proven"]) == (1, False)
    assert failed[name], "a failure says what to change"
