"""Python imports this module when it starts, in child processes whose `PYTHONPATH` names its folder.

It joins the process to the attempt that started it, but not before the process imports a library that can call a
model or start another process: a child that does neither starts as fast as ever. It may be imported by any version of
Python, and where Leyden is not installed: there it does nothing.
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
    """A finder that waits for the first of these imports."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Join before the module `name` is imported, if it is one of `JOINS`; find no module of its own."""
        if name not in JOINS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        join()
        # Joining may have imported it, or have put in finders that must see its import: so it is imported from here.
        # Python would load a module that it finds in `sys.modules` now once more.
        importlib.import_module(name)
        loader: Any = Imported(sys.modules.pop(name))
        return ModuleSpec(name, loader)


class Imported:
    """The loader of a module that is imported already."""

    def __init__(self, module: Any) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: Any) -> Any:
        """Return the module."""
        return self.module

    def exec_module(self, module: Any) -> None:
        """Leave it as its own loader made it."""
        module.__spec__ = self.spec


def join() -> None:
    """Join the attempt that the environment names."""
    try:
        child_process = importlib.import_module("leyden.core.tracing.children.inherited")
    except ImportError:  # of another environment: its clients find the gateway by their base URL
        return
    child_process.join(os.environ.get(CARRIED, ""))


def run_the_next() -> None:
    """Run the `sitecustomize` that this one stands before, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != FOLDER]
    sys.path_importer_cache.pop(FOLDER, None)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get(CARRIED):
    sys.meta_path.insert(0, Joining())
run_the_next()
