"""Prompt files: prompt templates as text files, one for each, which `leyden train --prompt` reads back."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from leyden.core.data.resources import PromptEngine, PromptTemplate
from leyden.core.errors import UsageError
from leyden.core.policy.checkpoints.atomic import replaced_folder

SUFFIXES: dict[PromptEngine, str] = {"f-string": ".txt", "jinja": ".j2"}
JINJA_SUFFIXES = (".j2", ".jinja", ".jinja2")


def export_prompts(prompts: Mapping[str, PromptTemplate], folder: Path) -> None:
    """Write each prompt into a file of its name in `folder`, replacing the folder; without prompts, remove it."""
    if not prompts:
        shutil.rmtree(folder, ignore_errors=True)
        return
    with replaced_folder(folder) as pending:
        for name, prompt in prompts.items():
            (pending / f"{name}{SUFFIXES[prompt.engine]}").write_text(prompt.template, encoding="utf-8", newline="")


def read_prompt(path: Path) -> PromptTemplate:
    """Return the prompt template in a file, of the engine that its suffix names; raises UsageError if unreadable."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"prompt {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return PromptTemplate(template=text, engine="jinja" if path.suffix in JINJA_SUFFIXES else "f-string")
