import json
import logging
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from leyden.core.errors import UsageError
from leyden.core.trainer.monitoring import trackers
from leyden.core.trainer.monitoring.trackers import TRACKERS, Tracker, Trackers, numbers, open_trackers, tracker_names

pytestmark = [
    pytest.mark.keeps("descriptor", "MLflow keeps the database of each tracking URI open"),
    pytest.mark.keeps("file", "Weights & Biases keeps two temporary folders"),
]

STEPS: list[dict[str, Any]] = [
    {"step": 1, "reward": 0.25, "note": "text", "held_out/few (a)/success": 1},
    {"step": 2, "reward": 0.5, "entropy": float("nan")},
]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trackers set in the environment is theirs for the process's life; a test's ends with it."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def log_twice(folder: Path, *names: str, **settings: str) -> None:
    """Two sessions, of a step each."""
    for number, line in enumerate(STEPS, 1):
        opened = open_trackers(names, folder, "mine", {"steps": 2, "policy": "tiny", **settings})
        opened.log(number, line)
        opened.log_texts(number, {"prompt/a.b c": f"# step {number}\n```"})
        opened.close()


SESSION = """
import json, pathlib, sys
from leyden.core.trainer.monitoring.trackers import open_trackers
settings = {"steps": 2, "policy": "tiny", "experiment": "rates"}
opened = open_trackers(("wandb",), pathlib.Path(sys.argv[1]), "mine", settings)
opened.log(int(sys.argv[2]), json.loads(sys.argv[3]))
opened.log_texts(int(sys.argv[2]), {"prompt/a.b c": "# step " + sys.argv[2]})
opened.close()
"""
"""As in real runs, a process of its own: W&B's service still ends a run for a while after it was finished."""


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    accumulator: Any = import_module("tensorboard.backend.event_processing.event_accumulator")
    log_twice(tmp_path, "tensorboard")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["held_out/few (a)/success", "reward"]
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 0.25), (2, 0.5)]
    texts = [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors("prompt/a.b c")]
    assert texts == [(step, f"    # step {step}\n    ```\n") for step in (1, 2)], "as code, not as Markdown"
    assert events.SummaryMetadata("prompt/a.b c").plugin_data.plugin_name == "text"


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of SQLAlchemy's about MLflow's own tables
def test_mlflow_reads_back_one_run_of_both_sittings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="leyden-core[mlflow] is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    log_twice(tmp_path, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=trackers.local_uri(tmp_path / "mlflow"))
    experiment = client.get_experiment_by_name("leyden")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params == {"steps": "2", "policy": "tiny"}
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "reward")] == [(1, 0.25), (2, 0.5)]
    assert "held_out/few _a_/success" in run.data.metrics
    assert "entropy" not in run.data.metrics
    [file] = (tmp_path / "mlflow").rglob("*.txt")
    assert (file.parent.name, file.name, file.read_text()) == ("prompt", "a.b_c.txt", "# step 2\n```")


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.parametrize(("variable", "wanted"), [(None, "rates"), ("theirs", "theirs")])
def test_a_runs_experiment_is_mlflows_unless_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, wanted: str
) -> None:
    mlflow: Any = pytest.importorskip("mlflow", reason="leyden-core[mlflow] is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    if variable is not None:
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", variable)
    log_twice(tmp_path, "mlflow", experiment="rates")
    client = mlflow.MlflowClient(tracking_uri=trackers.local_uri(tmp_path / "mlflow"))
    assert client.get_experiment_by_name("leyden") is None
    (run,) = client.search_runs([client.get_experiment_by_name(wanted).experiment_id])
    assert run.data.params["experiment"] == "rates"


@pytest.mark.integration
def test_wandb_stays_offline_and_keeps_one_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="leyden-core[wandb] is not installed")
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for number, line in enumerate(STEPS, 1):
        arguments = [str(tmp_path), str(number), json.dumps(line)]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # it leaves folders there
        subprocess.run([sys.executable, "-c", SESSION, *arguments], check=True, env=environment)
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.stem for file in files}) == 1, "both sessions are one run"
    records = [record for file in files for record in wandb_records(file)]
    histories = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
    ]
    rows = [row for row in histories if "reward" in row]
    assert sorted((row["step"], row["reward"]) for row in rows) == [(1, 0.25), (2, 0.5)]
    assert [row["prompt/a.b c"] for row in histories if "prompt/a.b c" in row] == ["# step 1", "# step 2"]
    assert {record.run.run_group for record in records if record.HasField("run")} == {"rates"}


def wandb_records(file: Path) -> Iterator[Any]:
    """What is in W&B's own file: a header of 7 bytes, then LevelDB's log format around protobuf records."""
    internal: Any = import_module("wandb.proto.wandb_internal_pb2")
    data, at = file.read_bytes(), 7
    while at + 7 <= len(data):
        _, length, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1, "a record in one piece"
        yield internal.Record.FromString(data[at + 7 : at + 7 + length])
        at += 7 + length


@pytest.mark.parametrize("name", sorted(TRACKERS))
def test_a_missing_package_names_the_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tensorboard.compat.proto.event_pb2", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=rf"tracker {name} needs `pip install leyden-core\[{name}\]`"):
        open_trackers(name, tmp_path)


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown tracker 'ledger'; use one of mlflow, tensorboard, wandb"):
        open_trackers(("tensorboard", "ledger"), tmp_path)
    assert not list(tmp_path.iterdir()), "nothing was opened"


def test_names_are_given_alone_or_several_each_once() -> None:
    assert tracker_names(None) == ()
    assert tracker_names("mlflow") == ("mlflow",)
    assert tracker_names(["wandb", "mlflow", "wandb"]) == ("wandb", "mlflow")


def test_only_finite_numbers_are_logged() -> None:
    given = {"step": 3, "a": 1, "b": 0.5, "c": float("inf"), "d": "x", "e": None, "f": True}
    assert numbers(given) == {"a": 1.0, "b": 0.5, "f": 1.0}


class Noted(Tracker):
    extra = "noted"

    def __init__(self, fails: bool) -> None:
        self.fails, self.calls = fails, list[str]()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append(f"log {step}")
        if self.fails:
            raise ConnectionError("nobody is there")

    def close(self, *, failed: bool = False) -> None:
        self.calls.append(f"close {failed}")


def test_a_tracker_that_fails_is_told_of_once_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Noted(fails=True), Noted(fails=False)
    both = Trackers([bad, good])
    with caplog.at_level(logging.WARNING):
        both.log(1, {})
        both.log(2, {})
        both.close(failed=True)
    assert bad.calls == ["log 1"]
    assert good.calls == ["log 1", "log 2", "close True"]
    (message,) = caplog.messages
    assert "tracker noted failed in log" in message
    assert "nobody is there" in message


def test_what_was_opened_is_closed_when_the_next_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Noted(fails=False)

    def open_first(*_: object) -> Noted:
        return first

    def refuse(*_: object) -> Noted:
        raise UsageError("not installed")

    monkeypatch.setattr(trackers, "TRACKERS", {"first": open_first, "second": refuse})
    with pytest.raises(UsageError, match="not installed"):
        open_trackers(("first", "second"), tmp_path)
    assert first.calls == ["close True"]
