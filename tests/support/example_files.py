"""An example's own files as modules."""

import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def load(folder: Path, name: str) -> ModuleType:
    """The module in `<folder>/<name>.py`, anew at each call."""
    spec = importlib.util.spec_from_file_location(f"example_{folder.name}_{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def on_the_path(folder: Path) -> Generator[None]:
    """Let an example's files import each other by name, as a script's do."""
    names = [path.stem for path in folder.glob("*.py")]
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
