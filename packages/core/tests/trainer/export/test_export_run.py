"""Exports of a real store, read back by the libraries that they are for."""

import asyncio
import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leyden.core.cli.main import run
from leyden.core.data import semconv
from leyden.core.data.encoding.tokens import pack_ids, pack_log_probs
from leyden.core.data.rollout import EnqueueRollout
from leyden.core.data.run import PolicyVersion, Run, StepMetrics
from leyden.core.data.span import Attributes
from leyden.core.errors import UsageError
from leyden.core.store.base import LightningStore
from leyden.core.store.open import open_store
from leyden.core.testing.factories import span
from leyden.core.trainer.config import RunConfig
from leyden.core.trainer.export import table_files
from leyden.core.trainer.export.export import MANIFEST, TABLES, Exported, export_run
from leyden.core.trainer.export.rows import COLUMNS, RECORDS
from leyden.core.trainer.export.table_files import Format
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.sharing.shared_runs import place_of_run

CALL: Attributes = {
    semconv.CALL_ID: "call-1",
    semconv.AGENT_NAME: "writer",
    semconv.NODE: "draft",
    semconv.POLICY: "policy",
    semconv.POLICY_VERSION: 4,
    semconv.PROMPT_IDS: pack_ids([5, 6, 7]),
    semconv.RESPONSE_IDS: pack_ids([8, 9]),
    semconv.RESPONSE_LOGPROBS: pack_log_probs([-0.5, -1.0]),
    semconv.SAMPLING_LOGPROBS: pack_log_probs([-0.25, -2.0]),
    semconv.SAMPLING_USED: "{}",
    semconv.OUTPUT_MESSAGES: '[{"role": "assistant", "content": "Yes."}]',
}


async def filled(path: Path, count: int = 2, prompt: int = 3) -> str:
    """Fill a store with `count` rollouts that made a call and earned something, and one that waits; return its URI."""
    uri = f"sqlite:///{path}"
    store = await open_store(uri)
    await store.enqueue_many_rollouts([EnqueueRollout(input={"q": n}, rollout_id=f"r{n}") for n in range(count + 1)])
    for claim in await store.dequeue_many_rollouts(limit=count):
        await finished(store, claim.rollout_id, claim.attempt.attempt_id, prompt)
    await store.close()
    return uri


async def finished(store: LightningStore, rollout_id: str, attempt_id: str, prompt: int) -> None:
    ids: dict[str, Any] = {"rollout_id": rollout_id, "attempt_id": attempt_id, "sequence_id": 0}
    call: Attributes = {**CALL, semconv.PROMPT_IDS: pack_ids(range(5, 5 + prompt))}
    reward: Attributes = {semconv.REWARD_VALUE: 0.5, f"{semconv.REWARD_DIMENSION}format": 1.0}
    spans = [
        span("invoke_agent", {"packed": b"\x00\x01", "n": 1}, span_id="a" * 16, **ids),
        span("chat", call, span_id="b" * 16, parent_id="a" * 16, **ids),
        span(semconv.REWARD, reward, span_id="c" * 16, **ids),
    ]
    await store.add_many_spans(spans)
    await store.update_attempt(rollout_id, attempt_id, status="succeeded")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_json_lines_hold_every_table_and_need_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    uri = await filled(tmp_path / "store.db")
    to = tmp_path / "out" / "there"
    progress: list[tuple[int, int]] = []
    exported = await export_run(uri, to, format="jsonl", progress=lambda done, of: progress.append((done, of)))
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert exported.rows == {"rollouts": 3, "spans": 6, "transitions": 2}
    assert msgspec.json.decode((to / MANIFEST).read_bytes(), type=Exported) == exported
    rollouts, spans, transitions = (lines(to / f"{table}.jsonl") for table in TABLES)
    for table, rows in zip(TABLES, (rollouts, spans, transitions), strict=True):
        assert all(list(row) == list(COLUMNS[table]) for row in rows)
    assert [(row["rollout_id"], row["status"], row["reward"], row["attempts"]) for row in rollouts] == [
        ("r0", "succeeded", 0.5, 1),
        ("r1", "succeeded", 0.5, 1),
        ("r2", "queuing", None, 0),
    ]
    assert (rollouts[0]["input"], rollouts[0]["reward_dimensions"]) == ('{"q":0}', '{"format":1.0}')
    agent, call, reward = spans[:3]
    assert json.loads(agent["attributes"]) == {"packed": "AAE=", "n": 1}
    assert (call["prompt_ids"], call["response_ids"], call["logprobs"]) == ([5, 6, 7], [8, 9], [-0.5, -1.0])
    assert semconv.PROMPT_IDS not in call["attributes"] and semconv.CALL_ID in call["attributes"]
    assert (reward["name"], reward["reward"], reward["attempt_status"]) == (semconv.REWARD, 0.5, "succeeded")
    made = transitions[0]
    assert (made["agent"], made["node"], made["policy_version"], made["policy_versions"]) == (
        "writer",
        "draft",
        4,
        [4, 2],
    )
    assert (made["prompt_ids"], made["response_ids"], made["logprobs"]) == ([5, 6, 7], [8, 9], [-0.25, -2.0])
    assert (made["turn"], made["reward"], made["output_messages"]) == (0, 0.5, CALL[semconv.OUTPUT_MESSAGES])


@pytest.mark.parametrize("format", ["parquet", "datasets", "jsonl"])
async def test_a_capture_whose_calls_are_not_all_recorded_is_marked_in_every_table(
    tmp_path: Path, format: Format
) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(uri)
    for rollout_id, mark in (("r0", "complete"), ("r1", "incomplete"), ("r2", None), ("r3", "nonsense")):
        rollout = await store.start_rollout("x", metadata={"capture": "production"})
        ids = rollout.rollout_id, rollout.attempt.attempt_id
        await finished(store, *ids, 3)
        await store.update_attempt(*ids, metadata={} if mark is None else {"capture": mark, "of": rollout_id})
    await store.close()
    await export_run(uri, tmp_path / "out", format=format)
    for table in TABLES:
        if format == "jsonl":
            rows = lines(tmp_path / "out" / f"{table}.jsonl")
        else:
            parquet: Any = pytest.importorskip("pyarrow.parquet")
            file = f"{table}.parquet" if format == "parquet" else f"{table}/train.parquet"
            rows = parquet.read_table(tmp_path / "out" / file).to_pylist()
        marks = list(dict.fromkeys((row["rollout_id"], row["capture"]) for row in rows))
        assert [mark for _, mark in marks] == ["complete", "incomplete", None, None]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
async def test_what_a_store_knows_of_runs_is_exported_without_any_rollout(tmp_path: Path, format: Format) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(uri)
    for run_id in ("a", "b"):
        await store.add_run(Run(run_id=run_id, name="r", config={"steps": 2}))
        steps = [StepMetrics(step=n, values={"loss": n / 2}, notes={"alert": "!"} if n else {}) for n in range(2)]
        await store.add_metrics(run_id, steps)
        await store.add_policy_versions([PolicyVersion(run_id=run_id, version=3, path="p", metrics={"reward": 1.0})])
    await store.close()
    to = tmp_path / "out"
    exported = await export_run(uri, to, format=format, what=RECORDS)
    assert exported.rows == {"runs": 2, "metrics": 6, "policy_versions": 2, "candidates": 0}
    if format == "parquet":
        parquet: Any = pytest.importorskip("pyarrow.parquet")
        runs, metrics, versions, _ = (parquet.read_table(to / f"{table}.parquet").to_pylist() for table in RECORDS)
    else:
        runs, metrics, versions, _ = (lines(to / f"{table}.jsonl") for table in RECORDS)
    for table, rows in zip(RECORDS[:3], (runs, metrics, versions), strict=True):
        assert all(sorted(row) == sorted(COLUMNS[table]) for row in rows)
    assert [(row["run_id"], row["config"]) for row in runs] == [("a", '{"steps":2}'), ("b", '{"steps":2}')]
    found = [(row["step"], row["name"], row["value"], row["note"]) for row in metrics[:3]]
    assert found == [(0, "loss", 0.0, None), (1, "loss", 0.5, None), (1, "alert", None, "!")]
    assert (versions[1]["run_id"], versions[1]["version"], versions[1]["metrics"]) == ("b", 3, '{"reward":1.0}')


async def test_candidates_of_a_search_are_exported_as_the_last_note_describes_them(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(uri)
    await store.start_rollout("t")
    await store.add_run(Run(run_id="a", name="r", config={"endpoint": {"url": "http://127.0.0.1:9/v1"}}))
    first = {"number": 0, "texts": {"s": "long " * 40_000}, "resources_id": "rs-0"}
    second = {"number": 1, "texts": {"s": "b"}, "parents": [0], "changed": ["s"], "origin": "reflection", "step": 1}
    notes = [
        {"candidate/0": json.dumps(first), "candidate/1": json.dumps(second), "prompt/s": "b"},
        {"candidate/1": json.dumps({**second, "scores": {"train/0": 0.5, "train/1": 1.0}, "resources_id": "rs-1"})},
    ]
    steps = [StepMetrics(step=at, values={"best": float(at)}, notes=each) for at, each in enumerate(notes)]
    await store.add_metrics("a", steps)
    await store.close()
    exported = await export_run(uri, tmp_path / "out", format="jsonl")
    assert exported.rows == {"rollouts": 1, "spans": 0, "transitions": 0, "candidates": 2}
    rows = lines(tmp_path / "out/candidates.jsonl")
    assert all(list(row) == list(COLUMNS["candidates"]) for row in rows)
    assert json.loads(rows[0]["texts"]) == first["texts"]
    assert [(row["number"], row["resources_id"], row["score"], row["best"]) for row in rows] == [
        *((0, "rs-0", None, 0), (1, "rs-1", 0.75, 1)),
    ]
    assert (rows[1]["parents"], rows[1]["step"], rows[1]["run_id"]) == ([0], 1, "a")


@pytest.mark.parametrize("by", ["address", "name"])
async def test_a_run_of_a_shared_store_is_exported_without_the_records_of_others(tmp_path: Path, by: str) -> None:
    uri, ids = f"sqlite:///{tmp_path}/shared.db", dict[str, str]()
    store = await open_store(uri)
    for name in ("calc", "other"):
        folder = RunFolder.create(tmp_path / "runs", RunConfig(name=name, policy="p", store=uri), [{"n": 1}], {})
        run_id = ids[name] = folder.run_id(name)
        config = {"store": uri, "endpoint": {"url": "http://127.0.0.1:9/v1"}}
        await store.add_run(Run(run_id=run_id, name=name, config=config, metadata=place_of_run(folder.path, None)))
        await store.enqueue_rollout(name, queue=run_id)
        candidate = json.dumps({"number": 0, "texts": {"s": "b"}})
        await store.add_metrics(run_id, [StepMetrics(step=0, values={"loss": 1.0}, notes={"candidate/0": candidate})])
        await store.add_policy_versions([PolicyVersion(run_id=run_id, version=0, path="p")])
    await store.close()
    source, to = f"{uri}#calc" if by == "address" else "calc", tmp_path / "out"
    exported = await export_run(source, to, format="jsonl", what=("rollouts", *RECORDS), runs=tmp_path / "runs")
    assert exported.rows == {"rollouts": 1, "runs": 1, "metrics": 2, "policy_versions": 1, "candidates": 1}
    assert {row["run_id"] for table in RECORDS for row in lines(to / f"{table}.jsonl")} == {ids["calc"]}
    everything = await export_run(uri, tmp_path / "all", format="jsonl", what=("rollouts", *RECORDS))
    assert everything.rows == {"rollouts": 2, "runs": 2, "metrics": 4, "policy_versions": 2, "candidates": 2}


@pytest.mark.parametrize("format", ["datasets", "parquet", "jsonl"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
async def test_every_format_is_read_by_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets: Any = pytest.importorskip("datasets")
    to, cache = tmp_path / "out", str(tmp_path / "cache")
    await export_run(await filled(tmp_path / "store.db"), to, format=format)
    for table in TABLES:
        if format == "datasets":
            found = datasets.load_dataset(str(to), table, split="train", cache_dir=cache)
        else:
            kind, file = ("json", f"{table}.jsonl") if format == "jsonl" else ("parquet", f"{table}.parquet")
            found = datasets.load_dataset(kind, data_files=str(to / file), split="train", cache_dir=cache)
        assert found.column_names == list(COLUMNS[table])
        row = found[1]
        if table != "rollouts":
            assert row["prompt_ids"] == [5, 6, 7]
            assert row["policy_version"] == 4
            assert (found[0]["prompt_ids"] is None) == (table == "spans")
            assert [type(number) for number in row["logprobs"]] == [float, float]
        else:
            assert (row["rollout_id"], row["reward"], found[2]["reward"]) == ("r1", 0.5, None)


async def test_one_table_alone_and_an_older_export_replaced(tmp_path: Path) -> None:
    uri = await filled(tmp_path / "store.db")
    to = tmp_path / "out"
    for replace in (False, True):
        exported = await export_run(uri, to, format="jsonl", what=["rollouts"], replace=replace)
        assert exported.rows == {"rollouts": 3}
        assert sorted(path.name for path in to.iterdir()) == [MANIFEST, "rollouts.jsonl"]
        assert lines(to / "rollouts.jsonl")[0]["reward"] == 0.5
    with pytest.raises(UsageError, match="already exists"):
        await export_run(uri, to, format="jsonl")
    (to / MANIFEST).unlink()
    with pytest.raises(UsageError, match="not an export"):
        await export_run(uri, to, format="jsonl", replace=True)
    assert (to / "rollouts.jsonl").exists()


def test_calls_that_are_no_transitions_are_counted_by_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CALL, semconv.SAMPLING_USED, '{"temperature":0.0}')
    uri = asyncio.run(filled(tmp_path / "store.db"))
    assert run(["export", uri, "--to", str(tmp_path / "out"), "--format", "jsonl"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["model calls that are no transitions: sampling not trainable 2"]
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["left_out"] == {"sampling not trainable": 2}
    assert run(["export", uri, "--to", str(tmp_path / "two"), "--format", "jsonl", "--what", "spans"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


async def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = await filled(tmp_path / "store.db")
    (tmp_path / ".writing-out-killed").mkdir()  # as a process leaves it that is killed while it exports

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"cannot write .*out: No space left"):
        await export_run(uri, tmp_path / "out", format="jsonl", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir() if "store" not in path.name) == []
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"leyden-core\[export\]"):
        await export_run(uri, tmp_path / "out")
    assert not (tmp_path / "out").exists()


async def test_what_is_under_way_is_not_ended_by_reading_it(tmp_path: Path) -> None:
    uri = await filled(tmp_path / "store.db")
    store = await open_store(uri, clock=lambda: 100.0)
    claim = await store.dequeue_rollout()
    assert claim is not None
    await export_run(uri, tmp_path / "out", format="jsonl")
    found = await store.get_rollout_by_id(claim.rollout_id)
    await store.close()
    assert found == claim
    assert lines(tmp_path / "out/rollouts.jsonl")[2]["attempt_status"] == "preparing"


async def test_memory_does_not_grow_with_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "BATCH_BYTES", 1 << 16)
    peaks: list[int] = []
    await export_run(await filled(tmp_path / "first.db"), tmp_path / "first")  # loads the libraries
    for count in (20, 200):
        uri = await filled(tmp_path / f"{count}.db", count, prompt=4000)
        tracemalloc.start()
        await export_run(uri, tmp_path / f"out-{count}", what=["spans", "transitions"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 180 * 4 * 4000 / 4  # the prompts alone are four times that


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "--to", "out"], "no run 'nowhere'"),
        (["STORE", "--to", "out", "--format", "csv"], "unknown format 'csv'; use one of parquet, datasets, jsonl"),
        (
            ["STORE", "--to", "out", "--what", "rewards"],
            "unknown table 'rewards'; use some of rollouts, spans, transitions",
        ),
        (["STORE", "--to", "."], "already exists"),
        (["EMPTY", "--to", "out"], "there are no rollouts in"),
    ],
)
async def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    await (await open_store("sqlite:///empty.db")).close()
    given = {"STORE": await filled(tmp_path / "store.db"), "EMPTY": "sqlite:///empty.db"}
    code = await asyncio.to_thread(run, ["export", *(given.get(word, word) for word in arguments)])
    error = capfd.readouterr().err.strip()
    assert (code, error.count("\n")) == (2, 0)
    assert says in error
    assert not (tmp_path / "out").exists()
