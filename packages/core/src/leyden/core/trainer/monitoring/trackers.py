"""Experiment trackers: send the metrics of each step to other tools. One class per tool, in a registry dictionary.

Each tracker writes into the run's `trackers/` folder. Data leaves the machine only if the user's environment requests
it, for example by `WANDB_MODE` or `MLFLOW_TRACKING_URI`.
"""

import logging
import math
import os
import re
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from leyden.core.errors import UsageError
from leyden.core.masking import mask_text

log = logging.getLogger(__name__)


class Tracker(ABC):
    """Tracker of the run `name`: receives the metrics of each step.

    `settings` is the run's configuration as plain values.
    """

    extra: str
    """Name of the extra of `leyden-core` that installs the tool."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.folder, self.name, self.settings = folder, name, settings

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record those metrics that are numbers."""

    def log_text(self, step: int, name: str, text: str) -> None:  # noqa: B027 -- a tool may have no place for texts
        """Record a text, such as a prompt, that takes the place of the one with the same name."""

    @abstractmethod
    def close(self, *, failed: bool = False) -> None:
        """Write buffered data; `failed` states whether the session failed."""

    def load(self, module: str) -> Any:
        """Import the tool's module; raises UsageError that names the extra if it is not installed."""
        try:
            return import_module(module)
        except ImportError:
            raise UsageError(f"tracker {self.extra} needs `pip install leyden-core[{self.extra}]`") from None


class TensorBoardTracker(Tracker):
    """Tracker for TensorBoard: writes event files in `tensorboard/`."""

    extra = "tensorboard"

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(folder, name, settings)
        events = self.load("tensorboard.compat.proto.event_pb2")
        summaries = self.load("tensorboard.compat.proto.summary_pb2")
        files = self.load("tensorboard.summary.writer.event_file_writer")
        self._event, self._summary = events.Event, summaries.Summary
        self._writer = files.EventFileWriter(str(folder / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write one scalar for each metric that is a number."""
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in numbers(metrics).items()]
        self._add(step, self._summary(value=values))

    def log_text(self, step: int, name: str, text: str) -> None:
        """Write the text for the text page, which would otherwise read it as Markdown."""
        as_code = "".join(f"    {line}\n" for line in text.split("\n"))
        self._add(step, self.load("tensorboard.plugins.text.summary_v2").text_pb(name, as_code))

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=summary))

    def close(self, *, failed: bool = False) -> None:
        """Close the event file, which flushes it."""
        self._writer.close()


class WandbTracker(Tracker):
    """Tracker for Weights & Biases: writes in `wandb/`, offline unless `WANDB_MODE` is set.

    Each session is an offline run with the same id, so that `wandb sync` merges them into one. The x-axis is the metric
    `step`, because W&B's own step counter cannot go back when steps are repeated.
    """

    extra = "wandb"

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(folder, name, settings)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        wandb = self.load("wandb")
        tracker_folder = folder / "wandb"
        tracker_folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        with _masked_arguments():  # W&B stores the command line
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "leyden"),
                name=name,
                group=os.environ.get("WANDB_RUN_GROUP") or settings.get("experiment"),
                id=read_or_create(tracker_folder / "run_id", lambda: secrets.token_hex(4)),
                dir=str(folder),
                mode=mode,
                resume=None if mode == "offline" else "allow",
                config=dict(settings),
                settings=wandb.Settings(
                    console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
                ),
            )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers as one row of the history."""
        self._run.log({**numbers(metrics), "step": step})

    def log_text(self, step: int, name: str, text: str) -> None:
        """Write the text as a value of the history; the run's summary has the last one."""
        self._run.log({name: text, "step": step})

    def close(self, *, failed: bool = False) -> None:
        """End this session's W&B run."""
        self._run.finish(exit_code=1 if failed else 0)


@contextmanager
def _masked_arguments() -> Generator[None]:
    """Context manager: masks secrets in `sys.argv`."""
    given = sys.argv
    sys.argv = [mask_text(word) for word in given]
    try:
        yield
    finally:
        sys.argv = given


class MLflowTracker(Tracker):
    """Tracker for MLflow: writes in `mlflow/`, or to `MLFLOW_TRACKING_URI`.

    The MLflow experiment is `MLFLOW_EXPERIMENT_NAME`, else the run's experiment, else `leyden`. All sessions of a run
    are one MLflow run.
    """

    extra = "mlflow"

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__(folder, name, settings)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        mlflow, entities = self.load("mlflow"), self.load("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        tracker_folder = folder / "mlflow"
        tracker_folder.mkdir(parents=True, exist_ok=True)
        self._metric: Any = entities.Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI") or local_uri(tracker_folder)
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self._id: str = read_or_create(
            tracker_folder / "run_id", lambda: self._begin(tracker_folder, mlflow.exceptions.MlflowException)
        )
        self._client.update_run(self._id, status="RUNNING")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers in one call."""
        now = int(time.time() * 1000)
        named = {re.sub(r"[^\w\-. :/]", "_", key): value for key, value in numbers(metrics).items()}
        values = [self._metric(key, value, now, step) for key, value in named.items()]
        self._client.log_batch(self._id, metrics=values)

    def log_text(self, step: int, name: str, text: str) -> None:
        """Write the text as an artifact, which replaces the one of an earlier step."""
        folder, _, own = name.partition("/")
        file = re.sub(r"[^\w.-]", "_", own)
        self._client.log_text(self._id, text, f"{folder}/{file}.txt")

    def close(self, *, failed: bool = False) -> None:
        """Record whether the session failed or finished."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _begin(self, tracker_folder: Path, failure: type[Exception]) -> str:
        named = self.settings.get("experiment") or "leyden"
        experiment: str = os.environ.get("MLFLOW_EXPERIMENT_NAME", named)
        found = self._client.get_experiment_by_name(experiment)
        artifacts = None if "MLFLOW_TRACKING_URI" in os.environ else tracker_folder.resolve().as_uri()
        home = found.experiment_id if found else self._client.create_experiment(experiment, artifacts)
        run: str = self._client.create_run(home, run_name=self.name).info.run_id
        for key, value in self.settings.items():
            with suppress(failure):  # a value that exceeds a server's limit must not stop the training
                self._client.log_param(run, key, value)
        return run


TRACKERS: dict[str, type[Tracker]] = {
    "mlflow": MLflowTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}


class Trackers:
    """Group of trackers, used like one.

    A tracker that fails is logged once and removed; the run continues without it.
    """

    def __init__(self, trackers: Sequence[Tracker] = ()) -> None:
        self._trackers = list(trackers)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the metrics to each tracker."""
        self._each("log", lambda tracker: tracker.log(step, metrics))

    def log_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Send texts by name to each tracker."""
        for name, text in texts.items():
            self._each("log_text", partial(_log_text, step=step, name=name, text=text))

    def close(self, *, failed: bool = False) -> None:
        """Close all trackers; nothing can be logged afterwards."""
        self._each("close", lambda tracker: tracker.close(failed=failed))
        self._trackers.clear()

    def _each(self, what: str, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:
                log.warning("tracker %s failed in %s and is not used from now on: %s", tracker.extra, what, error)
                self._trackers.remove(tracker)


def _log_text(tracker: Tracker, step: int, name: str, text: str) -> None:
    tracker.log_text(step, name, text)


def open_trackers(
    names: str | Sequence[str] | None, folder: Path, name: str = "run", settings: Mapping[str, Any] | None = None
) -> Trackers:
    """Open the named trackers. Raises UsageError for a name that is not registered or not installed.

    The trackers write into `folder`. `name` is the run's name. `settings` are recorded and must not contain secrets.
    """
    chosen = tracker_names(names)
    opened: list[Tracker] = []
    try:
        for chosen_name in chosen:
            opened.append(TRACKERS[chosen_name](folder, name, settings or {}))
    except BaseException:
        Trackers(opened).close(failed=True)
        raise
    return Trackers(opened)


def tracker_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names as a tuple without duplicates; raises UsageError for a name that is not registered."""
    given = (names,) if isinstance(names, str) else tuple(names or ())
    for name in given:
        if name not in TRACKERS:
            raise UsageError(f"unknown tracker {name!r}; use one of {', '.join(sorted(TRACKERS))}")
    return tuple(dict.fromkeys(given))


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those metrics that are finite numbers, without `step`, which trackers record separately."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value) and name != "step"
    }


def local_uri(folder: Path) -> str:
    """Return the default URI of MLflow's database."""
    return f"sqlite:///{folder.resolve() / 'mlflow.db'}"


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """Return the content of the file `path`; if it does not exist, write the result of `make` first."""
    if not path.exists():
        path.write_text(make())
    return path.read_text()
