"""Where an experiment's results come from: the version of Leyden and its commit, and the load of the machine."""

import os
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def leyden_version() -> str:
    """Return the version of Leyden, with the commit of its checkout if it is one, and whether files differ from it."""
    try:
        found = version("leyden-core")
    except PackageNotFoundError:
        found = "of a source checkout"
    folder = Path(__file__).parent
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return found
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{found}, commit {commit}" + (", with uncommitted changes" if changed else "")


def load() -> float:
    """Return the load average of the machine over the last minute; NaN where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return float("nan")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it is not installed, or `folder` is in no repository."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
