"""What another store holds, read over a real one: which rollouts and calls count, and which do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.reasons import DISCONNECTED, FROZEN, OTHER_TEMPLATE, UPSTREAM
from leyden.core.data.rollout import RolloutConfig, RolloutMode
from leyden.core.data.span import Attributes
from leyden.core.errors import RunError, UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.byte_codec import END, ByteCodec
from leyden.core.testing.factories import span
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.rollouts.offline import locate, read_store
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.store_location import StoreLocation
from leyden.core.trajectory.select import Selector

CODEC = ByteCodec()
ALL = Selector()


def call(text: str, **more: Any) -> tuple[str, Attributes]:
    """A call whose exact tokens were recorded; `more` changes its attributes."""
    messages = [{"role": "user", "content": text}]
    attributes: Attributes = {
        semconv.CALL_ID: f"c-{text}",
        semconv.INPUT_MESSAGES: json.dumps(messages),
        semconv.OUTPUT_MESSAGES: json.dumps([{"role": "assistant", "content": "Yes."}]),
        semconv.PROMPT_IDS: pack_ids(CODEC.encode(messages)),
        semconv.RESPONSE_IDS: pack_ids([*b"Yes.", END]),
        semconv.SAMPLING_LOGPROBS: pack_log_probs([-1.0] * 5),
        semconv.SAMPLING_USED: "{}",
        semconv.POLICY_VERSION: 4,
    }
    return "chat", {**attributes, **{getattr(semconv, name): value for name, value in more.items()}}


def reward(value: float) -> tuple[str, Attributes]:
    return semconv.REWARD, {semconv.REWARD_VALUE: value}


async def ran(
    store: LightningStore,
    task: Any,
    *spans: tuple[str, Attributes],
    mode: RolloutMode | None = "train",
    ends: bool = True,
) -> str:
    """Store a rollout that left `spans`, and return its id."""
    rollout = await store.start_rollout(task, mode=mode)
    ids = rollout.rollout_id, rollout.attempt.attempt_id
    for place, (name, attributes) in enumerate(spans):
        left = {"sequence_id": 0, "span_id": f"{place:016x}", "start_time": float(place), "end_time": place + 0.5}
        await store.add_span(span(name, attributes, rollout_id=ids[0], attempt_id=ids[1], **left))
    if ends:
        await store.update_attempt(*ids, status="succeeded")
    return ids[0]


@pytest.fixture
async def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


async def filled(uri: str, *rollouts: tuple[Any, ...], **more: Any) -> list[str]:
    store = await open_store(uri)
    try:
        return [await ran(store, task, *spans, **more) for task, *spans in rollouts]
    finally:
        await store.close()


async def test_equal_tasks_are_one_group_and_rollouts_without_a_task_their_own(uri: str) -> None:
    await filled(
        uri,
        ({"q": 1, "a": 2}, call("one"), reward(1.0)),
        ({"q": 2}, call("two")),
        ({"a": 2, "q": 1}, call("one"), reward(0.0)),
        (None, call("three")),
        (None, call("three")),
    )
    found = await read_store(StoreLocation(uri), CODEC, ALL)
    assert [[t.reward for t in group.trajectories] for group in found.groups] == [[1.0, 0.0], [None], [None], [None]]
    assert (len(found.ids), found.left_out, found.calls_left_out, found.retokenised) == (5, {}, {}, {})
    (transition,) = found.groups[0].trajectories[0].transitions
    assert (list(transition.response_ids), transition.version) == ([*b"Yes.", END], 4)
    assert (len(transition.logprobs), transition.temperature, transition.retokenised) == (0, 1.0, False)


async def test_what_measures_a_run_or_is_not_over_is_left_out(uri: str) -> None:
    await filled(uri, ("a", call("one")), mode="val")
    await filled(uri, ("a", call("one")), mode="test")
    await filled(uri, ("a", call("one")), ends=False)
    await filled(uri, ("a", call("one")), mode=None)
    found = await read_store(StoreLocation(uri), CODEC, ALL)
    assert found.left_out == {"held out there": 2, "not finished": 1}
    assert len(found.groups) == len(found.groups[0].trajectories) == 1


async def test_calls_that_others_answered_are_told_in_the_policys_tokens_and_counted(uri: str) -> None:
    bare = {"PROMPT_IDS": "", "RESPONSE_IDS": "", "SAMPLING_LOGPROBS": ""}
    await filled(
        uri,
        (
            "a",
            call("one", NOT_TRAINED=UPSTREAM, **bare),
            call("two", NOT_TRAINED=FROZEN, PROMPT_IDS=pack_ids([1, 2])),
            call("three", NOT_TRAINED=FROZEN),
            call("four", PROMPT_IDS=pack_ids([1, 2])),
            call("five", SAMPLING_USED='{"temperature": 0.0}'),
            call("six", NOT_TRAINED=DISCONNECTED),
            call("seven", NOT_TRAINED=UPSTREAM, OUTPUT_MESSAGES="[]", **bare),
        ),
    )
    found = await read_store(StoreLocation(uri), CODEC, ALL)
    (trajectory,) = found.groups[0].trajectories
    assert found.retokenised == {UPSTREAM: 1, FROZEN: 1, OTHER_TEMPLATE: 1}
    assert [call.retokenised for call in trajectory.transitions] == [True, True, False, True, False]
    for transition, said in zip(trajectory.transitions, ("one", "two", "three", "four", "five"), strict=True):
        assert list(transition.prompt_ids) == CODEC.encode([{"role": "user", "content": said}])
        assert (list(transition.response_ids), transition.temperature) == ([*b"Yes.", END], 1.0)
    assert found.calls_left_out == {DISCONNECTED: 1, "no answer recorded": 1} == trajectory.excluded


async def test_calls_are_selected_as_in_any_run(uri: str) -> None:
    await filled(uri, ("a", call("one", AGENT_NAME="writer"), call("two", AGENT_NAME="critic", NOT_TRAINED=UPSTREAM)))
    found = await read_store(StoreLocation(uri), CODEC, Selector(agent_match="writer"))
    assert [call.agent for call in found.groups[0].trajectories[0].transitions] == ["writer"]
    assert found.calls_left_out == {"not selected": 1}


async def test_a_run_that_goes_on_reads_what_it_read_before(uri: str) -> None:
    ids = await filled(uri, ("a", call("one")), ("b", call("two")))
    await filled(uri, ("c", call("three")))
    found = await read_store(StoreLocation(uri), CODEC, ALL, only=ids)
    assert list(found.ids) == ids
    with pytest.raises(RunError, match="1 rollouts that the run learns from no longer exist, such as r-gone"):
        await read_store(StoreLocation(uri), CODEC, ALL, only=[*ids, "r-gone"])


async def test_reading_does_not_end_what_is_under_way(uri: str) -> None:
    store = await open_store(uri, clock=lambda: 0.0)
    started = await store.start_rollout("a", config=RolloutConfig(timeout_seconds=5.0))
    await store.close()
    assert (await read_store(StoreLocation(uri), CODEC, ALL)).left_out == {"not finished": 1}
    store = await open_store(uri, clock=lambda: 0.0)
    assert await store.get_rollout_by_id(started.rollout_id) == started
    await store.close()


async def test_a_source_is_a_runs_name_its_folder_or_a_stores_uri(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, RunConfig(name="teacher", policy="p"), [], {})
    with pytest.raises(UsageError, match="there is no store"):
        locate("teacher", tmp_path)
    await filled(folder.store_location.uri, ("a", call("one")))
    own = folder.store_location
    assert locate("teacher", tmp_path) == locate(str(folder.path), tmp_path / "elsewhere") == own
    assert locate(own.uri, tmp_path) == own
    with pytest.raises(UsageError, match=r"there is no store .*none\.db"):
        locate(f"sqlite:///{tmp_path}/none.db", tmp_path)
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(RunError, match="no run 'student'"):
        locate("student", tmp_path)


def test_the_run_keeps_which_rollouts_it_reads(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_rollouts("teacher") is None
    folder.note_rollouts("teacher", ["a", "b"])
    folder.note_rollouts("other", [])
    assert (folder.read_rollouts("teacher"), folder.read_rollouts("other")) == (["a", "b"], [])
