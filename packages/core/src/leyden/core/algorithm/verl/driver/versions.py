"""Versions: checks that the installed VERL and the packages it needs are of versions that Leyden was built for.

It reads package metadata and does not import the packages.
"""

from importlib.metadata import PackageNotFoundError, version

from leyden.core.errors import UsageError

TESTED = {"verl": "0.9.1", "TransferQueue": "0.1.11", "ray": "2.60.0", "tensordict": "0.10.0"}
"""Distributions and the versions that the tests use."""
SERIES = {"verl": "0.9.", "TransferQueue": "0.1.", "ray": "2.", "tensordict": "0.10."}
"""Required version prefixes: VERL moves its plug-in points between minor releases."""
# VERL's package metadata does not list these, but its trainer does not start without them.
BESIDE = ("cachetools", "msgspec", "nvtx", "pyzmq", "qwen-vl-utils", "mathruler", "fastapi", "uvicorn")


def install_command() -> str:
    """Return the command that installs the tested versions."""
    pinned = " ".join(f"{name}=={tested}" for name, tested in TESTED.items())
    return f"pip install {pinned} {' '.join(BESIDE)}"


def check_versions() -> None:
    """Raise UsageError, in one line with the fix, if VERL or a package it needs is missing or of an untested series."""
    for name, series in SERIES.items():
        found = installed(name)
        if found is None:
            raise UsageError(f"algorithm verl needs {name}, which is not installed: {install_command()}")
        if not f"{found}.".startswith(series):
            raise UsageError(
                f"algorithm verl is built on {name} {series}x and finds {found}: pip install {name}=={TESTED[name]}"
            )
    missing = [name for name in BESIDE if installed(name) is None]
    if missing:
        raise UsageError(f"VERL does not start without {', '.join(missing)}: pip install {' '.join(missing)}")


def installed(name: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
