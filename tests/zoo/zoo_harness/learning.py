"""One real training step on the recorded rollouts: assemble, credit, advantages, and an update of a tiny policy."""

import threading
from dataclasses import replace

from leyden.core.advantage.registry import ADVANTAGE
from leyden.core.algorithm.advantage_pipeline import weigh
from leyden.core.credit.registry import CREDIT
from leyden.core.data.transition import Trajectory, TrajectoryGroup
from leyden.core.testing.byte_codec import VOCABULARY
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.group import group_by_task
from leyden.core.trajectory.select import Selector
from zoo_harness.trial import SeenRollout, Trial

CONTEXT = 1 << 16
_ONE_AT_A_TIME = threading.Lock()


def learning_problems(trial: Trial) -> list[str]:
    """What is wrong with what can be learned from the training step's rollouts."""
    if trial.started is not None:
        return []
    trajectories = [_trajectory(seen) for seen in trial.train]
    problems: list[str] = []
    for seen, trajectory in zip(trial.train, trajectories, strict=True):
        problems += [f"{seen.rollout_id}: {line}" for line in _trajectory_problems(trial, seen, trajectory)]
    if trial.agent.spec.raises is not None or any(trajectory.reward is None for trajectory in trajectories):
        return problems
    if not any(trajectory.transitions for trajectory in trajectories):
        return problems  # an agent whose calls all fail teaches nothing
    if any(trajectory.excluded != trial.agent.spec.not_trained for trajectory in trajectories):
        return problems  # what is left of a group may teach nothing
    tasks = {seen.rollout_id: str(seen.task) for seen in trial.train}
    return problems + _update_problems(group_by_task(trajectories, tasks))


def _trajectory(seen: SeenRollout) -> Trajectory:
    assert seen.recorded is not None and seen.recorded.attempts, "it was run"
    return assemble(seen.recorded.rollout, seen.recorded.attempts[-1][0], seen.spans, Selector())


def _trajectory_problems(trial: Trial, seen: SeenRollout, trajectory: Trajectory) -> list[str]:
    spec, problems = trial.agent.spec, list[str]()
    may_be = bool(spec.may_not_be_trained) and trajectory.excluded == spec.may_not_be_trained
    not_trained = spec.may_not_be_trained if may_be else spec.not_trained
    trained = spec.calls_of(seen.task) - sum(not_trained.values())
    if len(trajectory.transitions) != trained:
        problems.append(f"{len(trajectory.transitions)} transitions of {spec.calls_of(seen.task)} calls")
    if trajectory.excluded != not_trained:
        problems.append(f"calls that are not trained: {trajectory.excluded}, and the file says {not_trained}")
    if spec.raises is None and trajectory.reward is None:
        problems.append("it has no reward")
    drawn = {record.request_id: (record.prompt_ids, record.response_ids) for record in seen.engine_log}
    for call in trajectory.transitions:
        if drawn.get(call.call_id) != (list(call.prompt_ids), list(call.response_ids)):
            problems.append(f"transition {call.call_id} holds other ids than the engine's")
    return problems


def _update_problems(groups: list[TrajectoryGroup]) -> list[str]:
    with _ONE_AT_A_TIME:
        return _update(groups)


def _update(groups: list[TrajectoryGroup]) -> list[str]:
    from leyden.core.policy.update.config import UpdateConfig
    from leyden.core.policy.update.updater import Updater
    from leyden.core.testing.policies import TinyShape, tiny_policy

    weighed = weigh(groups, CREDIT.make("uniform"), ADVANTAGE.make("grpo"))
    calls = sum(len(one.transitions) for group in groups for one in group.trajectories)
    if len(weighed.transitions) != calls:
        return [f"{len(weighed.transitions)} of {calls} transitions are weighed: {dict(weighed.dropped)}"]
    shape = TinyShape(vocab=VOCABULARY + 1, hidden=16, intermediate=16, layers=1, heads=2, context=CONTEXT)
    updater = Updater(tiny_policy(0, shape), UpdateConfig(learning_rate=1e-3, loss="reinforce"))
    before = {name: tensor.clone() for name, tensor in updater.model.weights().items()}
    # the scripted engine samples without grammars and penalties, and its policy has no tokenizer
    trained = [replace(one, transition=replace(one.transition, sampling=None)) for one in weighed.transitions]
    report = updater.step(trained)
    moved = any(not bool((before[name] == tensor).all()) for name, tensor in updater.model.weights().items())
    if report.transitions != calls or report.skipped:
        return [f"{report.transitions} of {calls} transitions are trained, skipped {report.skipped}"]
    return [] if moved and report.grad_norm > 0 else [f"no weight changed (gradient {report.grad_norm})"]
