"""The glossary names classes that exist, and the source uses none of the words that the glossary retires."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
RETIRED = {
    "ledger",
    "keeper",
    "gate",
    "desk",
    "bell",
    "ear",
    "stint",
    "shelf",
    "lane",
    "lesson",
    "sitting",
    "elsewhere",
}
MODELS_OWN = {"gate", "gate_up", "gate_up_bias"}
"""Names of the layers of a Llama-like model."""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        yield path, ast.parse(path.read_text())


def test_each_name_in_the_glossary_is_defined_in_the_source() -> None:
    rows = [line for line in GLOSSARY.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.removesuffix(" |").rpartition(" | ")[2])}
    defined = {name for _, tree in sources() for node in ast.walk(tree) for name in names_of(node)}
    assert len(named) > 50
    assert named <= defined, f"not in the source: {sorted(named - defined)}"


def test_retired_words_are_no_names() -> None:
    found: list[str] = []
    for path, tree in sources():
        for node in ast.walk(tree):
            for name in names_of(node):
                words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
                if name not in MODELS_OWN and any(word.removesuffix("s") in RETIRED for word in words):
                    found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}")
    assert not found, "\n".join(found)


def names_of(node: ast.AST) -> list[str]:
    """Return the names that a node gives to something."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case _:
            return []
