"""Loading of objects from import strings: `path/to/file.py:attribute` or `package.module:attribute`.

A file is loaded as `python file.py` would load it, with its folder first on `sys.path`. A module is loaded as `python
-m` would load it, with the working folder first.
"""

import contextlib
import gc
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Generator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from leyden.core.errors import AgentNotFound, did_you_mean
from leyden.core.runner.attempts.error_text import import_advice, key_advice, raised, with_key_advice
from leyden.core.tracing.children.inherited import module_files

AgentReference = str | tuple[str, ...]
"""Reference to an agent for another process: an import string, or the words of a command line."""

agent_packages: set[str] = set()
"""Packages from which objects were loaded by name. They count as user code even if they are installed."""


def load_object(reference: str) -> Any:
    """Return the object that `reference` names. Its module is imported once and shared by later calls.

    Raises AgentNotFound, with a one-line message, when the reference has no attribute part. The same is raised when the
    file, module or attribute does not exist, or its import fails.
    """
    source, attribute = _split(reference)
    return _attribute(_module(source, attribute), attribute, source)


def reload_object(reference: str) -> Any:
    """Return a fresh copy of the object by executing its module again. The module of `load_object` stays unchanged.

    Modules that it imports are not executed again. Raises AgentNotFound like `load_object`.
    """
    source, attribute = _split(reference)
    spec = _module(source, attribute).__spec__
    if spec is None or spec.loader is None:
        raise AgentNotFound(f"{source} cannot be loaded again: it has no loader")
    return _attribute(_execute(spec, source, attribute, shared=False), attribute, source)


def _split(reference: str) -> tuple[str, str]:
    source, colon, attribute = reference.rpartition(":")
    if not (colon and source and attribute) or os.sep in attribute:
        raise AgentNotFound(f"{reference!r} does not name an object: write path/to/file.py:name or package.module:name")
    return source, attribute


def _module(source: str, attribute: str) -> ModuleType:
    if source.endswith(".py") or os.sep in source:
        return _file_module(Path(source), attribute)
    return _named_module(source)


def _file_module(path: Path, attribute: str) -> ModuleType:
    if not path.is_file():
        raise AgentNotFound(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    path = path.resolve()
    _first_on_path(path.parent)
    name = _free_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise AgentNotFound(f"{path} is not a Python file: its name must end in .py")
    if name != path.stem:
        module_files[name] = str(path)  # child processes cannot import it by this name
    return _execute(spec, str(path), attribute, shared=True)


def _free_name(path: Path) -> str:
    """Return the module name for `path`, existing or new.

    It is the file's own name where `import` finds this file by it. Modules beside it then import the same module, and
    child processes find it. Otherwise the folder's name is added, and a digest of the path where two files would still
    collide.
    """
    stem, folder = (re.sub(r"\W", "_", name) for name in (path.stem, path.parent.name))
    if stem == path.stem and stem not in sys.stdlib_module_names and _found_by_import(stem) == path:
        return stem
    name = f"{folder}_{stem}"
    if name not in sys.modules or _file_of(sys.modules[name]) == path:
        return name
    return f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def _found_by_import(name: str) -> Path | None:
    if name in sys.modules:
        return _file_of(sys.modules[name])
    importlib.invalidate_caches()  # the file may be new
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _named_module(name: str) -> ModuleType:
    _first_on_path(Path.cwd())
    try:
        with importing():
            module = importlib.import_module(name)
        agent_packages.add(name.partition(".")[0])
        return module
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AgentNotFound(
                f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages"
            ) from error
        raise _failed(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(name, error) from error


@contextlib.contextmanager
def importing() -> Generator[None]:
    """Pause Python's garbage collector while large libraries are imported.

    Nearly all objects of an import stay alive, and the collector would scan them dozens of times. That takes a fifth of
    the import time of torch, transformers or LangChain.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _execute(spec: ModuleSpec, source: str, attribute: str, *, shared: bool) -> ModuleType:
    assert spec.loader is not None  # specs made from a location or found by import have a loader
    module = importlib.util.module_from_spec(spec)
    if shared:
        sys.modules[spec.name] = module
    try:
        with importing():
            spec.loader.exec_module(module)
    except BaseException as error:
        if shared:
            sys.modules.pop(spec.name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _failed(source, error, _as_module(Path(source), attribute, error)) from error
    return module


def _failed(source: str, error: BaseException, advice: str = "") -> AgentNotFound:
    text = raised(error)
    if advice := advice or import_advice(error) or key_advice(text):
        text = text.rstrip(".")
    return AgentNotFound(f"importing {source} failed: {text}{advice}")


def _as_module(path: Path, attribute: str, error: BaseException) -> str:
    """Return advice to name the file as a module of its package, where the package is why its import fails.

    Else empty.
    """
    if path.suffix != ".py" or not (path.parent / "__init__.py").exists():
        return ""
    names, root = [path.stem], path.parent
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    relative = isinstance(error, ImportError) and "no known parent package" in str(error)
    missing = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == names[0]
    if not (relative or missing):
        return ""
    where = "" if root == Path.cwd() else f", from the folder {root}"
    return f"; the file is part of the package {names[0]}: name it as {'.'.join(names)}:{attribute}{where}"


def _attribute(module: ModuleType, dotted: str, source: str) -> Any:
    found: Any = module
    for part in dotted.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise AgentNotFound(f"{source} has no {part!r}{did_you_mean(part, _own_names(found))}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a property, or of a module that imports lazily
            text = raised(error)
            raise AgentNotFound(f"{source}: reading {part!r} failed: {with_key_advice(text)}") from error
    return found


def _own_names(found: object) -> list[str]:
    """Return the public names of `found` without those of modules that it imported."""
    names = [name for name in dir(found) if not name.startswith("_")]
    own = vars(found) if isinstance(found, ModuleType) else {}
    return [name for name in names if not isinstance(own.get(name), ModuleType)]


def _first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
