"""An example's own files as modules, without its folder on the path."""

import importlib.util
import sys
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
