"""`leyden why` on runs whose stores a real runner has filled: what it says, as text and JSON, and what it refuses."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.algorithm.account import Account
from leyden.core.cli.main import run
from leyden.core.data.rollout import EnqueueRollout, RolloutConfig
from leyden.core.testing.running import finished, running
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.run_folder.folder import RunFolder


async def agent(task: Any) -> str:
    """Fails as its task says."""
    if task["kind"] == "raises":
        raise LookupError(f"no luck with {task['number']}")
    if task["kind"] == "hangs":
        await asyncio.sleep(60)
    return "done"


PLACE = f"({__file__}, line {agent.__code__.co_firstlineno + 3})"
"""Where the agent raises."""


def one(task: Any, result: Any) -> float:
    return 1.0


async def ran(folder: RunFolder, kinds: Sequence[str], mode: Any = "train") -> None:
    """Run a rollout of each kind in the store of the run, and leave one in its queue."""
    store = await folder.store_location.open()
    short, long = RolloutConfig(timeout_seconds=0.3), RolloutConfig(timeout_seconds=60)
    requests = [
        EnqueueRollout(
            rollout_id=f"{mode}-{n}",
            input={"kind": kind, "number": n},
            mode=mode,
            config=short if kind == "hangs" else long,
        )
        for n, kind in enumerate(kinds)
    ]
    await store.enqueue_many_rollouts(requests)
    async with running(store, agent, reward=one):
        await finished(store, [request.rollout_id or "" for request in requests])
    await store.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, RunConfig(name="broken", policy="p", agent="a"), [{"question": "?"}], {})


@pytest.fixture
def broken(folder: RunFolder) -> RunFolder:
    """Four rollouts that failed, two that were silent, two held out, one never begun."""
    asyncio.run(ran(folder, ["raises", "raises", "raises", "hangs", "well", "well"]))
    asyncio.run(ran(folder, ["well", "raises"], mode="val"))

    async def leave_one() -> None:
        store = await folder.store_location.open()
        await store.enqueue_rollout({"kind": "well"}, mode="train", rollout_id="train-left")
        await store.close()

    asyncio.run(leave_one())
    return folder


def run_why(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["why", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["why", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_run_is_told_in_counts_with_examples(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_why(capsys, "broken", "--runs", str(broken.path.parent))
    assert text.startswith("Run broken (not finished)\n7 training rollouts: 0 trained, 7 not\n2 held-out rollouts:")
    for line in (
        "      3  agent error: the agent raised",
        f"3 × LookupError: no luck with 0 {PLACE}",
        "      1  timeout: ",
        "      2  no call: ",
        "      1  never begun: ",
        f"see one: leyden show broken train-3 --runs {broken.path.parent}",
        f"Held-out rollouts that failed\n      1  LookupError: no luck with 1 {PLACE} (such as val-1)",
        f"the output of the agents is in {broken.worker_log}",
    ):
        assert line in text, text


def test_a_run_as_json(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    found = msgspec.json.decode(run_why(capsys, "broken", "--runs", str(broken.path.parent), "--json"))
    assert (found["state"], found["rollouts"], found["held_out"]) == ("not finished", 7, 2)
    counts = {one["reason"]: one["count"] for one in found["rollouts_left_out"]}
    assert counts == {"agent error": 3, "timeout": 1, "no call": 2, "never begun": 1}
    assert sum(counts.values()) + found["rollouts_trained"] == found["rollouts"]
    raised = found["rollouts_left_out"][0]
    assert raised["details"] == [
        {"count": 3, "text": f"LookupError: no luck with 0 {PLACE}", "example": "train-0", "messages": 1}
    ]
    assert raised["means"] == "the agent raised"


def test_one_rollout_is_told_whole(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_why(capsys, "broken", "train-1", "--runs", str(broken.path.parent))
    assert text.startswith("Rollout train-1 (train, failed, no reward)\nnot trained: agent error\n")
    assert f"  LookupError: no luck with 1 {PLACE}\n" in text
    assert text.endswith(f"to see it: leyden show broken train-1 --runs {broken.path.parent}\n")
    found = msgspec.json.decode(run_why(capsys, "broken", "train-1", "--runs", str(broken.path.parent), "--json"))
    assert (found["reason"], found["detail"], found["steps"]) == (
        "agent error",
        f"LookupError: no luck with 1 {PLACE}",
        [],
    )


def test_what_steps_learned_is_told(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    broken.append_metrics({"step": 1, "reward": 0.5})
    broken.append_learned(1, [Account(trained=["train-4"], rollouts={"no spread": ["train-5"]})])
    broken.append_learned(2, [Account(trained=["train-4"])])
    text = run_why(capsys, "broken", "--runs", str(broken.path.parent))
    assert "7 training rollouts: 1 trained in 2 steps, 6 not" in text
    assert "      1  no spread: " in text
    assert "\ntrained in step 1, step 2\n" in run_why(capsys, "broken", "train-4", "--runs", str(broken.path.parent))


def test_a_run_that_goes_on_says_so(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with broken.locked():
        assert run_why(capsys, "broken", "--runs", str(broken.path.parent)).startswith("Run broken (running)\n")
    assert not broken.is_in_use()


def test_a_run_that_ended_before_it_began_says_why(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    broken.note_failure(RuntimeError("the check found that this run would not learn:\n  spread: all earned 1"))
    text = run_why(capsys, "broken", "--runs", str(broken.path.parent))
    assert text.startswith(
        "Run broken (ended before its first step): the check found that this run would not learn: spread: all earned "
        "1\n"
    )


def test_a_run_with_steps_and_no_record_of_them_says_that_it_is_not_known(
    broken: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    async def rewarded() -> None:
        from leyden.core.data import semconv
        from leyden.core.testing import factories

        store = await broken.store_location.open()
        attempt = await store.get_latest_attempt("train-4")
        assert attempt is not None
        ids = {"rollout_id": "train-4", "attempt_id": attempt.attempt_id}
        await store.add_span(factories.span("chat", {semconv.CALL_ID: "c", semconv.NOT_TRAINED: "refused"}, **ids))
        await store.close()

    broken.append_metrics({"step": 1, "reward": 0.5})
    asyncio.run(rewarded())
    text = run_why(capsys, "broken", "--runs", str(broken.path.parent))
    assert "      1  no call left: " in text
    assert "1 model call: 0 trained, 1 not" in text


def test_rollouts_of_another_store_are_told_with_those_of_the_run(
    broken: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    other = RunFolder.create(broken.path.parent, RunConfig(name="other", policy="p"), [{"question": "?"}], {})
    asyncio.run(ran(other, ["well", "raises"], mode="val"))
    broken.note_rollouts("other", ["val-0", "val-1"])
    broken.note_rollouts("sqlite:///nowhere/store.db", ["x", "y", "z"])
    text = run_why(capsys, "broken", "--runs", str(broken.path.parent))
    assert "      2  held out there: " in text
    assert "3 rollouts of sqlite:///nowhere/store.db cannot be read: there is no store" in text


def test_what_cannot_be_told_is_one_line(broken: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ("--runs", str(tmp_path))
    assert "no run 'none'" in refused(capsys, "none", *runs)
    assert "has no rollout 'nothing'; it has 9 rollouts, with ids such as" in refused(
        capsys, "broken", "nothing", *runs
    )
    text = refused(capsys, "broken", "train-", *runs)
    assert "'train-' could be any of 7 rollouts: train-" in text
    assert text.endswith(" and 2 more; give a longer part of the id")
    assert text.count("train-") == 6
    RunFolder.create(tmp_path, RunConfig(name="new", policy="p"), [{"question": "?"}], {})
    assert refused(capsys, "new", *runs) == "leyden: run 'new' has no rollouts: it has not started"


def test_an_empty_run_is_one_line(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    async def empty() -> None:
        await (await folder.store_location.open()).close()

    asyncio.run(empty())
    assert refused(capsys, "broken", "--runs", str(folder.path.parent)) == "leyden: run 'broken' has no rollouts"


def test_looking_at_a_run_changes_nothing_in_it(broken: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in sorted(broken.path.iterdir()) if path.suffix in (".jsonl", ".yaml")}
    run_why(capsys, "broken", "--runs", str(broken.path.parent))

    async def left() -> str:
        store = await broken.store_location.open()
        found = await store.get_rollout_by_id("train-left")
        await store.close()
        return "" if found is None else found.status

    assert asyncio.run(left()) == "queuing"
    assert before == {path: path.read_bytes() for path in before}
