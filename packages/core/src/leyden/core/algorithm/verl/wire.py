"""MessagePack messages between VERL's processes and the run."""

import msgspec

from leyden.core.algorithm.external_loop import StepTasks, TaskRequest, TaskUsage
from leyden.core.data.encoding.images import PromptImage
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs, unpack_ids, unpack_log_probs
from leyden.core.data.failure import Failure
from leyden.core.data.sampling import Sampling
from leyden.core.data.transition import Outcome, Trajectory, TrajectoryGroup, Transition

REPLICAS, PAUSE, ROLLOUTS, USED, TAKEN = "/replicas", "/pause", "/rollouts", "/used", "/taken"
"""Paths: replica addresses, pause for a weight change, rollouts, what of them can be trained, a step's tasks."""
FAILED = "/failed"
"""Path: rollouts that cannot be given to VERL."""
MESSAGE = "/said"
"""Path: a message for the user of the run."""
LONGEST_WAIT = 20.0
"""The most seconds that the response to one request may take; a client that waits longer repeats the request."""


class Replicas(msgspec.Struct, frozen=True, array_like=True):
    """Where the policy is served."""

    addresses: tuple[str, ...]
    """`host:port` of each replica's HTTP server."""
    version: int
    """Version of the weights that all replicas serve."""


class WeightChange(msgspec.Struct, frozen=True, array_like=True):
    """Notice that the weights are about to change."""

    version: int
    """The version that the weights change to."""


class FailedPrompts(msgspec.Struct, frozen=True, array_like=True):
    """Notice of rollouts that cannot be given to VERL, which must not take their step without them."""

    why: str
    to_mend: bool = False
    """Whether the only cause is the input of the run, which the user has to change."""


class UserMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message for the user of the run."""

    what: str


class _Call(msgspec.Struct, frozen=True, array_like=True):
    """A `Transition` in a message."""

    rollout_id: str
    attempt_id: str
    span_id: str
    call_id: str
    prompt_ids: bytes
    response_ids: bytes
    logprobs: bytes
    temperature: float
    policy: str
    version: int
    versions: tuple[tuple[int, int], ...]
    agent: str | None
    node: str | None
    finish_reason: str | None
    outcomes: tuple[Outcome, ...]
    sampling: Sampling | None
    images: tuple[PromptImage, ...]
    """Without their files, because calls with images become no rows."""
    kept: bytes | None = None


class _Attempt(msgspec.Struct, frozen=True, array_like=True):
    """A `Trajectory` in a message."""

    rollout_id: str
    attempt_id: str
    calls: tuple[_Call, ...]
    reward: float | None
    dimensions: dict[str, float]
    succeeded: bool
    untrained: dict[str, str]
    failure: Failure | None


class _Group(msgspec.Struct, frozen=True, array_like=True):
    """A `TrajectoryGroup` in a message."""

    task_id: str
    attempts: tuple[_Attempt, ...]


_GROUPS = msgspec.msgpack.Decoder(_Group)
_REQUEST = msgspec.msgpack.Decoder(TaskRequest)
_REPLICAS = msgspec.msgpack.Decoder(Replicas)
_PAUSE = msgspec.msgpack.Decoder(WeightChange)
_FAILED = msgspec.msgpack.Decoder(FailedPrompts)
_MESSAGE = msgspec.msgpack.Decoder(UserMessage)
_USED = msgspec.msgpack.Decoder(TaskUsage)
_TAKEN = msgspec.msgpack.Decoder(StepTasks)


def encode_group(group: TrajectoryGroup) -> bytes:
    """Encode finished rollouts."""
    attempts = tuple(
        _Attempt(
            trajectory.rollout_id,
            trajectory.attempt_id,
            tuple(_call(transition) for transition in trajectory.transitions),
            trajectory.reward,
            trajectory.dimensions,
            trajectory.succeeded,
            trajectory.untrained,
            trajectory.failure,
        )
        for trajectory in group.trajectories
    )
    return msgspec.msgpack.encode(_Group(group.task_id, attempts))


def decode_group(data: bytes) -> TrajectoryGroup:
    """Decode the result of `encode_group`; raises `msgspec.DecodeError` for anything else."""
    group = _GROUPS.decode(data)
    trajectories = tuple(
        Trajectory(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            transitions=tuple(_transition(call) for call in attempt.calls),
            reward=attempt.reward,
            dimensions=attempt.dimensions,
            succeeded=attempt.succeeded,
            untrained=attempt.untrained,
            failure=attempt.failure,
        )
        for attempt in group.attempts
    )
    return TrajectoryGroup(task_id=group.task_id, trajectories=trajectories)


def decode_request(data: bytes) -> TaskRequest:
    """Decode a request for rollouts; raises `msgspec.DecodeError` for anything else."""
    return _REQUEST.decode(data)


def decode_replicas(data: bytes) -> Replicas:
    """Decode the replicas' addresses and version; raises `msgspec.DecodeError` for anything else."""
    return _REPLICAS.decode(data)


def decode_pause(data: bytes) -> WeightChange:
    """Decode a notice of a weight change; raises `msgspec.DecodeError` for anything else."""
    return _PAUSE.decode(data)


def decode_failed(data: bytes) -> FailedPrompts:
    """Decode a failure notice; raises `msgspec.DecodeError` for anything else."""
    return _FAILED.decode(data)


def decode_message(data: bytes) -> UserMessage:
    """Decode a message for the user; raises `msgspec.DecodeError` for anything else."""
    return _MESSAGE.decode(data)


def decode_used(data: bytes) -> TaskUsage:
    """Decode a report of what can be trained; raises `msgspec.DecodeError` for anything else."""
    return _USED.decode(data)


def decode_taken(data: bytes) -> StepTasks:
    """Decode the tasks that a step learns from; raises `msgspec.DecodeError` for anything else."""
    return _TAKEN.decode(data)


def _call(transition: Transition) -> _Call:
    return _Call(
        transition.rollout_id,
        transition.attempt_id,
        transition.span_id,
        transition.call_id,
        pack_ids(transition.prompt_ids),
        pack_ids(transition.response_ids),
        pack_log_probs(transition.logprobs),
        transition.temperature,
        transition.policy,
        transition.version,
        transition.versions,
        transition.agent,
        transition.node,
        transition.finish_reason,
        transition.outcomes,
        transition.sampling,
        tuple(msgspec.structs.replace(image, data=b"") for image in transition.images),
        transition.kept,
    )


def _transition(call: _Call) -> Transition:
    return Transition(
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        span_id=call.span_id,
        call_id=call.call_id,
        prompt_ids=unpack_ids(call.prompt_ids),
        response_ids=unpack_ids(call.response_ids),
        logprobs=unpack_log_probs(call.logprobs),
        temperature=call.temperature,
        policy=call.policy,
        version=call.version,
        versions=call.versions,
        agent=call.agent,
        node=call.node,
        finish_reason=call.finish_reason,
        outcomes=call.outcomes,
        sampling=call.sampling,
        kept=call.kept,
        images=call.images,
    )
