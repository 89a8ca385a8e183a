"""`FolderRun`: a run that is read from its folder, wherever that was copied to."""

import asyncio
from contextlib import suppress
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from leyden.console.expected_end import Plan, expected_end
from leyden.console.runs.folder_facts import FolderFacts, changed, end_files
from leyden.console.runs.metrics_file import Line, MetricsFile, MetricsLines, number
from leyden.console.runs.run import Command, HeldOut, Run, RunItem, Version, held_out_of
from leyden.core.errors import RunError
from leyden.core.masking import mask_text
from leyden.core.policy.update.token_record import PolicyTokens
from leyden.core.store.base import LightningStore
from leyden.core.trainer.run_folder.folder import RunFolder
from leyden.core.trainer.run_folder.report import RunReport
from leyden.core.trainer.run_folder.run_lock import LOCK
from leyden.core.trainer.run_folder.versions import ModelVersion, VersionFile, prompt_texts
from leyden.core.trainer.run_state import RunState, is_process_gone, state_and_reason
from leyden.core.trainer.why.trained_or_reason import RunFacts

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LISTED = frozenset({"name", "experiment", "algorithm", "policy", "agent", "steps"})
"""Settings that the list of runs shows."""


class FolderRun(Run):
    """A run in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self._folder = RunFolder(path)
        self.place, self.name = str(path), path.name
        self._metrics = MetricsFile(self._folder.metrics_file)
        self._store: LightningStore | None = None
        self._config: tuple[object, dict[str, Any]] | None = None
        self._item: tuple[tuple[object, ...], RunItem] | None = None
        self._facts = FolderFacts(self._folder)
        self._expected_end: tuple[tuple[object, ...], float | None] | None = None
        self._identity = _identity(path)
        self._store_inode: int | None = None

    @property
    def path(self) -> Path | None:
        """The run's folder."""
        return self._folder.path

    @property
    def is_process_gone(self) -> bool:
        """Whether the process that trained the run last was one of this machine, and is gone, or recorded its end."""
        return is_process_gone(self._folder)

    @property
    def is_still_there(self) -> bool:
        """Whether the folder is the one that was opened, and its store is the one that was opened."""
        if self._store is not None and _inode(self._folder.store_file) != self._store_inode:
            return False
        return self._identity is not None and _identity(self._folder.path) == self._identity

    async def item(self, key: str) -> RunItem:
        """Return the run as one line. The files are read only if they have changed."""
        folder = self._folder
        in_use = folder.is_in_use()
        stamp = (in_use, *map(changed, (folder.config_file, folder.metrics_file, *end_files(folder))))
        if self._item is None or self._item[0] != stamp:
            self._item = (stamp, self._read_item(key, in_use=in_use))
            await asyncio.sleep(0)  # of a thousand runs: other requests go first
        return self._item[1]

    def _read_item(self, key: str, *, in_use: bool) -> RunItem:
        folder, config, report = self._folder, self._read_settings(_LISTED), self._report_if_readable()
        lines = folder.last_metrics()
        steps = [line for line in lines if "reward" in line and "alert" not in line]
        last: Mapping[str, Any] = steps[-1] if steps else {}
        state, reason = state_and_reason(folder, in_use=in_use)
        began = _time(folder.path / "run_id") or _time(folder.config_file)
        return RunItem(
            key=key,
            name=str(config.get("name", folder.path.name)),
            folder=str(folder.path),
            source=str(folder.path.parent),
            experiment=config.get("experiment"),
            state=state,
            algorithm=config.get("algorithm"),
            policy=policies_line(config.get("policy")),
            endpoint=None if report is None else report.endpoint,
            agent=_agent(config.get("agent")),
            step=int(last.get("step", 0)),
            steps=config.get("steps"),
            reward=number(last.get("reward")),
            held_out=self._held_out(report, lines),
            alerts=[] if report is None else report.alerts,
            began=began,
            updated=_time(folder.metrics_file) or began,
            ended=_ended(folder, state),
            seconds=None if report is None else report.seconds,
            error=reason,
        )

    def _held_out(self, report: RunReport | None, lines: Sequence[Line]) -> list[HeldOut]:
        if report is not None:
            return [
                HeldOut(name=name, tasks=own.tasks, is_share=own.is_share, before=own.before, after=own.after)
                for name, own in report.held_out.items()
            ]
        return held_out_of(lines)

    def _read_config(self) -> dict[str, Any]:
        stamp = changed(self._folder.config_file)
        if self._config is None or self._config[0] != stamp:
            self._config = (stamp, self._read_settings())
        return self._config[1]

    def _read_settings(self, wanted: Container[str] | None = None) -> dict[str, Any]:
        """Return the settings in `config.yaml`, or only those `wanted`, which takes half the time."""
        file = self._folder.config_file
        try:
            loader = _LOADER(file.read_text(encoding="utf-8"))
            node = loader.get_single_node()
            if not isinstance(node, yaml.MappingNode):
                raise RunError(f"{file} holds no mapping")
            if wanted is not None:
                pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
                node.value = [pair for pair in pairs if isinstance(pair[0], yaml.ScalarNode) and pair[0].value in wanted]
            return loader.construct_document(node)
        except (OSError, yaml.YAMLError, ValueError) as error:  # ValueError: for instance, a date that does not exist
            raise RunError(f"{file} cannot be read: {' '.join(str(error).split())}") from None

    async def config(self) -> Mapping[str, Any]:
        """Return `config.yaml`, in which secrets are masked."""
        return self._read_config()

    async def report(self) -> Mapping[str, Any] | None:
        """Return `report.json`."""
        report = self._folder.report()
        return None if report is None else report.written()

    def _report_if_readable(self) -> RunReport | None:
        with suppress(RunError):  # what needs no report is shown without it
            return self._folder.report()
        return None

    async def versions(self) -> Sequence[Version]:
        """Return the versions in `versions.jsonl`."""
        report = self._report_if_readable()
        kept = None if report is None else report.kept
        return [
            _version(one, why=kept.why if kept is not None and kept.version == one.version else None)
            for one in VersionFile(self._folder.path).read().values()
        ]

    async def metrics(self) -> MetricsLines:
        """Return the lines of `metrics.jsonl`."""
        return self._metrics.lines()

    async def expected_end(self) -> float | None:
        """Return when a running run will end, from the versions of its current session."""
        folder, versions = self._folder, VersionFile(self._folder.path)
        if not folder.is_in_use():
            return None
        stamp = (*map(changed, (folder.config_file, folder.metrics_file, versions.path, folder.path / LOCK)),)
        if self._expected_end is None or self._expected_end[0] != stamp:
            config, lines = self._read_config(), self._metrics.lines().lines
            plan = Plan(
                steps=config.get("steps") or 0,
                eval_every=config.get("eval_every") or 0,
                has_held_out=bool(config.get("held_out")),
            )
            began = _time(folder.path / LOCK) or 0.0
            created = {one.version: one.created for one in versions.read().values() if one.created >= began}
            seconds = {int(line["step"]): own for line in lines if (own := number(line.get("seconds"))) is not None}
            evaluated = {int(line["step"]) for line in lines if "held_out" in line}
            self._expected_end = (stamp, expected_end(plan, created, seconds, evaluated))
        return self._expected_end[1]

    async def store(self) -> LightningStore | None:
        """Return the run's store. Its clock stands still: to look at a run must not end what is under way in it."""
        if self._store is None and (location := self._folder.store_location).exists:
            self._store_inode = _inode(self._folder.store_file)
            self._store = await location.open(clock=lambda: 0.0)
        return self._store

    async def facts(self) -> RunFacts:
        """Return what the folder says about which rollouts were trained."""
        return self._facts.read()

    def commands(self) -> Sequence[Command]:
        """Return the commands of `leyden` for the run."""
        command = self._folder.command
        found = [
            Command(what="steps in a terminal", command=command("show")),
            Command(what="why not", command=command("why")),
        ]
        if self._folder.failure() is None and not self._folder.is_in_use() and not self._folder.report_file.exists():
            found.insert(0, Command(what="continue", command=command("train --resume")))
        if self._folder.report_file.exists():
            name = self._folder.path.name
            where = command("show").partition(name)[2]
            found += [
                Command(what="export the kept version", command=f"leyden models export {name} FOLDER{where}"),
                Command(what="roll back", command=f"leyden models rollback {name} VERSION{where}"),
            ]
        return found

    def token_record(self, step: int) -> dict[str, PolicyTokens] | None:
        """Return the record in the run's folder."""
        return self._folder.token_records.read(step)

    async def held_out_tasks(self, name: str) -> Sequence[Any]:
        """Return the tasks that the folder keeps of one of the run's held-out sets."""
        known = [held_out["name"] for held_out in self._read_config().get("held_out") or ()]
        return self._folder.tasks(name) if name in known and self._folder.tasks_file(name).exists() else ()

    async def policy_folders(self) -> Sequence[Path]:
        """Return the exported policy, the policies of checkpoints, and the policies that the run began with."""
        folder, config = self._folder, self._read_config()
        exported = [folder.policy, *sorted(path for path in folder.policy.glob("*") if path.is_dir())]
        policy: str | dict[str, str] | None = config.get("policy")
        begun = [policy] if isinstance(policy, str) else list((policy or {}).values())
        return [
            *exported,
            *(Path(name) for name in begun),
            *sorted(folder.checkpoints.glob("step-*"), reverse=True)[:1],
        ]

    async def close(self) -> None:
        """Close the run's store."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()


def _version(version: ModelVersion, why: str | None) -> Version:
    return Version(
        version=version.version,
        parent=version.parent,
        created=version.created,
        held_out={name: own.success for name, own in version.held_out.items()},
        sampled={name: own.success for name, own in version.sampled.items()},
        has_weights=version.weights is not None,
        kept=why is not None,
        why=why,
        rewards={name: dict(own.rewards) for name, own in version.held_out.items()},
        texts=prompt_texts(version),
    )


def policies_line(policy: str | dict[str, str] | None) -> str | None:
    """Return the policies of a configuration as one line."""
    if isinstance(policy, dict):
        return ", ".join(f"{name}={source}" for name, source in policy.items())
    return None if policy is None else str(policy)


def _agent(agent: str | list[str] | None) -> str | None:
    if isinstance(agent, list):
        return mask_text(" ".join(map(str, agent)))
    return agent


def _ended(folder: RunFolder, state: RunState) -> float | None:
    """Return when the end of a run was recorded; None if none was."""
    files: dict[RunState, Path] = {
        "finished": folder.report_file,
        "failed": folder.session_error_file,
        "stopped": folder.session_stop_file,
        "ended before its first step": folder.failed_file,
    }
    return _time(files[state]) if state in files else None


def _identity(path: Path) -> tuple[str, int] | None:
    """Return what differs for another run's folder at the same path; None without a folder.

    It is the time at which the run got its id. A run of an older version has none: then it is the folder's inode.
    """
    written = changed(path / "run_id")
    if written is not None:
        return "run_id", written[0]
    inode = _inode(path)
    return None if inode is None else ("folder", inode)


def _inode(path: Path) -> int | None:
    found = changed(path)
    return None if found is None else found[2]


def _time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
