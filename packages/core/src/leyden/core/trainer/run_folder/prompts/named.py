"""Prompts that a person names on the command line: a prompt file, a prompt template's file, or a version of a run."""

from collections.abc import Sequence
from pathlib import Path

from leyden.core.data.resources import NamedResources, PromptTemplate
from leyden.core.errors import PromptError, RunError, UsageError
from leyden.core.trainer.config import check_prompt_name
from leyden.core.trainer.prompt_file import read_prompts
from leyden.core.trainer.run_folder.models import Models, find_version
from leyden.core.trainer.run_folder.prompts.files import read_prompt
from leyden.core.trainer.run_folder.versions import ModelVersion

EDITS = "prompts"
"""Name of the prompt edits of a file among the resources."""
YAML = (".yaml", ".yml")


def is_prompt_file(named: str) -> bool:
    """Whether a text names a file, not a version of a run."""
    path = Path(named)
    return path.suffix in YAML or path.is_file()


def read_variant(given: Sequence[str], runs: Path, option: str) -> NamedResources:
    """Return the prompts of one variant of a comparison, each given as `FILE.yaml`, `NAME=FILE` or `RUN:VERSION`.

    Raises UsageError, with `option` and the text in one line, for what cannot be read or is given twice.
    """
    found: NamedResources = {}
    for named in given:
        try:
            prompts = _read(named, runs)
        except UsageError as error:
            raise UsageError(f"{option} {named}: {error}") from None
        if twice := sorted(found.keys() & prompts.keys()):
            what = "a prompt file" if twice == [EDITS] else f"the prompt {twice[0]!r}"
            raise UsageError(f"{option} {named}: {what} was given before with {option}; give it once")
        found |= prompts
    return found


def prompts_of_version(runs: Path, named: str) -> tuple[Models, ModelVersion]:
    """Return the version that `RUN` or `RUN:VERSION` names; raises UsageError if it has no prompts, or is none."""
    try:
        models, version = find_version(runs, named)
    except RunError as error:
        raise UsageError(f"there is no prompt file {named}, and as a run: {error}") from None
    if not version.resources:
        raise UsageError(f"version {version.version} of run {version.run!r} has no prompts")
    return models, version


def _read(named: str, runs: Path) -> NamedResources:
    name, equals, file = named.partition("=")
    if equals and not is_prompt_file(named):
        if not name or not file:
            raise UsageError("write NAME=FILE for a prompt template")
        check_prompt_name(name)
        template = read_prompt(Path(file))
        _check(template)
        return {name: template}
    if is_prompt_file(named):
        return {EDITS: read_prompts(named)}
    return prompts_of_version(runs, named)[1].resources


def _check(template: PromptTemplate) -> None:
    try:
        template.variables()
    except PromptError as error:
        raise UsageError(str(error)) from None
