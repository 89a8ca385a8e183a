"""What became of one rollout and of its calls, from each state that a store and a run's folder can be in."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.core.data import reasons, semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.failure import Failure
from leyden.core.data.rollout import Attempt, AttemptedRollout, Rollout
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Span, SpanStatus
from leyden.core.testing import factories
from leyden.core.trainer.context.discarded_versions import LOST
from leyden.core.trainer.rollouts.interrupted import ABANDONED
from leyden.core.trainer.why.learning import LearnedStep, Learning
from leyden.core.trainer.why.trained_or_reason import RolloutExplanation, RunFacts, explain

RECORDED = Learning(is_recorded=True)


def call(span_id: str = "s1", *, attempt_id: str = "a1", sampling: Sampling | None = None, **attributes: Any) -> Span:
    """The gateway's record of a call that can be learned from, unless it says otherwise."""
    recorded: dict[str, Any] = {
        semconv.CALL_ID: span_id,
        semconv.PROMPT_IDS: pack_ids([1, 2]),
        semconv.RESPONSE_IDS: pack_ids([3]),
        semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.5]),
        semconv.SAMPLING_USED: msgspec.json.encode(sampling or Sampling()).decode(),
        semconv.POLICY_VERSION: 0,
        semconv.AGENT_NAME: "writer",
    }
    status = (
        SpanStatus(code="error", description="too long") if attributes.get("not_trained") == "refused" else SpanStatus()
    )
    if (why := attributes.pop("not_trained", None)) is not None:
        recorded[semconv.NOT_TRAINED] = why
    return factories.span("chat", recorded | attributes, span_id=span_id, attempt_id=attempt_id, status=status)


def reward(value: float = 1.0, attempt_id: str = "a1") -> Span:
    return factories.span(semconv.REWARD, {semconv.REWARD_VALUE: value}, span_id="reward", attempt_id=attempt_id)


def attempt(status: Any = "succeeded", number: int = 1, failure: Failure | None = None, **metadata: Any) -> Attempt:
    noted = metadata if failure is None else {**metadata, "error": failure.metadata()}
    return Attempt(
        rollout_id="ro", attempt_id=f"a{number}", sequence_id=number, start_time=0.0, status=status, metadata=noted
    )


def explanation(
    *spans: Span,
    status: Any = "succeeded",
    attempts: tuple[Attempt, ...] = (),
    mode: Any = "train",
    learning: Learning | None = RECORDED,
    metadata: dict[str, Any] | None = None,
    **facts: Any,
) -> RolloutExplanation:
    fields: dict[str, Any] = {
        "rollout_id": "ro",
        "input": "?",
        "start_time": 0.0,
        "mode": mode,
        "status": status,
        "metadata": metadata or {},
    }
    rollout = AttemptedRollout(**fields, attempt=attempts[-1]) if attempts else Rollout(**fields)
    return explain(rollout, attempts, spans, RunFacts(learning=learning, **facts))


def failed(kind: Any, status: Any = "failed") -> tuple[Attempt, ...]:
    return (attempt(status, failure=Failure(kind=kind, type="ValueError", message="bad day")),)


DONE = (attempt(),)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (explanation(status="queuing"), reasons.NEVER_BEGUN),
        (explanation(status="requeuing", attempts=failed("worker", "unresponsive"), runs_now=True), reasons.REQUEUED),
        (explanation(status="requeuing", attempts=failed("worker", "unresponsive")), reasons.INTERRUPTED),
        (explanation(status="running", attempts=(attempt("running"),), runs_now=True), reasons.UNFINISHED),
        (explanation(status="running", attempts=(attempt("running"),)), reasons.INTERRUPTED),
        (explanation(status="failed", attempts=failed("worker"), metadata={ABANDONED: True}), reasons.INTERRUPTED),
        (explanation(status="cancelled", attempts=(attempt("running"),)), "cancelled"),
        (explanation(status="cancelled"), "cancelled"),
        *((explanation(status="failed", attempts=failed(kind)), name) for kind, name in reasons.FAILED.items()),
        (explanation(status="failed", attempts=(attempt("failed"),)), "failed without a reason"),
        (explanation(status="failed", attempts=(attempt("unresponsive"),)), "worker lost"),
        (explanation(call(), attempts=DONE), reasons.NO_REWARD),
        (explanation(reward(), attempts=DONE), reasons.NO_CALL),
        (explanation(reward(), call(sampling=Sampling(temperature=0.0)), attempts=DONE), reasons.NO_CALL_LEFT),
        (explanation(reward(), call(), attempts=DONE), reasons.NO_STEP),
        (explanation(reward(), call(), attempts=DONE, learning=Learning()), reasons.NOT_RECORDED_WHY),
        (explanation(reward(), call(), attempts=DONE, metadata={LOST: True}), reasons.LOST_WEIGHTS),
        (explanation(reward(), call(), attempts=DONE, mode="val"), reasons.HELD_OUT),
        (explanation(reward(), call(), attempts=DONE, objection=reasons.HELD_OUT_THERE), reasons.HELD_OUT_THERE),
        (
            explanation(
                reward(), call(), attempts=DONE, learning=Learning(is_recorded=True, reasons={"ro": ["no spread"]})
            ),
            reasons.NO_SPREAD,
        ),
        (
            explanation(
                reward(), call(), attempts=DONE, learning=Learning(is_recorded=True, rolled_back={"ro": LearnedStep(7)})
            ),
            reasons.ROLLED_BACK,
        ),
    ],
)
def test_a_rollout_that_was_not_trained_has_a_reason(given: RolloutExplanation, reason: str) -> None:
    assert (given.steps, given.reason) == ([], reason)
    assert reason in reasons.REASONS
    assert all(one.reason is not None and not one.steps for one in given.calls)


def test_a_failure_is_told_in_its_own_words() -> None:
    assert explanation(status="failed", attempts=failed("agent")).detail == "ValueError: bad day"
    assert explanation(status="failed", attempts=failed("timeout", "timeout")).detail == "bad day"
    recorded = Learning(is_recorded=True, reasons={"ro": ["agent error"]})
    assert explanation(status="failed", attempts=failed("agent"), learning=recorded).detail == "ValueError: bad day"
    assert explanation(reward(), attempts=(attempt(silence=["grpc is loaded"]),)).detail == "grpc is loaded"
    assert (
        explanation(reward(), call(), attempts=DONE, learning=RECORDED, ended="the check failed").detail
        == "the check failed"
    )
    assert (
        explanation(reward(), call(), attempts=DONE, learning=RECORDED, runs_now=True).detail
        == "the run is still running"
    )


def test_a_trained_rollout_names_its_step_and_the_calls_that_were_left_out() -> None:
    learning = Learning(
        is_recorded=True, steps={"ro": [LearnedStep(3)]}, calls={"s2": [("", "uncredited")]}, unmoved={"s1"}
    )
    found = explanation(
        reward(0.5), call("s1"), call("s2"), call("s3", not_trained="refused"), attempts=DONE, learning=learning
    )
    assert (found.steps, found.reason, found.reward) == ([LearnedStep(3)], None, 0.5)
    assert [(one.steps, one.reason) for one in found.calls] == [
        ([LearnedStep(3)], None),
        ([], "uncredited"),
        ([], "refused"),
    ]
    assert [one.moves for one in found.calls] == [False, True, True]


def test_a_refused_call_says_what_the_gateway_said() -> None:
    learning = Learning(is_recorded=True, reasons={"ro": ["no call left"]}, calls={"s1": [("", "refused")]})
    (one,) = explanation(reward(), call("s1", not_trained="refused"), attempts=DONE, learning=learning).calls
    assert (one.reason, one.detail, one.agent) == ("refused", "too long", "writer")


def test_the_sampling_of_a_held_out_call_is_not_its_fault() -> None:
    greedy = call("s1", sampling=Sampling(temperature=0.0))
    found = explanation(reward(), greedy, call("s2", not_trained="refused"), attempts=DONE, mode="val")
    assert [one.reason for one in found.calls] == [reasons.HELD_OUT, reasons.REFUSED]


def test_sides_learn_each_on_their_own() -> None:
    learning = Learning(
        is_recorded=True,
        steps={"ro": [LearnedStep(1, "left")]},
        reasons={"ro": ["right: no spread"]},
        calls={"s1": [("left", "uncredited")]},
    )
    found = explanation(reward(), call("s1"), call("s2"), attempts=DONE, learning=learning)
    assert (found.steps, found.reason) == ([LearnedStep(1, "left")], None)
    assert [(one.steps, one.reason) for one in found.calls] == [([], "uncredited"), ([LearnedStep(1, "left")], None)]
    neither = Learning(is_recorded=True, reasons={"ro": ["left: no spread", "right: not the best of its group"]})
    found = explanation(reward(), call(), attempts=DONE, learning=neither)
    assert found.reason == "left: no spread; right: not the best of its group"
    assert found.calls[0].reason == found.reason


def test_calls_of_an_earlier_attempt_are_left_out_and_the_attempt_is_told() -> None:
    lost = attempt("unresponsive", 1, Failure(kind="worker", type="WorkerDied", message="worker w1 was lost: SIGKILL"))
    learning = Learning(is_recorded=True, steps={"ro": [LearnedStep(1)]})
    found = explanation(
        call("s1"),
        call("s2", attempt_id="a2"),
        reward(attempt_id="a2"),
        attempts=(lost, attempt(number=2)),
        learning=learning,
    )
    assert [(one.attempt, one.reason) for one in found.calls] == [(1, reasons.EARLIER_ATTEMPT), (2, None)]
    assert found.remarks == ["attempt 1 failed: worker w1 was lost: SIGKILL; the rollout was run again"]


def test_what_is_odd_besides_is_told() -> None:
    odd = attempt(capture="incomplete", not_stored={"spans": 2, "reason": "span 'x' cannot be recorded: too large"})
    found = explanation(reward(), call(), attempts=(odd,), learning=None)
    assert (found.steps, found.reason) == ([], None), "no run learns from the store, as far as is known"
    assert found.remarks == [
        "its capture is incomplete: a model call went to the agent's own provider unrecorded",
        "2 of its spans were not stored: span 'x' cannot be recorded: too large",
    ]
    emitted = Learning(is_recorded=True, steps={"ro": [LearnedStep(2)]})
    found = explanation(reward(), call(), status="failed", attempts=failed("agent"), learning=emitted)
    assert found.remarks == ["it was trained although it failed: ValueError: bad day"]


def test_nothing_is_learned_from_an_attempt_in_which_leyden_failed() -> None:
    found = explanation(reward(), call(), status="failed", attempts=failed("leyden"))
    assert (found.reward, found.reason, found.calls[0].reason) == (None, "Leyden failed", "Leyden failed")


@given(
    st.sampled_from(["queuing", "preparing", "running", "succeeded", "failed", "requeuing", "cancelled"]),
    st.sampled_from([None, "preparing", "running", "succeeded", "failed", "timeout", "unresponsive"]),
    st.sampled_from(["train", "val", "test", None]),
    st.sampled_from([(), ("no spread",), ("left: x", "right: y")]),
    st.lists(st.integers(0, 3), max_size=2),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(["plain", "greedy", "refused"]), max_size=3),
)
def test_every_rollout_and_every_call_has_steps_or_a_reason(
    status: Any,
    tried: Any,
    mode: Any,
    recorded: tuple[str, ...],
    steps: list[int],
    runs_now: bool,
    is_recorded: bool,
    calls: list[str],
) -> None:
    spans = [
        call(
            f"s{place}",
            sampling=Sampling(temperature=0.0) if kind == "greedy" else None,
            **({"not_trained": "refused"} if kind == "refused" else {}),
        )
        for place, kind in enumerate(calls)
    ]
    learning = Learning(
        is_recorded=is_recorded,
        steps={"ro": [LearnedStep(step) for step in steps]} if steps else {},
        reasons={"ro": list(recorded)} if recorded else {},
    )
    attempts = () if tried is None else (attempt(tried),)
    found = explanation(
        *spans, reward(), status=status, attempts=attempts, mode=mode, learning=learning, runs_now=runs_now
    )
    assert bool(found.steps) != (found.reason is not None)
    assert len(found.calls) == len(calls)
    assert all(bool(one.steps) != (one.reason is not None) for one in found.calls)
