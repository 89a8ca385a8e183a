import math
from typing import Any

import msgspec
import pytest

from leyden.core.data import reasons, semconv
from leyden.core.data.encoding.images import PromptImage, digest_of, pack_images
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.reasons import CHOICE_NOT_USED
from leyden.core.data.rollout import Attempt, AttemptStatus, Rollout
from leyden.core.data.sampling import Sampling
from leyden.core.data.span import Attribute, Attributes, Span
from leyden.core.testing import factories
from leyden.core.trajectory.assemble import assemble
from leyden.core.trajectory.select import Selector

ROLLOUT = Rollout(rollout_id="ro", input={"question": "?"}, start_time=0.0)
ATTEMPT = Attempt(rollout_id="ro", attempt_id="at", sequence_id=1, start_time=0.0, status="succeeded")
ALL = Selector()


def span(sequence: int, name: str, attributes: Attributes, attempt_id: str = "at") -> Span:
    return factories.span(
        name,
        attributes,
        attempt_id=attempt_id,
        sequence_id=sequence,
        span_id=f"{sequence:016x}",
        start_time=float(sequence),
    )


def call(
    sequence: int, change: Attributes | None = None, without: tuple[str, ...] = (), attempt_id: str = "at"
) -> Span:
    attributes: Attributes = {
        semconv.OPERATION: "chat",
        semconv.CALL_ID: f"call-{sequence}",
        semconv.POLICY: "main",
        semconv.POLICY_VERSION: 3,
        semconv.AGENT_NAME: "writer",
        semconv.NODE: "draft",
        semconv.PROMPT_IDS: pack_ids([1, 2, sequence]),
        semconv.RESPONSE_IDS: pack_ids([7, 8]),
        semconv.RESPONSE_LOGPROBS: pack_log_probs([-9.0, -9.0]),
        semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.5, -0.25]),
        semconv.SAMPLING_USED: msgspec.json.encode(Sampling(temperature=0.5)).decode(),
        semconv.FINISH_REASONS: ["stop"],
    }
    attributes |= change or {}
    return span(
        sequence, "chat main", {key: value for key, value in attributes.items() if key not in without}, attempt_id
    )


def test_calls_become_transitions_in_the_order_they_were_made_with_the_sampled_log_probabilities() -> None:
    trajectory = assemble(ROLLOUT, ATTEMPT, [call(9), call(4)], ALL)

    assert [t.call_id for t in trajectory.transitions] == ["call-4", "call-9"]
    first = trajectory.transitions[0]
    assert list(first.prompt_ids) == [1, 2, 4]
    assert list(first.response_ids) == [7, 8]
    assert list(first.logprobs) == [-0.5, -0.25]
    assert (first.temperature, first.policy, first.version) == (0.5, "main", 3)
    assert (first.agent, first.node, first.finish_reason) == ("writer", "draft", "stop")
    assert (first.rollout_id, first.attempt_id, first.span_id) == ("ro", "at", f"{4:016x}")
    assert trajectory.succeeded
    assert trajectory.excluded == {}


def test_parallel_calls_stand_in_the_order_they_were_made_not_in_the_order_they_ended() -> None:
    started = {1: 10.0, 2: 12.0, 3: 11.0, 4: 11.0, 5: 13.0}
    spans = [msgspec.structs.replace(call(n), start_time=started[n]) for n in (5, 4, 3, 2, 1)]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, ALL)

    assert [t.call_id for t in trajectory.transitions] == ["call-1", "call-3", "call-4", "call-2", "call-5"]


def test_a_call_that_saw_an_update_is_a_transition_with_its_versions() -> None:
    spans = [call(1, {semconv.POLICY_VERSIONS: [3, 1, 5, 1]}), call(2, {semconv.POLICY_VERSIONS: [3, 2]}), call(3)]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, ALL)

    assert [(t.version, t.versions) for t in trajectory.transitions] == [
        (3, ((3, 1), (5, 1))),
        (3, ((3, 2),)),
        (3, ((3, 2),)),
    ]


@pytest.mark.parametrize(
    "versions", [[], [3], [3, 1], [3, 2, 4], [3, 2, 4, 0], [4, 2], [3, 3, 4, -1], ["3", "2"], "32"]
)
def test_versions_that_do_not_fit_the_answer_are_unknown(versions: Attribute) -> None:
    trajectory = assemble(ROLLOUT, ATTEMPT, [call(1, {semconv.POLICY_VERSIONS: versions})], ALL)

    assert trajectory.excluded == {reasons.UNKNOWN_VERSION: 1}


def test_a_choice_that_nobody_used_is_counted_under_its_reason() -> None:
    def choice(sequence: int, answer: str) -> Span:
        said = f'[{{"role": "assistant", "content": "{answer}"}}]'
        return call(
            sequence,
            {semconv.RESPONSE_ID: "answer", semconv.CHOICE_INDEX: sequence, semconv.OUTPUT_MESSAGES: said},
        )

    spans = [choice(1, "Delft"), choice(2, "Leiden"), span(3, semconv.RESULT, {semconv.RESULT: "It is Leiden."})]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, ALL)

    assert [t.call_id for t in trajectory.transitions] == ["call-2"]
    assert trajectory.excluded == {CHOICE_NOT_USED: 1}


def test_a_framework_view_of_a_call_and_spans_of_other_attempts_are_not_calls() -> None:
    view = span(1, "chat", {semconv.OPERATION: "chat", semconv.AGENT_NAME: "writer"})

    trajectory = assemble(ROLLOUT, ATTEMPT, [view, call(2), call(3, attempt_id="earlier")], ALL)

    assert [t.call_id for t in trajectory.transitions] == ["call-2"]
    assert trajectory.excluded == {}


def test_every_call_is_a_transition_or_counted_under_its_reason() -> None:
    cases: dict[str, Span] = {
        "client disconnected": call(1, {semconv.NOT_TRAINED: "client disconnected"}),
        "rejected before it was encoded": call(
            2, {semconv.NOT_TRAINED: "rejected before it was encoded"}, without=(semconv.PROMPT_IDS, semconv.CALL_ID)
        ),
        reasons.NOT_SELECTED: call(3, {semconv.AGENT_NAME: "critic", semconv.NODE: "judge"}),
        reasons.SAMPLING_NOT_TRAINABLE: call(4, {semconv.SAMPLING_USED: '{"temperature": 1.0, "top_p": 0.9}'}),
        reasons.EMPTY_RESPONSE: call(5, {semconv.RESPONSE_IDS: b"", semconv.SAMPLING_LOGPROBS: b""}),
        reasons.EMPTY_PROMPT: call(6, {semconv.PROMPT_IDS: b""}),
        reasons.NOT_RECORDED: call(7, without=(semconv.RESPONSE_IDS,)),
        reasons.BAD_LOGPROBS: call(8, {semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.5])}),
        reasons.UNKNOWN_VERSION: call(9, without=(semconv.POLICY_VERSION,)),
    }
    spans = [*cases.values(), call(10)]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, Selector(agent_match="^writer$"))

    assert trajectory.excluded == dict.fromkeys(cases, 1)
    assert [t.call_id for t in trajectory.transitions] == ["call-10"]


@pytest.mark.parametrize(
    ("status", "metadata", "reason"),
    [
        ("unresponsive", {"error": {"kind": "worker", "type": "WorkerDied", "message": "lost"}}, reasons.CUT_OFF),
        ("unresponsive", {}, reasons.CUT_OFF),
        ("failed", {"error": {"kind": "agent", "type": "ReadTimeout", "message": ""}}, reasons.DISCONNECTED),
        ("succeeded", {}, reasons.DISCONNECTED),
    ],
)
def test_a_call_of_an_attempt_that_was_lost_with_its_worker_is_not_hung_up_by_its_client(
    status: AttemptStatus, metadata: dict[str, Any], reason: str
) -> None:
    attempt = msgspec.structs.replace(ATTEMPT, status=status, metadata=metadata)
    cut, refused = call(1, {semconv.NOT_TRAINED: reasons.DISCONNECTED}), call(2, {semconv.NOT_TRAINED: reasons.REFUSED})
    trajectory = assemble(ROLLOUT, attempt, [cut, refused], ALL)
    assert trajectory.untrained == {cut.span_id: reason, refused.span_id: reasons.REFUSED}


def test_greedy_unreadable_and_missing_sampling_are_not_trainable() -> None:
    spans = [
        call(1, {semconv.SAMPLING_USED: '{"temperature": 0}'}),
        call(2, {semconv.SAMPLING_USED: "not json"}),
        call(3, without=(semconv.SAMPLING_USED,)),
        call(4, {semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.5, -math.inf])}),
        call(5, {semconv.PROMPT_IDS: b"123"}),
    ]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, ALL)

    assert trajectory.transitions == ()
    assert trajectory.excluded == {
        reasons.SAMPLING_NOT_TRAINABLE: 3,
        reasons.BAD_LOGPROBS: 1,
        reasons.NOT_RECORDED: 1,
    }


FILE, OTHER = b"a picture", b"another picture"


def with_images(*files: bytes) -> Attributes:
    """The attributes of a prompt that begins with these images, each with two placeholders."""
    images = [PromptImage(digest=digest_of(data), data=data, start=2 * n, tokens=2) for n, data in enumerate(files)]
    return {semconv.PROMPT_IDS: pack_ids([9] * 8), semconv.PROMPT_IMAGES: pack_images(images)}


def image(sequence: int, data: bytes, digest: str = "") -> Span:
    return span(sequence, "image", {semconv.IMAGE_DIGEST: digest or digest_of(data), semconv.IMAGE_DATA: data})


def test_images_of_a_prompt_are_those_that_the_attempt_recorded() -> None:
    spans = [image(1, FILE), call(2, with_images(FILE)), image(3, OTHER), call(4, with_images(OTHER, FILE)), call(5)]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, ALL)

    found = [[(one.data, one.start, one.tokens) for one in t.images] for t in trajectory.transitions]
    assert found == [[(FILE, 0, 2)], [(OTHER, 0, 2), (FILE, 2, 2)], []]
    states = [t.state for t in trajectory.transitions]
    assert len(set(states)) == 3
    assert trajectory.untrained == {}


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [image(1, OTHER)],
        [image(1, FILE[:-1], digest_of(FILE))],
        [factories.span("image", {semconv.IMAGE_DIGEST: digest_of(FILE), semconv.IMAGE_DATA: FILE}, attempt_id="old")],
    ],
)
def test_a_call_whose_image_is_missing_or_was_changed_is_left_out_and_counted(spans: list[Span]) -> None:
    trajectory = assemble(ROLLOUT, ATTEMPT, [*spans, call(2, with_images(FILE)), call(3)], ALL)

    assert [t.call_id for t in trajectory.transitions] == ["call-3"]
    assert trajectory.excluded == {reasons.IMAGE_NOT_RECORDED: 1}


@pytest.mark.parametrize(
    "packed", ["", "{}", '[["x", 0]]', '[["x", 7, 2]]', '[["x", 0, 2], ["x", 1, 2]]', '[["x", 0, 0]]']
)
def test_images_that_do_not_fit_into_the_prompt_are_left_out(packed: str) -> None:
    bad = call(2, with_images(FILE) | {semconv.PROMPT_IMAGES: packed.replace("x", digest_of(FILE))})

    assert assemble(ROLLOUT, ATTEMPT, [image(1, FILE), bad], ALL).excluded == {reasons.IMAGE_NOT_RECORDED: 1}


def reward(sequence: int, attributes: Attributes) -> Span:
    return span(sequence, semconv.REWARD, attributes)


def test_the_last_reward_counts_with_its_dimensions() -> None:
    spans = [
        reward(5, {semconv.REWARD_VALUE: 0.75, semconv.REWARD_DIMENSION + "style": 0.5}),
        reward(2, {semconv.REWARD_VALUE: 1.0, semconv.REWARD_DIMENSION + "early": 1.0}),
    ]

    trajectory = assemble(ROLLOUT, ATTEMPT, spans, ALL)

    assert trajectory.reward == 0.75
    assert trajectory.dimensions == {"style": 0.5}


def test_no_reward_is_none_and_never_zero() -> None:
    failed = msgspec.structs.replace(ATTEMPT, status="failed")

    silent = assemble(ROLLOUT, failed, [call(1)], ALL)
    not_a_number = assemble(ROLLOUT, ATTEMPT, [reward(1, {semconv.REWARD_VALUE: math.nan})], ALL)

    assert silent.reward is None and silent.dimensions == {} and not silent.succeeded
    assert not_a_number.reward is None
