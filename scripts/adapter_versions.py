"""Tests the adapters on the newest releases of their frameworks, and each on the oldest that it declares.

`lock` resolves what is newest and oldest and pins it in tests/versions, from what the packages' pyproject files
declare; `test newest` and `test oldest` build environments of exactly these pins in .versions and run the adapters'
own tests there. `make test` has the set that all frameworks share; `newest` leaves CrewAI out, which keeps the others
from openai 3. No environment holds torch: an adapter needs none.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = ROOT / "tests" / "versions"
PAGE = ROOT / "docs" / "versions.md"
ENVIRONMENTS = ROOT / ".versions"
UV = Path(sys.executable).parent / "uv"
PYTHON = "3.11"
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout")
"""Pinned as in constraints.txt everywhere."""
CORE = "packages/core"
EXPORTER = "opentelemetry-exporter-otlp-proto-http>=1.30"
"""What tests export with, of whichever release fits the SDK."""
OF_THEIR_TIME = {"langchain": ("langgraph-prebuilt>=1.0",), "openai-agents": ("openai>=2.9", "griffe>=1.5.6,<2")}
"""Of what else the oldest releases are tested with the oldest that fits: they break with the newest, by themselves."""
TEXT = """\
# Versions

`make lock-versions` writes this page. `make test` runs all tests with one set of versions in which all frameworks can
be installed together (`constraints.txt`). `make test-newest` runs the adapters' tests with the newest releases,
including openai 3, which CrewAI does not accept yet. `make test-oldest` runs each adapter's tests with the oldest
releases that its `pyproject.toml` allows.

Both build their own environments in `.versions` from the pins in `tests/versions`. They do not install torch, because
no adapter needs it. If the oldest release of a framework does not work with the newest releases of its own
dependencies, the oldest dependencies that fit are pinned as well (langgraph-prebuilt; openai and griffe for
openai-agents).
"""


@dataclass(frozen=True, slots=True)
class Set:
    """Releases that are installed together, and the adapters that are tested on them."""

    name: str
    adapters: tuple[str, ...]
    resolution: str
    """How uv chooses: `highest`, or `lowest-direct`, the floors of what our packages ask for."""
    asked: tuple[str, ...] = ()
    """What is asked for beside what the packages declare."""

    @property
    def pins(self) -> Path:
        """The file of its pins."""
        return PINS / f"{self.name}.txt"


def adapters() -> list[str]:
    """Return the adapters that have tests: `langchain` of packages/langchain-adapter."""
    tested = ROOT.glob("packages/*-adapter/tests/test_*.py")
    return sorted({path.parents[1].name.removesuffix("-adapter") for path in tested})


def sets() -> dict[str, list[Set]]:
    """Return what `newest` and `oldest` are, for the adapters that have tests."""
    found = adapters()
    together = tuple(name for name in found if name != "crewai")
    return {
        "newest": [Set("newest", together, "highest", ("openai>=3",))],
        "oldest": [Set(f"oldest-{name}", (name,), "lowest-direct", OF_THEIR_TIME.get(name, ())) for name in found],
    }


def declared(adapter: str) -> list[str]:
    """Return what an adapter needs, for itself and for its example and tests, without our own packages."""
    project = tomllib.loads((ROOT / f"packages/{adapter}-adapter/pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project.get("optional-dependencies", {}).get("example", [])]
    return [one for one in needed if not one.startswith("leyden-")]


def lock(one: Set) -> None:
    """Resolve a set and write its pins."""
    constraints = (ROOT / "constraints.txt").read_text()
    tools = [line for line in constraints.splitlines() if line.split("==")[0] in TOOLS]
    asked = [*tools, EXPORTER, *one.asked, f"leyden-core @ file://{ROOT}/{CORE}"]
    asked += [requirement for adapter in one.adapters for requirement in declared(adapter)]
    options = ["--resolution", one.resolution, "--python-version", PYTHON, "--no-header", "--no-annotate", "--quiet"]
    done = subprocess.run(
        [UV, "pip", "compile", *options, "-"], input="\n".join(asked), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{one.name} cannot be resolved:\n{done.stderr}")
    pins = [line for line in done.stdout.splitlines() if "==" in line]
    one.pins.parent.mkdir(exist_ok=True)
    one.pins.write_text("# Written by `make lock-versions`.\n" + "\n".join(pins) + "\n")


def build(one: Set) -> Path:
    """Make the environment of a set, or bring it up to date; returns its Python."""
    folder = ENVIRONMENTS / one.name
    python = folder / "bin" / "python"
    environment = {**os.environ, "VIRTUAL_ENV": str(folder)}
    ours = [CORE, *(f"packages/{adapter}-adapter" for adapter in one.adapters)]
    editable = [argument for path in ours for argument in ("-e", path)]
    subprocess.run([UV, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], check=True)
    sync = [UV, "pip", "sync", "--quiet", one.pins]
    subprocess.run(sync, cwd=ROOT, env=environment, check=True)
    install = [UV, "pip", "install", "--quiet", "--no-deps", *editable]
    subprocess.run(install, cwd=ROOT, env=environment, check=True)
    return python


def test(one: Set, options: Sequence[str]) -> int:
    """Run the tests of a set's adapters; returns pytest's exit code."""
    print(f"== {one.name}: {', '.join(one.adapters)}", flush=True)
    folders = [f"packages/{adapter}-adapter/tests" for adapter in one.adapters]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [build(one), "-m", "pytest", "-q", "-c", "pyproject.toml", *options, *folders]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def pinned(path: Path) -> dict[str, str]:
    """Return the versions of a file of pins, by name."""
    found = re.findall(r"^([\w.-]+)==([^\s;+]+)", path.read_text(), re.MULTILINE)
    return {name.lower(): version for name, version in found}


def page() -> str:
    """Return docs/versions.md: the packages that adapters ask for, and OpenTelemetry's, in every set."""
    together = [one for group in sets().values() for one in group]
    columns = {"all in one": ROOT / "constraints.txt"} | {one.name: one.pins for one in together}
    found = {name: pinned(path) for name, path in columns.items() if path.exists()}
    asked = {re.split(r"[^\w.-]", one)[0] for adapter in adapters() for one in declared(adapter)}
    names = sorted(asked | {"openai", "httpx", "httpx2", "opentelemetry-sdk", "pydantic"})
    head = [f"| package | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    rows = [f"| {name} | {' | '.join(pins.get(name, '–') for pins in found.values())} |" for name in names]
    return "\n".join([TEXT, *head, *rows]) + "\n"


def main() -> None:
    """Lock or test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["lock", "test"])
    parser.add_argument("which", choices=["newest", "oldest", "all"], nargs="?", default="all")
    parser.add_argument("--only", help="one set, such as oldest-langchain")
    known, more = parser.parse_known_args()
    if more and known.what == "lock":
        parser.error(f"unknown arguments: {' '.join(more)}")
    chosen = [one for which, group in sets().items() if known.which in (which, "all") for one in group]
    chosen = [one for one in chosen if known.only in (None, one.name)]
    if not chosen:
        parser.error(f"there is no set {known.only!r}")
    if known.what == "lock":
        for one in chosen:
            lock(one)
        PAGE.write_text(page())
        return
    if missing := [one.pins.name for one in chosen if not one.pins.exists()]:
        parser.error(f"tests/versions lacks {', '.join(missing)}: run `make lock-versions`")
    failed = [one.name for one in chosen if test(one, more)]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
