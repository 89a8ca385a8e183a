"""The rules of the house, as tests: layers, size, docstrings, the shared namespace, import cost."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
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
MAX_LINES = 500
MOST_FILES = 20
CORE = ROOT / "packages/core/src/leyden/core"

LAYERS = [
    ["errors", "masking"],
    ["data"],
    ["store"],
    ["tracing"],
    ["grammar", "images"],
    ["engine"],
    ["trajectory"],
    ["gateway", "runner"],
    ["credit", "advantage", "policy"],
    ["algorithm"],
    ["trainer"],
    ["experiments"],
    ["tuning", "server"],
    ["cli", "agent_lightning"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) > len(SOURCES) > 20


def test_no_file_is_over_500_lines() -> None:
    lines = {relative(path): len(path.read_text().splitlines()) for path in PYTHON}
    assert {path: count for path, count in lines.items() if count > MAX_LINES} == {}


def test_every_module_says_what_it_is() -> None:
    assert [relative(path) for path in SOURCES if not ast.get_docstring(parsed(path))] == []


def test_the_namespace_is_shared() -> None:
    assert not list(ROOT.glob("packages/*/src/leyden/__init__.py"))


def test_adapters_import_core_and_never_each_other() -> None:
    wrong: list[str] = []
    for path in SOURCES:
        own = path.relative_to(ROOT / "packages").parts[3]
        others = {name.split(".")[1] for name in imported(path) if name.startswith("leyden.")} - {own, "core"}
        wrong += [f"{relative(path)} imports {other}" for other in others]
    assert wrong == []


def test_a_layer_imports_only_what_is_below_it() -> None:
    wrong: list[str] = []
    for path in SOURCES:
        if "/leyden/core/" not in path.as_posix():
            continue
        layer = path.relative_to(ROOT / "packages/core/src/leyden/core").with_suffix("").parts[0]
        if layer not in LEVEL:
            assert layer in {"__init__", "testing"}, relative(path)
            continue
        others = {name.split(".")[2] for name in imported(path) if name.startswith("leyden.core.")} - {layer}
        wrong += [f"{relative(path)} imports {other}" for other in others if LEVEL.get(other, 99) >= LEVEL[layer]]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and those for types alone are imports, too."""
    src = {path: path.relative_to(ROOT / "packages").with_suffix("").parts[2:] for path in SOURCES}
    modules = {".".join(parts).removesuffix(".__init__"): path for path, parts in src.items()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= {one if one in modules else node.module for one in found} & modules.keys() - {name}
    assert len(graph["leyden.core.trainer.session"]) > 10
    TopologicalSorter(graph).prepare()


def test_no_folder_has_more_than_20_files() -> None:
    """Catalogues, with one credit scheme, advantage or loss a file, may grow."""
    folders = {path.parent for path in SOURCES} - {CORE / name for name in ("advantage", "credit", "policy/losses")}
    counts = {relative(folder): len(list(folder.glob("*.py"))) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES} == {}


def test_the_page_of_the_architecture_says_what_each_folder_says_of_itself() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    folders = {path.parent: ast.get_docstring(parsed(path)) or "" for path in CORE.rglob("*/*/__init__.py")}
    rows = {f"| `{folder.relative_to(CORE)}/` | {text.splitlines()[0]} |" for folder, text in folders.items()}
    assert len(rows) > 40
    assert {row for row in rows if row not in page} == set()
    assert len(re.findall(r"^\| `\w+/[\w/]+/` \|", page, re.MULTILINE)) == len(rows)


def test_versions_agree() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")]
    assert len({project["version"] for project in projects}) == 1
    version = projects[0]["version"]
    for project in projects:
        if project["name"] != "leyden-core":
            assert f"leyden-core=={version}" in project["dependencies"]


@pytest.mark.integration
@pytest.mark.parametrize("command", ["import leyden.core", "import leyden.core; dir(leyden.core); leyden.core.LLM"])
def test_importing_core_loads_nothing_heavy(command: str) -> None:
    code = f"{command}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.integration
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
    "optuna",
]


def test_an_application_that_is_recorded_gets_nothing_that_only_training_needs() -> None:
    project = tomllib.loads((ROOT / "packages/core/pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>=; ]", line)[0] for line in project["dependencies"]}
    assert names and not names & {"gguf", "matplotlib", "peft", "plotext", "safetensors", "torch", "transformers"}
