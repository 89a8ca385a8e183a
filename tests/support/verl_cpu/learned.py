"""What a run with VERL on a CPU leaves in its folder, for tests, and what has to hold of it."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from verl_cpu.training import CONFIG, GROUP_SIZE, HELD_OUT, TASKS_PER_STEP

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.verl.advantages import Estimation, RowCredit, row_advantages
from leyden.core.algorithm.verl.rows import RowLimits, training_rows
from leyden.core.credit.registry import CREDIT
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import unpack_ids, unpack_log_probs
from leyden.core.data.rollout import Attempt, AttemptedRollout, Rollout
from leyden.core.data.span import Span
from leyden.core.policy.logprobs import score
from leyden.core.policy.model import PolicyModel
from leyden.core.store.open import open_store
from leyden.core.trainer.context.discarded_versions import LOST
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.serving.serving import SERVED_GAP
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call, newest_version
from leyden.core.trajectory.group import group_by_task
from leyden.core.trajectory.select import Selector

GAP = SERVED_GAP["float32"]
"""Largest difference between served and trained: what every run is held to, no less and no more.

Measured over three runs and 5,000 tokens: a pass in float32 is up to 1.2e-5 from the same in float64, and weights of
another version are 1.2e-2 away at least.
"""
LIMITS = RowLimits(prompt=CONFIG["data"]["max_prompt_length"], response=CONFIG["data"]["max_response_length"])
"""Longer calls are left out of a step, with that reason."""
OLDEST = "training/off_policy/trajectory_staleness_worst/max"
Spans = Sequence[tuple[Rollout, list[Span]]]


def lines(run: Path) -> list[dict[str, Any]]:
    """The numbers of the run's steps so far."""
    file = run / "metrics.jsonl"
    told = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.exists() else []
    return [line for line in told if "reward" in line]


async def _read(run: Path) -> list[tuple[Rollout, list[Attempt], list[Span]]]:
    store = await open_store(f"sqlite:///{run / 'store.db'}")
    try:
        return [
            (
                one,
                (await store.query_attempts(one.rollout_id)).items,
                (await store.query_spans(one.rollout_id)).items,
            )
            for one in await store.query_rollouts()
        ]
    finally:
        await store.close()


def rollouts(run: Path) -> Spans:
    """Every rollout in the run's store that may be learned from, with the spans of its last attempt."""
    return [
        (one, [span for span in spans if span.attempt_id == attempts[-1].attempt_id])
        for one, attempts, spans in asyncio.run(_read(run))
        if attempts and LOST not in one.metadata
    ]


def attempts_before(run: Path) -> dict[str, list[Attempt]]:
    """Of every rollout that was tried more than once: the attempts before the last."""
    return {one.rollout_id: attempts[:-1] for one, attempts, _ in asyncio.run(_read(run)) if len(attempts) > 1}


@dataclass(frozen=True, slots=True)
class Ended:
    """What of a run had ended when it stopped."""

    by: dict[str, str]
    """As `ended_by` returned it."""
    kept: int
    """The last step that was kept, which a later sitting goes on after."""


def ended(run: Path) -> Ended:
    """What of a run has ended."""
    kept = (int(file.stem.rpartition("-")[2]) for file in (run / "loop").glob("progress-*.json"))
    return Ended(ended_by(run), max(kept, default=0))


def assert_not_run_again(before: Ended, run: Path) -> None:
    """Whatever had ended is as it was, but for what weights drew that were served and not kept: that is run again."""
    lost = {
        one.rollout_id: max((newest_version(span) for span in spans if is_recorded_call(span)), default=-1)
        for one, _, spans in asyncio.run(_read(run))
        if LOST in one.metadata
    }
    assert all(lost[name] > before.kept for name in before.by if name in lost)
    assert {name: by for name, by in before.by.items() if name not in lost}.items() <= ended_by(run).items()


def ended_by(run: Path) -> dict[str, str]:
    """Of every rollout that has succeeded: the attempt that ended it."""
    return {
        one.rollout_id: one.attempt.attempt_id
        for one, _ in rollouts(run)
        if isinstance(one, AttemptedRollout) and one.status == "succeeded"
    }


def tried_again(run: Path, step: int) -> list[str]:
    """Why rollouts of a step were tried more than once."""
    before = attempts_before(run)
    told = [one.metadata for name, tried in before.items() if name.startswith(f"train-s{step}-") for one in tried]
    return [metadata["error"]["type"] for metadata in told if "error" in metadata]


def assert_learned(run: Path, steps: int, *, ahead: bool = False) -> None:
    """Each step learned from a whole batch, drawn by the weights it is recorded with; the policy is there.

    `ahead`: batches are begun before the updates that come before them, and the last ones never learned from.
    """
    told, everything = lines(run), rollouts(run)
    found = [(one, spans) for one, spans in everything if one.status == "succeeded"]
    assert [line["step"] for line in told] == list(range(1, steps + 1))
    assert all(line["rollouts"] == TASKS_PER_STEP * GROUP_SIZE for line in told)
    for line in told:
        # A batch whose groups all earned the same has nothing to teach a policy without a critic.
        teaches = "critic/vf_loss" in line or line["groups_with_spread"] > 0
        assert (0 < line["transitions_trained"] <= line["transitions"]) == teaches, line
    assert any(line["transitions_trained"] for line in told)
    assert (max(line[OLDEST] for line in told) > 0) == ahead
    assert all((line[OLDEST] == 0) == ("served_trained_gap" in line) for line in told)
    assert max(line.get("served_trained_gap", 0.0) for line in told) < GAP
    trained = [(one, spans) for one, spans in found if one.mode == "train"]
    assert len(found) - len(trained) == 2 * HELD_OUT
    calls = [_calls(spans) for _, spans in trained]
    assert 1 <= min(map(len, calls)) < max(map(len, calls)) <= 5
    models = _versions(run, steps)
    assert_drawn_as_recorded(models, [call for own in calls for call in own])
    if ahead:
        assert_learned_once_each(run, told, trained)
    else:
        assert found == everything
        assert len(trained) == steps * TASKS_PER_STEP * GROUP_SIZE
        for line in told:
            own = [(one, spans) for one, spans in trained if one.rollout_id.startswith(f"train-s{line['step']}-")]
            assert_learned_once(line, own)
            if "critic/vf_loss" not in line:
                assert_learned_along_its_gradient(models[line["step"] - 1], line, own)
    report = json.loads((run / "report.json").read_text())
    assert report["steps"] == steps
    assert steps * TASKS_PER_STEP * GROUP_SIZE + 2 * HELD_OUT <= report["rollouts"] <= len(everything)
    assert None not in (report["success_before"], report["success_after"])
    last = told_at(run, steps)
    assert len(last) == HELD_OUT
    model = PolicyModel.load(run / "policy")
    for one in last:  # the update after the last step was served, too
        assert score(model, one.ids)[-len(one.logprobs) :] == pytest.approx(one.logprobs, abs=GAP)


def assert_learned_once_each(run: Path, told: Sequence[dict[str, Any]], trained: Spans) -> None:
    """Where batches run ahead: no task was learned from twice, none but those of the last batch were left over."""
    by_task: dict[tuple[int, ...], list[tuple[Rollout, list[Span]]]] = {}
    for one, spans in trained:
        by_task.setdefault(_task(one), []).append((one, spans))
    seen: set[tuple[int, ...]] = set()
    for line in told:
        progress = json.loads((run / f"loop/progress-{line['step']}.json").read_text())
        learned = {(asked["step"], asked["place"], asked["row"]) for asked in progress["learned"]}
        assert len(learned) == TASKS_PER_STEP
        assert not learned & seen
        seen |= learned
        assert_learned_once(line, [rollout for task in learned for rollout in by_task[task]], ahead=True)
    assert len({_task(one) for one, _ in rollouts(run) if one.mode == "train"} - seen) == TASKS_PER_STEP


def _task(rollout: Rollout) -> tuple[int, ...]:
    """Step, place and row of the task that a training rollout is of."""
    found = re.fullmatch(r"train-s(\d+)-(\d+)-r(\d+)(-again\d+)?-\d+", rollout.rollout_id)
    assert found is not None, rollout.rollout_id
    return tuple(int(number) for number in found.groups()[:3])


def assert_learned_once(line: dict[str, Any], trained: Spans, *, ahead: bool = False) -> None:
    """A step learned from its own rollouts' calls, each once, and its version drew them. VERL has counted the same.

    `ahead`: its version, or an earlier one.
    """
    calls = {one.rollout_id: _calls(spans) for one, spans in trained}
    drawn_by = {int(str(span.attributes[semconv.POLICY_VERSION])) for own in calls.values() for span in own}
    assert drawn_by <= set(range(line["step"])) if ahead else drawn_by == {line["step"] - 1}
    assert sum(map(len, calls.values())) == line["transitions"]
    groups: dict[str, list[int]] = {}
    for name, own in calls.items():
        lengths = (len(_told(call).logprobs) for call in own)
        of_group = groups.setdefault(name.rpartition("-")[0], [])
        of_group.extend(length for length in lengths if length <= LIMITS.response)  # a longer answer is left out
    assert len(groups) == TASKS_PER_STEP
    # Of a task that teaches nothing one row goes on to VERL, the shortest.
    none = 0 if "critic/vf_loss" in line else TASKS_PER_STEP - line["groups_with_spread"]
    rows = line["transitions_trained"] + none
    counted = (line["tokens_trained"], round(line["response_length/mean"] * rows))
    possible: list[tuple[int, int]] = []
    for dropped in combinations(groups, none):
        trained_tokens = sum(sum(tokens) for name, tokens in groups.items() if name not in dropped)
        possible.append((trained_tokens, trained_tokens + sum(min(groups[name]) for name in dropped)))
    assert counted in possible


def assert_learned_along_its_gradient(model: PolicyModel, line: dict[str, Any], trained: Spans) -> None:
    """A step that one mini-batch makes, however many ranks part it, has the loss and the gradient of its rollouts."""
    if not line["groups_with_spread"]:
        assert (line["loss"], line["grad_norm"]) == (0.0, 0.0)
        return
    taken = line["transitions_trained"] + TASKS_PER_STEP - line["groups_with_spread"]  # one of each task without spread
    if taken > TASKS_PER_STEP * GROUP_SIZE:
        return  # a second update begins where the first one ended
    estimator = ADVANTAGE.make("grpo")
    attempted = [(one, spans) for one, spans in trained if isinstance(one, AttemptedRollout)]
    trajectories = [assemble(one, one.attempt, spans, Selector()) for one, spans in attempted]
    tasks = {one.rollout_id: str(one.metadata["task"]) for one, _ in trained}
    limits, credit = LIMITS, CREDIT.make("uniform")
    groups = enumerate(group_by_task(trajectories, tasks))
    rows = [row for place, own in groups for row in training_rows(f"{place}", own, credit, estimator, limits).rows]
    lengths = [len(row.response_ids) for row in rows]
    credits = [
        RowCredit(key=row.key, credit=row.credit, weight=row.weight, tokens=tokens)
        for row, tokens in zip(rows, lengths, strict=True)
    ]
    loss, advantages = torch.zeros(()), row_advantages(credits, Estimation(estimator=estimator))
    for row, tokens, advantage in zip(rows, lengths, advantages.tolist(), strict=True):
        ids = torch.tensor([[*row.prompt_ids.tolist(), *row.response_ids.tolist()]])
        logits_TV = model.module(ids).logits[0, -tokens - 1 : -1]
        logprobs_T = logits_TV.log_softmax(-1).gather(1, ids[0, -tokens:, None])
        loss = loss - advantage * (logprobs_T - logprobs_T.detach()).exp().sum() / sum(lengths)
    model.module.zero_grad()
    torch.autograd.backward(loss)
    norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
    assert (line["loss"], line["grad_norm"]) == pytest.approx((loss.item(), norm.item()), rel=1e-5, abs=1e-6)


def _versions(run: Path, steps: int) -> dict[int, PolicyModel]:
    kept = {step: run / f"checkpoints/loop/global_step_{step}/actor/huggingface" for step in range(1, steps + 1)}
    begun_with: str = RunFolder(run).written_config()["policy"]
    return {step: PolicyModel.load(folder) for step, folder in {0: begun_with, **kept}.items()}


def assert_drawn_as_recorded(models: dict[int, PolicyModel], calls: Sequence[Span]) -> None:
    """The weights of the versions that a call is recorded with are as likely to draw it as it was told."""
    for call in calls:
        one = _told(call)
        first, drawn = call.attributes[semconv.POLICY_VERSION], len(one.logprobs)
        flat = cast("list[int]", call.attributes.get(semconv.POLICY_VERSIONS, [first, drawn]))
        drawn_by = [version for version, count in _pairs(flat) for _ in range(count)]
        again = {version: score(models[version], one.ids)[-drawn:] for version in {*drawn_by}}
        assert [again[by][at] for at, by in enumerate(drawn_by)] == pytest.approx(one.logprobs, abs=GAP)


def _pairs(flat: list[int]) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class Told:
    """A call as it was answered: the ids of prompt and answer, and the log-probabilities of the answer's."""

    ids: list[int]
    logprobs: list[float]


def told_at(run: Path, step: int) -> list[Told]:
    """The first call of each held-out rollout after a step."""
    found = [_calls(spans)[0] for one, spans in rollouts(run) if one.mode == "val" and f"-s{step}-" in one.rollout_id]
    return [_told(call) for call in found]


def _calls(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if is_recorded_call(span)]


def _told(call: Span) -> Told:
    prompt, response = (unpack_ids(_bytes(call, key)).tolist() for key in (semconv.PROMPT_IDS, semconv.RESPONSE_IDS))
    return Told(prompt + response, unpack_log_probs(_bytes(call, semconv.RESPONSE_LOGPROBS)).tolist())


def _bytes(span: Span, key: str) -> bytes:
    value = span.attributes[key]
    assert isinstance(value, bytes)
    return value
