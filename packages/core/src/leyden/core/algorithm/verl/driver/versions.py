"""Which versions of VERL and its company this was built on. Looks at what is installed; imports none of it."""

from importlib.metadata import PackageNotFoundError, version

from leyden.core.errors import UsageError

TESTED = {"verl": "0.9.1", "TransferQueue": "0.1.11", "ray": "2.60.0", "tensordict": "0.10.0"}
"""Distribution and the version that tests run with."""
SERIES = {"verl": "0.9.", "TransferQueue": "0.1.", "ray": "2.", "tensordict": "0.10."}
"""What a version that can work begins with: VERL moves its plug-in points between minor releases."""
# VERL's own metadata leaves these out, and its trainer does not start without them.
BESIDE = ("cachetools", "msgspec", "nvtx", "pyzmq", "qwen-vl-utils", "mathruler", "fastapi", "uvicorn")


def install_command() -> str:
    """Return what installs the tested versions."""
    pinned = " ".join(f"{name}=={tested}" for name, tested in TESTED.items())
    return f"pip install {pinned} {' '.join(BESIDE)}"


def check_versions() -> None:
    """Raise UsageError, in one line with the fix, where VERL is missing or is of a series that was never tried."""
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
    """Return the version of a distribution; None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
