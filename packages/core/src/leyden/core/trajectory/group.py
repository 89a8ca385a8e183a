"""Trajectory groups: collects the trajectories of each task."""

from collections.abc import Iterable, Mapping

from leyden.core.data.transition import Trajectory, TrajectoryGroup


def group_by_task(trajectories: Iterable[Trajectory], task_ids: Mapping[str, str]) -> list[TrajectoryGroup]:
    """Return one group per task, in order of the tasks' first appearance; `task_ids` maps rollout id to task id.

    Raises KeyError for a rollout that is not in `task_ids`.
    """
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_task.setdefault(task_ids[trajectory.rollout_id], []).append(trajectory)
    return [TrajectoryGroup(task_id=task_id, trajectories=tuple(members)) for task_id, members in by_task.items()]
