import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from leyden.core.tracing.patching.on_import import OnImport


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of two modules that can be imported, and are not."""
    names = ["leyden_on_import_one", "leyden_on_import_two"]
    for name in names:
        (tmp_path / f"{name}.py").write_text("VALUE = 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield names
    for name in names:
        sys.modules.pop(name, None)


def test_an_action_runs_once_when_its_module_is_there(modules: list[str]) -> None:
    seen: list[str] = []

    def note(module: ModuleType) -> None:
        seen.append(f"{module.__name__} {module.VALUE}")

    importlib.import_module(modules[0])
    OnImport(dict.fromkeys(modules, note))
    assert seen == [f"{modules[0]} 1"]
    for _ in range(2):
        importlib.import_module(modules[1])
    assert seen == [f"{name} 1" for name in modules]


def test_once_it_is_off_nothing_runs(modules: list[str]) -> None:
    seen: list[ModuleType] = []
    OnImport({modules[0]: seen.append}).off()
    importlib.import_module(modules[0])
    assert not seen


def test_what_fails_is_logged_and_the_import_goes_on(modules: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def fail(module: ModuleType) -> None:
        raise AttributeError("another version")

    OnImport({modules[0]: fail})
    with caplog.at_level(logging.ERROR, "leyden.tracing"):
        assert importlib.import_module(modules[0]).VALUE == 1
    assert f"{modules[0]} cannot be recorded" in caplog.text
    with pytest.raises(AttributeError, match="another version"):  # where it is loaded, the caller hears of it
        OnImport({modules[0]: fail})
