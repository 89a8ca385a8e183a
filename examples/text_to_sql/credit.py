"""What the calls of a rollout were worth, for `leave_one_out` credit."""

from leyden.core.data.transition import Trajectory


def queries(trajectory: Trajectory) -> float:
    """One for each call that wrote a query, and one more if the query ran."""
    ran = sum(any(outcome.succeeded for outcome in call.outcomes) for call in trajectory.transitions)
    return float(len(trajectory.transitions) + ran)
