"""Output of `leyden why`: the lines for a run or for one rollout. Lines are not shortened; the terminal wraps them."""

from collections import Counter
from collections.abc import Iterable

from leyden.core.data.reasons import NOT_RECORDED_WHY, reason_of
from leyden.core.data.similar_messages import CountedMessage
from leyden.core.trainer.why.summary import ReasonCount, Summary
from leyden.core.trainer.why.trained_or_reason import CallExplanation, RolloutExplanation


def summary_lines(summary: Summary) -> Iterable[str]:
    """Yield the lines for a run."""
    yield f"Run {summary.run} ({summary.state})" + (f": {summary.ended}" if summary.ended else "")
    trained = f"{summary.rollouts_trained:,} trained"
    trained += f" in {_plural(summary.steps, 'step')}" if summary.rollouts_trained else ""
    rest = _rest(summary.rollouts - summary.rollouts_trained, summary.rollouts_left_out)
    yield f"{_plural(summary.rollouts, 'training rollout')}: {trained}, {rest}"
    if summary.held_out:
        measured = "policy" if summary.endpoint is None else "prompts"
        yield f"{_plural(summary.held_out, 'held-out rollout')}: they measure the {measured} and are not trained on"
    if summary.calls and summary.endpoint is not None:
        yield f"{_plural(summary.calls, 'model call')}, to {summary.endpoint}"
    elif summary.calls:
        unmoved = f" ({summary.calls_unmoved:,} of them with advantage 0)" if summary.calls_unmoved else ""
        rest = _rest(summary.calls - summary.calls_trained, summary.calls_left_out)
        yield f"{_plural(summary.calls, 'model call')}: {summary.calls_trained:,} trained{unmoved}, {rest}"
    for title, counted in (
        ("Rollouts that were not trained", summary.rollouts_left_out),
        (
            "Calls that were not trained" if summary.endpoint is None else "Calls without an answer",
            summary.calls_left_out,
        ),
    ):
        if counted:
            yield from ("", title + (", or of which that is not recorded" if _unknown(counted) else ""))
            for one in counted:
                yield from _reason_lines(one)
    if summary.held_out_failures:
        yield from ("", "Held-out rollouts that failed")
        yield from _counted_lines(summary.held_out_failures)
    if summary.remarks:
        yield from ("", "Besides")
        yield from _counted_lines(summary.remarks)
    if summary.agents_output and (summary.rollouts_left_out or summary.held_out_failures):
        yield from ("", summary.agents_output)


def rollout_lines(rollout: RolloutExplanation, show: str) -> Iterable[str]:
    """Yield the lines for one rollout; `show` is the command that shows it as a tree."""
    attempts = "" if rollout.attempts == 1 else f", {_plural(rollout.attempts, 'attempt')}"
    reward = "no reward" if rollout.reward is None else f"reward {rollout.reward:g}"
    yield f"Rollout {rollout.rollout_id} ({rollout.mode or 'no mode'}, {rollout.status}{attempts}, {reward})"
    yield _learned_by(rollout.steps, rollout.reason)
    if rollout.detail:
        yield f"  {rollout.detail}"
    if rollout.reason is not None:
        yield from _meaning(rollout.reason)
    yield from (f"  {remark}" for remark in rollout.all_remarks())
    if rollout.calls:
        yield from ("", _plural(len(rollout.calls), "model call"))
        yield from map(_call_line, rollout.calls)
    yield from ("", f"to see it: {show}")


def _rest(count: int, reasons: Iterable[ReasonCount]) -> str:
    """Return how many of `count` were not trained, and of how many that is not recorded."""
    unknown = _unknown(reasons)
    return f"{count - unknown:,} not" + (f", {unknown:,} not recorded" if unknown else "")


def _unknown(reasons: Iterable[ReasonCount]) -> int:
    return sum(one.count for one in reasons if one.reason == NOT_RECORDED_WHY)


def _reason_lines(one: ReasonCount) -> Iterable[str]:
    yield f"{one.count:>7,}  {one.reason}: {one.means}"
    for detail in one.details:
        where = f" ({detail.example})" if len(one.details) > 1 else ""
        yield f"           {detail.count:,} × {detail.shortened(len(detail.text))}{where}"
    if one.others:
        yield f"           {one.others:,} × with other messages"
    if one.change:
        yield f"         change: {one.change}"
    yield f"         see one: {one.command}"


def _counted_lines(counted: Iterable[CountedMessage]) -> Iterable[str]:
    for one in counted:
        yield f"{one.count:>7,}  {one.shortened(len(one.text))}" + (f" (such as {one.example})" if one.example else "")


def _call_line(call: CallExplanation) -> str:
    agent, node = f"agent {call.agent}" if call.agent else "", f"node {call.node}" if call.node else ""
    who = ", ".join(filter(None, [f"attempt {call.attempt}", agent, node]))
    result = f"answered by {call.answered_by}" if call.answered_by else _learned_by(call.steps, call.reason)
    if call.steps and not call.moves:
        result += ", with advantage 0"
    return f"  {call.span_id}  {who}: {result}" + (f": {call.detail}" if call.detail else "")


def _learned_by(steps: Iterable[object], reason: str | None) -> str:
    counted = Counter(str(step) for step in steps)
    if counted:
        return "trained in " + ", ".join(counted)
    return "not trained" if reason is None else f"not trained: {reason}"


def _meaning(name: str) -> Iterable[str]:
    reason = reason_of(name)
    if reason.means != name:
        yield f"  {reason.name}: {reason.means}"
    if reason.change:
        yield f"  change: {reason.change}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
