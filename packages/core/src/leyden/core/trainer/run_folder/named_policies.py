"""Policies that a person names on the command line: a Hugging Face model, or a version of a run."""

import tempfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from leyden.core.errors import RunError, UsageError
from leyden.core.trainer.event_loop import ended_by_sigterm, run_loop
from leyden.core.trainer.run_folder.models import Models, export_version, find_version
from leyden.core.trainer.run_folder.versions import ModelVersion


class NamedPolicy(NamedTuple):
    """A policy that a person has named."""

    source: str
    """Its folder or hub name."""
    version: int = 0
    """Its version, if it is one of a run."""


@contextmanager
def policy_sources(given: Mapping[str, str | None], runs: Path) -> Generator[list[NamedPolicy | None]]:
    """Context manager: gives, for each option, the policy that it names; None without one.

    A policy is named as a folder, a hub name, `RUN` (its kept version) or `RUN:VERSION`. The weights of a version are
    written to a folder of temporary files, with adapters merged into them; its first version and the policy that a
    finished run has kept are folders already. Raises UsageError, with the option in one line, for a version without
    weights.
    """
    with ExitStack() as folders:
        known: dict[str | None, NamedPolicy | None] = {None: None}
        for option, named in given.items():
            if named is not None and named not in known:
                try:
                    known[named] = _source(named, runs, folders)
                except RunError as error:
                    raise UsageError(f"{option} {named}: {error}") from None
        yield [known[named] for named in given.values()]


def _source(named: str, runs: Path, folders: ExitStack) -> NamedPolicy:
    if (Path(named) / "config.json").exists() or not _is_version(named, runs):
        return NamedPolicy(named)
    models, version = find_version(runs, named)
    config, folder = models.config, models.folder
    if not config.policies:
        raise RunError("the versions of this run are prompts, without a policy: give them with --a and --b")
    if config.has_names:
        raise RunError(
            f"the run trains several policies ({', '.join(config.policies)}): write them with "
            f"`leyden models export`, and give the folder of one"
        )
    if version.version == 0:
        return NamedPolicy(next(iter(config.policies.values())))
    if _is_kept(models, version):
        return NamedPolicy(str(folder.policy), version.version)
    # the last part of the path is the name of the model that the agent is given
    scratch = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="leyden-policies-")))
    target = scratch / f"{folder.path.name}-{version.version}"
    exported = run_loop(ended_by_sigterm(export_version(models, version, target)))
    return NamedPolicy(str(exported), version.version)


def _is_version(named: str, runs: Path) -> bool:
    """Whether a text names a version of a run: hub names have no colon, and no file `config.yaml`."""
    return ":" in named or any((folder / "config.yaml").exists() for folder in (Path(named), runs / named))


def _is_kept(models: Models, version: ModelVersion) -> bool:
    is_finished = models.folder.report_file.exists() and (models.folder.policy / "config.json").exists()
    return is_finished and version.version == models.kept
