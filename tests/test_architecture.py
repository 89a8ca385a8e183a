"""The rules of the house, as tests: layers, size, docstrings, the shared namespace, import cost."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
PYTHON = sorted(
    path
    for folder in ("packages", "tests", "examples", "benchmarks", "scripts")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
MAX_LINES = 400

LAYERS = [
    ["errors", "masking"],
    ["data"],
    ["store"],
    ["tracing"],
    ["engine"],
    ["trajectory"],
    ["gateway", "runner"],
    ["credit", "advantage", "policy"],
    ["algorithm"],
    ["trainer"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_no_file_is_over_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_namespace_is_shared() -> None:
    assert not list(ROOT.glob("packages/*/src/leyden/__init__.py"))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_adapters_import_core_and_never_each_other(path: Path) -> None:
    own = path.relative_to(ROOT / "packages").parts[3]
    others = {name.split(".")[1] for name in imported(path) if name.startswith("leyden.")}
    assert others <= {own, "core"}


@pytest.mark.parametrize("path", [p for p in SOURCES if "/leyden/core/" in p.as_posix()], ids=relative)
def test_a_layer_imports_only_what_is_below_it(path: Path) -> None:
    parts = path.relative_to(ROOT / "packages/core/src/leyden/core").with_suffix("").parts
    layer = parts[0]
    if layer not in LEVEL:
        assert layer in {"__init__", "testing"}
        return
    for name in imported(path):
        if not name.startswith("leyden.core."):
            continue
        other = name.split(".")[2]
        assert other == layer or LEVEL.get(other, 99) < LEVEL[layer], f"{layer} imports {name}"


def test_versions_agree() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")]
    assert len({project["version"] for project in projects}) == 1
    version = projects[0]["version"]
    for project in projects:
        if project["name"] != "leyden-core":
            assert f"leyden-core=={version}" in project["dependencies"]


@pytest.mark.parametrize("command", ["import leyden.core", "import leyden.core; dir(leyden.core); leyden.core.LLM"])
def test_importing_core_loads_nothing_heavy(command: str) -> None:
    code = f"{command}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['leyden', '--help']\n"
        "from leyden.core.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "train" in answer.stdout
    assert answer.stderr.strip() == "[]"


HEAVY = [
    "torch",
    "transformers",
    "numpy",
    "langchain",
    "langchain_core",
    "langgraph",
    "openai",
    "redis",
    "sqlalchemy",
    "matplotlib",
]
