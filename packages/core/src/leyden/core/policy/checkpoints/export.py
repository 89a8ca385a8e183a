"""Policy export: writes a trained policy as a plain Hugging Face folder that other programs can load.

Adapters are merged into its weights. They are also written to a separate folder beside it, in PEFT's format.
"""

import shutil
from pathlib import Path
from typing import Any

from leyden.core.policy.checkpoints.atomic import replaced_folder
from leyden.core.policy.model import PolicyModel, no_progress_bars

_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx"}


def export_policy(model: PolicyModel, source: str | Path, folder: Path) -> Path:
    """Write configuration, weights, tokenizer and chat template to `folder`, replacing its contents; return it.

    The tokenizer's files are copied unchanged from `source` if that is a folder, and downloaded by name otherwise.
    Adapters are also written to `adapter_folder(folder)`.
    """
    module: Any = model.module
    with replaced_folder(folder) as pending:
        if Path(source).is_dir():
            _copy_companions(Path(source), pending)
        else:
            _save_tokenizer(str(source), pending)
        with no_progress_bars():
            # Without adapters, transformers reads the weights itself, because it handles tied weights.
            module.save_pretrained(pending, state_dict=None if model.adapters is None else model.weights())
    if model.adapters is not None:
        with replaced_folder(adapter_folder(folder)) as pending:
            model.adapters.save(pending)
    return folder


def adapter_folder(folder: Path) -> Path:
    """Return the folder for the adapters of a policy exported to `folder`: beside it, as `NAME-adapter`."""
    return folder.with_name(f"{folder.name}-adapter")


def _copy_companions(source: Path, target: Path) -> None:
    """Copy all files of a policy folder except weights; the model's own configuration is written over them later."""
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
