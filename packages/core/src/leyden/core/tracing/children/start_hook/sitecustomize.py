"""Start hook: a `sitecustomize` for child processes whose `PYTHONPATH` contains its folder.

It joins the process to the attempt that started it. It does so only before the process imports a library that can call
a model or start another process. A child that does neither starts as fast as before. Any version of Python may import
it; where Leyden is not installed, it does nothing.
"""

import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from typing import Any

CARRIED = "LEYDEN_CARRIED"
JOINS = frozenset(
    (
        "aiohttp",
        "asyncio",
        "http.client",
        "httpx",
        "httpx2",
        "leyden.core",
        "requests",
        "subprocess",
        "urllib3",
        "uvloop",
    )
)
"""Imports before which the process joins its attempt."""
FOLDER = os.path.dirname(os.path.abspath(__file__))


class Joining:
    """Import finder that joins the attempt at the first import of a module in `JOINS`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Join before the module `name` is imported, if it is in `JOINS`. Otherwise returns None and finds nothing."""
        if name not in JOINS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        join()
        # The import runs here, because joining may have imported the module already, or added finders that must see its
        # import. Python would otherwise load a module that it now finds in `sys.modules` a second time.
        importlib.import_module(name)
        loader: Any = Imported(sys.modules.pop(name))
        return ModuleSpec(name, loader)


class Imported:
    """Loader of a module that is already imported."""

    def __init__(self, module: Any) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: Any) -> Any:
        """Return the imported module."""
        return self.module

    def exec_module(self, module: Any) -> None:
        """Restore the module's own spec, without executing it again."""
        module.__spec__ = self.spec


def join() -> None:
    """Join the attempt that the environment variable describes."""
    try:
        child_process = importlib.import_module("leyden.core.tracing.children.inherited")
    except ImportError:  # another Python environment: its clients find the gateway by their base URL
        return
    child_process.join(os.environ.get(CARRIED, ""))


def run_the_next() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != FOLDER]
    sys.path_importer_cache.pop(FOLDER, None)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get(CARRIED):
    sys.meta_path.insert(0, Joining())
run_the_next()
