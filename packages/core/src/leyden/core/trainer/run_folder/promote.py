"""Promote a version: make it the one that a run's name stands for, and that `policy/` and `prompts/` hold."""

import shutil

import msgspec

from leyden.core.errors import RunError
from leyden.core.trainer.run_folder.models import Models, policies_of
from leyden.core.trainer.run_folder.prompts.files import export_prompts
from leyden.core.trainer.run_folder.report import HeldOutResult, KeptVersion, RunReport
from leyden.core.trainer.run_folder.versions import ModelVersion
from leyden.core.trainer.run_folder.weights import export_policies


class Promoted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a promotion."""

    run: str
    version: int
    before: int
    """Version that was kept before."""


def promote(models: Models, version: ModelVersion) -> Promoted:
    """Write `version` of a finished run into `policy/` and `prompts/`, and name it in `report.json` as the kept one.

    If the process is killed meanwhile, the next promotion repeats all of it. Raises RunError if the run is not finished
    or is being trained, if the version's weights are not kept, and for a run with several sides.
    """
    folder, name, before = models.folder, models.folder.path.name, models.kept
    if models.config.sides:
        raise RunError(f"run {name!r} trains {' and '.join(models.config.sides)}: only a run with one side is promoted")
    with folder.locked():
        report = folder.report()
        if report is None:
            raise RunError(f"run {name!r} is not finished: it keeps no version yet")
        if version.version == before:
            raise RunError(f"version {before} is already the one that run {name!r} keeps")
        if models.config.policies:
            _write_policies(models, version)
        export_prompts(version.resources, folder.prompts)
        folder.write_report(_changed_report(report, models, version))
    return Promoted(run=name, version=version.version, before=before)


def _write_policies(models: Models, version: ModelVersion) -> None:
    folder = models.folder
    export_policies(policies_of(models, version), models.config, folder.policy)
    shutil.rmtree(folder.last_policy, ignore_errors=True)
    last = models.versions[models.last]
    if last.version != version.version and last.weights is not None:
        export_policies(policies_of(models, last), models.config, folder.last_policy)


def _changed_report(report: RunReport, models: Models, version: ModelVersion) -> RunReport:
    """Return the report with the results of `version` as those after training; None where it was not evaluated."""
    why = "chosen with leyden models promote"
    if version.version != models.last and models.config.policies:
        why += f"; the last one, {models.last}, is in policy-last/"
    first = next(iter(report.held_out), None)
    own = None if first is None else version.held_out.get(first)
    held_out = {
        name: HeldOutResult(
            tasks=result.tasks,
            is_share=result.is_share,
            before=result.before,
            sampled_before=result.sampled_before,
            dimensions={field: means for field, means in result.dimensions.items() if field.endswith("before")},
        )
        for name, result in report.held_out.items()
    }
    changed = msgspec.structs.replace(
        report,
        held_out=held_out,
        success_after=None,
        sampled_after=None,
        kept=KeptVersion(version=version.version, success=None if own is None else own.success, why=why),
    )
    changed.note_held_out(
        "after",
        {name: own for name, own in version.held_out.items() if name in held_out},
        {name: own for name, own in version.sampled.items() if name in held_out},
    )
    return changed
