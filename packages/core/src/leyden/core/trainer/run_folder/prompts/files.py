"""Prompts of versions as files.

A prompt template is a text file, which `leyden train --prompt` reads back. Prompt edits are a file for `--prompts`.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from leyden.core.data.resources import PromptEngine, PromptTemplate, Resource, edits_of, prompts_of
from leyden.core.errors import UsageError
from leyden.core.policy.checkpoints.atomic import replaced_folder
from leyden.core.trainer.prompt_file import write_prompts

SUFFIXES: dict[PromptEngine, str] = {"f-string": ".txt", "jinja": ".j2"}
PROMPT_FILE = "prompts.yaml"
"""File of the prompt edits of a version."""
JINJA_SUFFIXES = (".j2", ".jinja", ".jinja2")


def export_prompts(prompts: Mapping[str, Resource], folder: Path) -> None:
    """Write the prompts among resources into `folder`, replacing the folder; without prompts, remove it.

    A prompt template becomes a text file of its name. Prompt edits become `prompts.yaml`, or a file of their name if
    there are several.
    """
    templates, edits = prompts_of(prompts), edits_of(prompts)
    if not templates and not edits:
        shutil.rmtree(folder, ignore_errors=True)
        return
    with replaced_folder(folder) as pending:
        for name, prompt in templates.items():
            (pending / f"{name}{SUFFIXES[prompt.engine]}").write_text(prompt.template, encoding="utf-8", newline="")
        for name, found in edits.items():
            write_prompts(pending / (PROMPT_FILE if len(edits) == 1 else f"{name}.yaml"), found)


def read_prompt(path: Path) -> PromptTemplate:
    """Return the prompt template in a file, of the engine that its suffix names; raises UsageError if unreadable."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompt {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return PromptTemplate(template=text, engine="jinja" if path.suffix in JINJA_SUFFIXES else "f-string")
