"""Objects from import strings: `path/to/file.py:attribute` or `package.module:attribute`.

A file is loaded the way `python file.py` would load it (its folder first on `sys.path`), a module the way
`python -m` would (the working folder first).
"""

import contextlib
import difflib
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

from leyden.core.errors import AgentNotFound
from leyden.core.runner.attempts.error_text import import_advice, key_advice, raised
from leyden.core.tracing.children.inherited import module_files

AgentReference = str | tuple[str, ...]
"""How an agent is named to another process: an import string, or the words of a command line."""

agent_packages: set[str] = set()
"""Names of the packages that objects were loaded from by name. An installed one is the user's all the same."""


def load_object(reference: str) -> Any:
    """Return the object `reference` names; its module is imported once and shared by later calls.

    Raises AgentNotFound, in one line, when the reference has no attribute part, or the file, module or attribute does
    not exist, or importing it fails.
    """
    source, attribute = _split(reference)
    return _attribute(_module(source, attribute), attribute, source)


def reload_object(reference: str) -> Any:
    """Return a fresh copy of the object: its module is executed again, beside the one `load_object` shares.

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
        raise AgentNotFound(
            f"{reference!r} does not say which object to take: write path/to/file.py:name or package.module:name"
        )
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
    """The name that the module of `path` has, or is to get.

    Its own, if `import` finds this very file by it: then the modules beside it import the same one, and child
    processes find it. Else that with the folder's, and a digest of the path where two files would share even this.
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
    importlib.invalidate_caches()  # the file may have been written a moment ago
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
            raise AgentNotFound(f"there is no module {error.name!r} in {Path.cwd()} or among the packages") from error
        raise _failed(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(name, error) from error


@contextlib.contextmanager
def importing() -> Generator[None]:
    """Pause Python's garbage collector while large libraries are imported.

    Nearly all that an import makes stays, and the collector would look through it dozens of times: a fifth of the time
    that torch, transformers or LangChain take.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _execute(spec: ModuleSpec, source: str, attribute: str, *, shared: bool) -> ModuleType:
    assert spec.loader is not None  # module specs made from a location or found by import have one
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
    return AgentNotFound(f"importing {source} failed: {text}{advice or import_advice(error) or key_advice(text)}")


def _as_module(path: Path, attribute: str, error: BaseException) -> str:
    """How to name a file as a module of the package that it is part of, where that is why it cannot be imported."""
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
            close = difflib.get_close_matches(part, [name for name in dir(found) if not name.startswith("_")])
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise AgentNotFound(f"{source} has no {part!r}{hint}") from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a property, or a module that imports what it is asked for
            text = raised(error)
            raise AgentNotFound(f"{source}: reading {part!r} failed: {text}{key_advice(text)}") from error
    return found


def _first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
