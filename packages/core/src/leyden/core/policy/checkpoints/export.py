"""A trained policy as a plain Hugging Face folder, that anything can load. Knows nothing of checkpoints or runs.

Adapters are merged into it, and written once more in a folder of their own beside it, in PEFT's format.
"""

import shutil
from pathlib import Path
from typing import Any

from leyden.core.policy.checkpoints.atomic import replaced_folder
from leyden.core.policy.model import PolicyModel, no_progress_bars

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx"}


def export_policy(model: PolicyModel, source: str | Path, folder: Path) -> Path:
    """Write configuration, weights, tokenizer and chat template into `folder`, replacing what was there; return it.

    The tokenizer's files are copied unchanged from `source` when that is a folder, and fetched by name when it is not.
    Adapters go into `adapter_folder(folder)` as well.
    """
    module: Any = model.module
    with replaced_folder(folder) as pending:
        if Path(source).is_dir():
            _copy_companions(Path(source), pending)
        else:
            _save_tokenizer(str(source), pending)
        with no_progress_bars():
            # Without adapters it is left to transformers to read the weights, which knows best which are tied.
            module.save_pretrained(pending, state_dict=None if model.adapters is None else model.weights())
    if model.adapters is not None:
        with replaced_folder(adapter_folder(folder)) as pending:
            model.adapters.save(pending)
    return folder


def adapter_folder(folder: Path) -> Path:
    """Where the adapters of a policy that is exported to `folder` lie: beside it, as `NAME-adapter`."""
    return folder.with_name(f"{folder.name}-adapter")


def _copy_companions(source: Path, target: Path) -> None:
    """Copy everything of a policy folder that is not weights; the model then writes its own configuration over it."""
    for path in source.iterdir():
        if path.is_file() and path.suffix not in _WEIGHTS and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)
    templates = source / "additional_chat_templates"
    if templates.is_dir():
        shutil.copytree(templates, target / templates.name)


def _save_tokenizer(name: str, target: Path) -> None:
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    auto.from_pretrained(name, trust_remote_code=False).save_pretrained(target)
