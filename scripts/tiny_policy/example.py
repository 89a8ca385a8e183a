"""The example's own files, loaded the way a runner loads them: by path."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "calculator_langgraph"
"""Its tasks are those of the other calculators too."""
AGENT = f"{FOLDER}/agent.py:agent"


@cache
def load(name: str, folder: Path = FOLDER) -> ModuleType:
    """The module in `<folder>/<name>.py`."""
    qualified = f"{folder.name}_{name}"
    spec = importlib.util.spec_from_file_location(qualified, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    spec.loader.exec_module(module)
    return module
