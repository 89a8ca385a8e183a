"""What must hold of a training run however often it was killed. Looks only at what lies on the disk afterwards."""

import json
import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kills.journal import read
from leyden.core.algorithm.lightning_rl import LightningRL
from leyden.core.data import semconv
from leyden.core.data.rollout import AttemptedRollout
from leyden.core.data.span import Span
from leyden.core.data.transition import Trajectory
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.calls import is_recorded_call
from leyden.core.trajectory.group import group_by_task
from leyden.core.trajectory.select import Selector

LARGEST_DEVIATION = 1e-3
"""Of a first importance ratio from 1, by rounding: more means that another version drew what a step learned from."""
LOST_WORKERS = 2
"""So many attempts may lose their worker before a rollout is given up; see `RunConfig.max_attempts`."""

Said = tuple[str | None, list[tuple[str, str]]]
"""Content and tool calls of an answer."""


@dataclass
class Kept:
    """Everything that a run has kept."""

    rollouts: list[AttemptedRollout] = field(default_factory=list[AttemptedRollout])
    errors: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Of each rollout, why its attempts failed that did."""
    answers: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    """Recorded calls by the id of their answer."""
    trajectories: dict[str, Trajectory] = field(default_factory=dict[str, Trajectory])


async def read_kept(run: RunFolder) -> Kept:
    """Read the store of a run that is over."""
    kept, answers = Kept(), defaultdict[str, list[Span]](list)
    store = await run.store_location.open(clock=lambda: 0.0)
    try:
        for rollout in await store.query_rollouts():
            assert isinstance(rollout, AttemptedRollout), f"{rollout.rollout_id} was never run"
            spans = (await store.query_spans(rollout.rollout_id)).items
            attempts = (await store.query_attempts(rollout.rollout_id)).items
            errors = [attempt.metadata["error"] for attempt in attempts if "error" in attempt.metadata]
            kept.rollouts.append(rollout)
            kept.errors[rollout.rollout_id] = [f"{error['kind']} {error['type']}" for error in errors]
            kept.trajectories[rollout.rollout_id] = assemble(rollout, rollout.attempt, spans, Selector())
            for span in filter(is_recorded_call, spans):
                answers[str(span.attributes[semconv.RESPONSE_ID])].append(span)
    finally:
        await store.close()
    kept.answers = dict(answers)
    return kept


def answers_lost(journal: Path, kept: Kept) -> list[str]:
    """Answers that an agent received in full and that are not in the store once, as they were, under its attempt."""
    wrong: list[str] = []
    for event in read(journal):
        if event["event"] != "answer":
            continue
        name, spans = event["body"]["id"], kept.answers.get(event["body"]["id"], [])
        said = _said(event["body"]["choices"][0]["message"])
        recorded = [(span.attempt_id, _recorded(span), semconv.NOT_TRAINED in span.attributes) for span in spans]
        if recorded != [(event["attempt"], said, False)]:
            wrong.append(f"answer {name} of {event['attempt']}, received as {said}, is recorded as {recorded}")
    return wrong


def scores_wrong(journal: Path, kept: Kept) -> list[str]:
    """Rollouts whose reward is not the one that was given for their answers, or that were scored when finished."""
    given = {tuple(event["answers"]): event["reward"] for event in read(journal) if event["event"] == "scored"}
    scored = Counter(
        {kept.answers[answer][0].attempt_id for answer in answers if answer in kept.answers}.pop() for answers in given
    )
    wrong = [f"attempt {attempt} was scored {times} times" for attempt, times in scored.items() if times > 1]
    for rollout in kept.rollouts:
        trajectory = kept.trajectories[rollout.rollout_id]
        answers = tuple(transition.call_id for transition in trajectory.transitions)
        if rollout.status == "succeeded" and given.get(answers) != trajectory.reward:
            wrong.append(f"{rollout.rollout_id} earned {trajectory.reward}, but was given {given.get(answers)}")
    return wrong


def failures_unexplained(kept: Kept) -> list[str]:
    """Rollouts that failed for another reason than having lost as many workers as they may."""
    wrong: list[str] = []
    for rollout in kept.rollouts:
        errors = kept.errors[rollout.rollout_id]
        lost = errors.count("worker WorkerDied")
        if rollout.status != "succeeded" and lost < LOST_WORKERS:
            wrong.append(f"{rollout.rollout_id} is {rollout.status}; its attempts ended by {errors}")
    return wrong


def steps_wrong(run: RunFolder, kept: Kept, steps: int) -> list[str]:
    """Steps that were not taken once, each on one whole batch of its own, drawn by the version it began with."""
    lines = run.metrics()
    wrong = [] if [line["step"] for line in lines] == [*range(1, steps + 1)] else [f"steps: {[*_steps(lines)]}"]
    batches: dict[int, list[int]] = defaultdict(list)
    for version, batch in sorted({_place(rollout) for rollout in kept.rollouts}):
        batches[version].append(batch)
    every = [batch for version in sorted(batches) for batch in batches[version]]
    if every != [*range(len(every))]:
        wrong.append(f"batches by version: {dict(batches)}")
    trained: Counter[str] = Counter()
    for line in lines:
        version = line["step"] - 1
        calls = _calls_of_batch(kept, version, batches[version][-1])
        trained.update(calls)
        if len(calls) != line["transitions_trained"]:
            wrong.append(f"step {line['step']} learned from {line['transitions_trained']} calls, not {len(calls)}")
        if not line["importance_ratio_deviation"] < LARGEST_DEVIATION:
            wrong.append(f"step {line['step']} learned from calls of another version: {line}")
    return wrong + [f"call {call} was trained {times} times" for call, times in trained.items() if times > 1]


def report_wrong(run: RunFolder, kept: Kept, steps: int) -> list[str]:
    """Sums of the report that are not those of store and metrics."""
    report, lines = json.loads(run.report_file.read_text()), run.metrics()
    expected = {
        "steps": steps,
        "rollouts": len(kept.rollouts),
        "failed_rollouts": sum(rollout.status != "succeeded" for rollout in kept.rollouts),
        "transitions": sum(line["transitions_trained"] for line in lines),
        "tokens_trained": sum(line["tokens_trained"] for line in lines),
    }
    return [f"the report counts {report[k]} {k}, not {v}" for k, v in expected.items() if report[k] != v]


def store_broken(file: Path) -> list[str]:
    """What SQLite itself finds wrong with a store."""
    connection = sqlite3.connect(file)
    try:
        said = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    return [] if said == ["ok"] else [f"{file.name}: {line}" for line in said]


def largest_deviation(run: RunFolder) -> float:
    """The largest deviation of a first importance ratio from 1 in any step."""
    return max((line["importance_ratio_deviation"] for line in run.metrics()), default=math.nan)


def _steps(lines: Iterable[Mapping[str, Any]]) -> Iterable[int]:
    return (line["step"] for line in lines)


def _place(rollout: AttemptedRollout) -> tuple[int, int]:
    """Version and batch, which a training rollout is called after."""
    _, version, batch, _, _ = rollout.rollout_id.rpartition(".")[2].split("-")
    return int(version[1:]), int(batch[1:])


def _calls_of_batch(kept: Kept, version: int, batch: int) -> list[str]:
    """The calls of a batch that there is something to learn from, as the algorithm weighs them."""
    mine = [rollout for rollout in kept.rollouts if _place(rollout) == (version, batch)]
    tasks = {rollout.rollout_id: str(rollout.metadata["task"]) for rollout in mine}
    trajectories: Sequence[Trajectory] = [kept.trajectories[rollout.rollout_id] for rollout in mine]
    weighed = LightningRL().weigh(group_by_task(trajectories, tasks))
    return [one.transition.call_id for one in weighed.transitions]


def _said(message: Mapping[str, Any]) -> Said:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content"), [(call["name"], call["arguments"]) for call in calls]


def _recorded(span: Span) -> Said | None:
    output = span.attributes.get(semconv.OUTPUT_MESSAGES)
    return None if output is None else _said(json.loads(str(output))[0])
