"""Operations on a store, as Hypothesis strategies: every method of the interface, with relevant arguments.

Rollouts and attempts are given by their positions, which are resolved in the model when the operation is executed. The
expected results are in `model`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from leyden.core.data.resources import PromptTemplate
from leyden.core.data.rollout import ATTEMPT_MOVES, ROLLOUT_MOVES, EnqueueRollout, RolloutConfig
from leyden.core.data.run import RUN_MOVES, PolicyVersion, Run, StepMetrics
from leyden.core.data.span import Span
from leyden.core.testing.store_machine.states import States, name_of

MISSING, NOT_THERE = "missing", 9
WENT_WRONG = ("failed", "timeout", "unresponsive")
CONFIGS = [
    RolloutConfig(),
    RolloutConfig(max_attempts=2, retry_condition=WENT_WRONG),
    RolloutConfig(timeout_seconds=5, unresponsive_seconds=2, max_attempts=3, retry_condition=("unresponsive",)),
    RolloutConfig(timeout_seconds=3, max_attempts=2, retry_condition=("timeout", "failed")),
    RolloutConfig(unresponsive_seconds=3),
]
WORKERS = ["w0", "w1"]
QUEUES = ["", "q1"]
RESOURCES: list[dict[str, PromptTemplate]] = [{}, {"prompt": PromptTemplate(template="Say {word}")}]


@dataclass(frozen=True)
class Position:
    """Position of a rollout, or of an attempt by its number: 0 is the latest attempt, and 9 does not exist."""

    rollout: int
    attempt: int | None = None

    def found(self, states: States) -> str:
        """Return the id of the rollout or attempt; positions after the last wrap around."""
        ids = list(states.rollouts)
        rollout_id = ids[self.rollout % len(ids)] if ids and self.rollout != NOT_THERE else MISSING
        if self.attempt is None:
            return rollout_id
        count = len(states.rollouts[rollout_id].attempts) if rollout_id in states.rollouts else 0
        number = (self.attempt - 1) % count + 1 if count and self.attempt != NOT_THERE else self.attempt
        return name_of(rollout_id, number) if self.attempt else "latest"


@dataclass(frozen=True)
class SpanDraft:
    """A span of the attempt at a position."""

    attempt: Position
    span: Span

    def found(self, states: States) -> Span:
        """Return the span with the ids of its attempt."""
        rollout_id = Position(self.attempt.rollout).found(states)
        return replace(self.span, rollout_id=rollout_id, attempt_id=self.attempt.found(states))


@dataclass(frozen=True)
class Operation:
    """A call of one method."""

    name: str
    arguments: Mapping[str, Any]

    def found(self, states: States) -> dict[str, Any]:
        """Return the arguments with resolved positions, without those that are None."""
        found = {name: _found(value, states) for name, value in self.arguments.items()}
        return {name: value for name, value in found.items() if value is not None}


Operations: TypeAlias = st.SearchStrategy[Operation]


def _found(value: Any, states: States) -> Any:
    if isinstance(value, (Position, SpanDraft)):
        return value.found(states)
    if isinstance(value, (list, tuple)):
        members: list[Any] = [_found(member, states) for member in value]  # type: ignore[reportUnknownVariableType]
        return members if isinstance(value, list) else tuple(members)
    return value


def _call(name: str, /, **arguments: st.SearchStrategy[Any]) -> Operations:
    return st.builds(Operation, st.just(name), st.fixed_dictionaries(arguments))


# Early rollouts are chosen more often, so that several operations change the same rollout.
_position = st.sampled_from([*[0] * 10, 1, 1, 1, 1, 2, 2, 3, NOT_THERE])
ROLLOUT = st.builds(Position, _position)
_numbers = st.sampled_from([*[0] * 6, 1, 1, 2, 3, NOT_THERE])
_worker = st.none() | st.sampled_from(WORKERS)
_config = st.sampled_from(CONFIGS)
_bad_config = st.sampled_from([*CONFIGS, RolloutConfig(max_attempts=0)])
_metadata = st.sampled_from([None, {"m": 1}, {}])
_mode = st.sampled_from([None, "train", "val"])
_resources_id = st.sampled_from([None, None, "x", "unknown"])
QUEUE = st.sampled_from([*[QUEUES[0]] * 2, QUEUES[1]])


def _of_attempt(
    name: str, numbers: st.SearchStrategy[int] = _numbers, **arguments: st.SearchStrategy[Any]
) -> Operations:
    return st.tuples(_position, numbers).flatmap(
        lambda at: _call(name, rollout_id=st.just(Position(at[0])), attempt_id=st.just(Position(*at)), **arguments)
    )


_request = {
    "input": st.sampled_from([{"q": 1}, "text", 7]),
    "mode": _mode,
    "resources_id": _resources_id | st.just(""),
    "queue": QUEUE,
}
_requests = st.builds(
    EnqueueRollout,
    input=st.just({"q": [1]}),
    rollout_id=st.sampled_from([None, "r0", "r1", "r2"]),
    config=_config,
    mode=_mode,
    metadata=_metadata,
    queue=QUEUE,
)
ENQUEUES: Operations = st.one_of(
    _call("enqueue_many_rollouts", rollouts=st.lists(_requests, max_size=3)),
    _call("enqueue_rollout", **_request, config=_bad_config, metadata=_metadata),
    _call("start_rollout", **_request, config=_config, metadata=_metadata, worker_id=_worker),
)
CLAIMS: Operations = st.one_of(
    _call("dequeue_rollout", worker_id=_worker, queue=QUEUE),
    _call("dequeue_many_rollouts", limit=st.integers(-1, 3), worker_id=_worker, queue=QUEUE),
    _call("start_attempt", rollout_id=ROLLOUT, worker_id=_worker),
)
ATTEMPT_CHANGES: Operations = st.one_of(
    *[_of_attempt("update_attempt", status=st.sampled_from(sorted(ATTEMPT_MOVES)))] * 3,
    _of_attempt("update_attempt", status=st.sampled_from([*WENT_WRONG, "succeeded"]), metadata=_metadata),
    _of_attempt("update_attempt", worker_id=st.sampled_from([*WORKERS, ""])),
    _of_attempt("update_attempt", last_heartbeat_time=st.sampled_from([995.0, 1001.0, 1010.0])),
)
ROLLOUT_CHANGES: Operations = st.one_of(
    *[_call("update_rollout", rollout_id=ROLLOUT, status=st.sampled_from([*sorted(ROLLOUT_MOVES), "requeuing"]))] * 3,
    _call("update_rollout", rollout_id=ROLLOUT, config=_bad_config, metadata=_metadata, mode=_mode),
    _call("update_rollout", rollout_id=ROLLOUT, resources_id=_resources_id, input=st.sampled_from([None, 8])),
)


def _draft(rollout: int, attempt: int, span_id: str, number: int) -> SpanDraft:
    span = Span(
        rollout_id="",
        attempt_id="",
        sequence_id=number,
        trace_id=span_id * 32,
        span_id=span_id * 16,
        parent_id=None if span_id == "a" else "a" * 16,
        name=f"span {span_id}",
        attributes={"ids": span_id.encode(), "list": [1, 2]},
        start_time=float(number),
    )
    return SpanDraft(Position(rollout, attempt), span)


def _readable(span_id: int, start: int) -> ReadableSpan:
    context = SpanContext(trace_id=span_id, span_id=span_id, is_remote=False)
    return ReadableSpan("of the SDK", context, resource=Resource({}), start_time=start * 10**9)


_span = st.builds(
    _draft, _position, st.sampled_from([1, 2, 3, NOT_THERE]), st.sampled_from("abcd"), st.sampled_from([0, 0, 3, 7, -1])
)
_good_span = st.builds(_draft, st.integers(0, 1), st.integers(1, 3), st.sampled_from("abcdef"), st.just(0))
_pairs = st.lists(st.tuples(ROLLOUT, st.builds(Position, _position, _numbers)), max_size=3)
SPANS: Operations = st.one_of(
    _call("add_span", span=_good_span),
    _call("add_span", span=_span),
    _call("add_many_spans", spans=st.lists(_good_span, max_size=4)),
    _call("add_many_spans", spans=st.lists(_span, max_size=3)),
    _of_attempt(
        "add_otel_span",
        readable_span=st.builds(_readable, st.integers(1, 3), st.integers(1, 9)),
        sequence_id=st.just(0),
    ),
    _of_attempt("get_next_span_sequence_id"),
    _call("drop_spans", rollout_id=ROLLOUT),
    _call("get_many_span_sequence_ids", rollout_attempt_ids=_pairs),
)
RECORDS: Operations = st.one_of(
    _call("update_resources", resources_id=st.sampled_from(["x", "y"]), resources=st.sampled_from(RESOURCES)),
    _call("add_resources", resources=st.sampled_from(RESOURCES)),
    _call("update_worker", worker_id=st.sampled_from([*WORKERS, "w2"])),
    _call("update_worker", worker_id=st.sampled_from(WORKERS), heartbeat_stats=st.sampled_from([{"cpu": 1}, {}])),
)
_run_id = st.sampled_from(["u0", "u0", "u1", MISSING])
_run = st.builds(
    Run,
    run_id=st.sampled_from(["u0", "u0", "u1", "u:2"]),
    name=st.sampled_from(["one", "two"]),
    experiment=st.sampled_from([None, "e"]),
    status=st.sampled_from(["running", "running", "failed"]),
    config=st.sampled_from([{}, {"steps": 3}]),
)
_measured = st.builds(
    StepMetrics,
    step=st.integers(-1, 4),
    values=st.sampled_from([{}, {"loss": 1.0}, {"loss": 2.0}, {"reward": 0.5}, {"loss": float("nan")}]),
    notes=st.sampled_from([{}, {"alert": "it falls"}]),
)
_version = st.builds(
    PolicyVersion,
    run_id=_run_id,
    policy=st.sampled_from(["policy", "write"]),
    version=st.integers(-1, 3),
    path=st.sampled_from([None, "step-1"]),
)
RUNS: Operations = st.one_of(
    *[_call("add_run", run=_run)] * 2,
    _call("update_run", run_id=_run_id, status=st.sampled_from(sorted(RUN_MOVES))),
    _call("update_run", run_id=_run_id, name=st.just("three"), metadata=st.just({"m": 1})),
    _call("rewind_run", run_id=_run_id, step=st.integers(0, 3)),
    _call("add_metrics", run_id=_run_id, metrics=st.lists(_measured, max_size=3)),
    _call("add_policy_versions", versions=st.lists(_version, max_size=3)),
    _call("update_policy_version", run_id=_run_id, version=st.integers(0, 2), path=st.just("step-2")),
    _call("update_policy_version", run_id=_run_id, version=st.just(1), policy=st.just("write"), note=st.just("good")),
)


def _paged(name: str, sorts: list[str], /, **arguments: st.SearchStrategy[Any]) -> Operations:
    return _call(
        name,
        **arguments,
        sort_by=st.sampled_from([None, "nothing", *sorts]),
        sort_order=st.sampled_from(["asc", "desc"]),
        limit=st.sampled_from([-1, -1, 0, 1, 2]),
        offset=st.sampled_from([0, 0, 1, 5, -1]),
    )


_logic = st.sampled_from(["and", "or"])
_statuses = st.none() | st.lists(st.sampled_from(sorted(ROLLOUT_MOVES)), max_size=2)
_text = st.sampled_from([None, "a", "r", "1", " "])
QUESTIONS: Operations = st.one_of(
    _paged(
        "query_rollouts",
        ["end_time", "status", "mode", "start_time", "resources_id", "resources_version"],
        status_in=_statuses,
        status=_statuses,
        rollout_id_in=st.none() | st.lists(ROLLOUT, max_size=2),
        rollout_ids=st.none() | st.lists(ROLLOUT, max_size=1),
        rollout_id_contains=_text,
        queue=st.none() | QUEUE,
        filter_logic=_logic,
    ),
    _paged(
        "query_attempts", ["sequence_id", "status", "end_time", "worker_id", "last_heartbeat_time"], rollout_id=ROLLOUT
    ),
    _of_attempt(
        "query_spans",
        name_contains=_text,
        span_id_contains=_text,
        parent_id=st.sampled_from([None, "a" * 16]),
        trace_id=st.sampled_from([None, None, "b" * 32]),
        filter_logic=_logic,
        sort_by=st.sampled_from([None, "nothing", "name", "start_time", "parent_id", "sequence_id"]),
        limit=st.integers(-1, 2),
    ),
    _paged("query_resources", ["version", "create_time", "update_time"], resources_id_contains=_text),
    _paged(
        "query_workers",
        ["worker_id", "status", "last_busy_time", "last_idle_time", "last_dequeue_time", "current_rollout_id"],
        status_in=st.none() | st.lists(st.sampled_from(["idle", "busy", "unknown"]), max_size=2),
        worker_id_contains=_text,
        filter_logic=_logic,
    ),
    _of_attempt("find_attempt"),
    _call("get_rollout_by_id", rollout_id=ROLLOUT),
    _call("get_latest_attempt", rollout_id=ROLLOUT),
    _call("get_resources_by_id", resources_id=st.sampled_from(["x", "y", MISSING]), version=st.none() | st.just(1)),
    _call("get_latest_resources"),
    _call("get_worker_by_id", worker_id=st.sampled_from(WORKERS)),
    _call("wait_for_rollouts", rollout_ids=st.lists(ROLLOUT, max_size=3), timeout=st.just(0.0)),
    _call("statistics"),
    _call("get_run_by_id", run_id=_run_id),
    _paged(
        "query_runs",
        ["name", "experiment", "status", "start_time", "end_time", "update_time"],
        status_in=st.none() | st.lists(st.sampled_from(sorted(RUN_MOVES)), max_size=2),
        name=st.sampled_from([None, None, "one"]),
        name_contains=_text,
        experiment=st.sampled_from([None, "e"]),
        filter_logic=_logic,
    ),
    _call("query_metrics", run_id=_run_id, sort_order=st.sampled_from(["asc", "desc"]), limit=st.integers(-1, 2)),
    _paged(
        "query_policy_versions",
        ["version", "path", "create_time", "update_time"],
        run_id=st.none() | _run_id,
        policy=st.sampled_from([None, "write"]),
    ),
)
CHANGES: Operations = st.one_of(CLAIMS, ATTEMPT_CHANGES, ATTEMPT_CHANGES, ROLLOUT_CHANGES, SPANS)
ANY: Operations = st.one_of(CHANGES, CHANGES, ENQUEUES, RECORDS, RUNS, QUESTIONS)
